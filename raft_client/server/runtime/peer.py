"""One peer on an event loop: the node decides, this carries out.

One turn: take what has come, let the node see all of it, then do what it wants in the order of
:mod:`raft_client.server.node.ready`: send, write, apply, answer. So what arrives together is written together, and the
disk works while the next turn goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from raft_client.clocks import boot_s, wall_ns
from raft_client.errors import InvalidArgumentError, ProtocolError, RaftError, TransportError
from raft_client.reports import on_one_line
from raft_client.request_id_factory import new_raw_id
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.state_machine import StateMachine
from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import Answer, Ask, Connect, Disconnect, Incoming, Reconnect, Reply, Request, Role
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.state import NodeState
from raft_client.server.node.timing import QUIET_S
from raft_client.server.runtime.compaction import Compaction, Trimming
from raft_client.server.runtime.curve_keys import CurveKeys
from raft_client.server.runtime.disk import DiskWorker
from raft_client.server.runtime.machine_runner import MachineRunner, Question
from raft_client.server.runtime.sockets import PeerSockets
from raft_client.server.runtime.storage.disk_log import DiskLog, Fsync, StorageLimits
from raft_client.wire.client_requests import (
    BroadcastStateUrl,
    BroadcastStateUrlReply,
    ClientDispatch,
    ConfigProposal,
    ConfigUpdate,
    LogInfoReply,
    RequestLogInfo,
    TakeSnapshot,
    Trim,
)
from raft_client.wire.hello import Capability, Hello, hello_in_reply, is_hello
from raft_client.wire.key_value_messages import AskLeases
from raft_client.wire.peer_messages import PeerReply, decode_peer_reply, decode_request
from raft_client.wire.request_id import CLOCK_TOLERANCE_S, RequestId
from raft_client.wire.watch_messages import BeginWatch, CancelWatch, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raft_client.server.node.ready import Output
    from raft_client.server.node.status import NodeStatus
    from raft_client.server.runtime.disk import Storage
    from raft_client.server.runtime.sockets import Received
    from raft_client.wire.configuration import Peers
    from raft_client.wire.frames import Message

# -- what was asked of other peers -------------------------------------------------------------------------------------


#: Of each peer. There is one at a time, and late replies of earlier ones.
REMEMBERED: Final = 64


class AskedRequests:
    """A reply does not say what it answers: its request id does, for those who remember the request."""

    __slots__ = ("_types",)

    def __init__(self) -> None:
        self._types: dict[str, OrderedDict[bytes, bytes]] = {}

    def ask(self, peer_id: str, request_id: bytes, message_type: bytes) -> None:
        """It is sent now."""
        types = self._types.setdefault(peer_id, OrderedDict())
        types[request_id] = message_type
        if len(types) > REMEMBERED:
            types.popitem(last=False)

    def decode(self, peer_id: str, request_id: bytes, frames: Sequence[bytes]) -> PeerReply | None:
        """A reply; None if nothing was asked with this id. Raises ProtocolError."""
        types = self._types.get(peer_id)
        message_type = None if types is None else types.get(request_id)
        return None if message_type is None else decode_peer_reply(message_type, frames)

    def forget(self, peer_id: str) -> None:
        """The connection begins anew: replies to what was asked before mean nothing."""
        self._types.pop(peer_id, None)


# -- what comes in -----------------------------------------------------------------------------------------------------


#: A route, a request id, a type and the cluster ident.
_LEAST_FRAMES: Final = 4


class RequestDecoder:
    """``drop`` is called with the reason why a message is dropped."""

    def __init__(self, ident: bytes, drop: Callable[[str], None]) -> None:
        #: How many requests came, by the name of their type.
        self.requests: Counter[str] = Counter()
        self._ident = ident
        self._drop = drop

    def decode(self, frames: list[bytes]) -> Request | None:
        """The request; None if there is none in these frames, or it is of another cluster."""
        if len(frames) < _LEAST_FRAMES:
            self._drop("too few frames")
            return None
        try:
            message = decode_request(frames[1], frames[2:])
        except ProtocolError:
            self._drop("malformed")
            return None
        if message.ident != self._ident:
            self._drop("another cluster")
            return None
        self.requests[type(message).__name__] += 1
        return Request(frames[0], frames[1], message)


# -- ids that are too old ----------------------------------------------------------------------------------------------


#: It is asked for this often.
_INTERVAL_S: Final = 10.0


class RequestHorizon:
    """Follows the wall clock, but no faster than time passes, and no further than the newest id in the log allows.

    What is forgotten cannot be told from what is new. A clock that shows next year for a minute must not make a peer
    forget ids that are fresh again when it shows today: it would append their entries twice. While a peer runs, its
    monotonic clock (``now``) knows better. A machine that boots may show anything, but the ids in its log were made by
    others, and taken by leaders whose clocks agreed to a quarter of an hour: they say which time it is at least, and
    that is believed.
    """

    def __init__(self, ttl_s: float | None) -> None:
        """``ttl_s`` is how long ids are remembered; None is for ever."""
        self._ttl_s = ttl_s
        self._due_at = 0.0
        self._horizon_s: float | None = None
        #: What the wall clock allowed, less the monotonic time, when it was asked first.
        self._offset_s = 0.0

    def due(self, now: float, wall_s: float, newest_s: Callable[[], float]) -> float | None:
        """Ids made before this time (seconds since 1970) may be forgotten now; None if it is not time to do so.

        ``newest_s`` tells when the newest id in the log was made, or a time before that.
        """
        if self._ttl_s is None or now < self._due_at:
            return None
        self._due_at = now + _INTERVAL_S
        limit_s = wall_s - self._ttl_s
        if self._horizon_s is None:
            self._horizon_s, self._offset_s = -math.inf, limit_s - now
        limit_s = min(limit_s, now + self._offset_s, newest_s() - CLOCK_TOLERANCE_S - self._ttl_s)
        self._horizon_s = max(self._horizon_s, limit_s)
        return self._horizon_s if self._horizon_s > -math.inf else None


# -- peer --------------------------------------------------------------------------------------------------------------


logger: Final = logging.getLogger("raft_client.server")
#: Logs who leads, and which peers are connected. ``zmqraft serve`` and ``statestore serve`` show it without
#: ``--verbose``, because operators read it after an outage.
CLUSTER_LOGGER: Final = logging.getLogger("raft_client.server.cluster")

#: What our peers can do beyond the document; with a state machine that has keys also serve watches, and lease keys.
_CAPABILITIES: Final = tuple(each for each in Capability if each not in (Capability.WATCH, Capability.LEASES))
#: Requests that one turn takes before others have theirs.
_TURN: Final = 200
#: A turn applies nothing more after this time: a peer that starts has its whole log to apply, and heartbeats to send.
_CARRYING_OUT_S: Final = 0.02


class RaftPeer:
    """A peer of a cluster: ``start()``, and ``close()``, in one event loop.

    ``storage`` is open already, and the peer closes it. ``machine`` is empty: the peer restores it from the newest
    snapshot and applies the entries after it again.
    """

    def __init__(
        self,
        settings: NodeSettings,
        storage: Storage,
        machine: StateMachine,
        *,
        url: str,
        publisher_url: str | None = None,
        public_host: str | None = None,
        keys: CurveKeys | None = None,
        compact_bytes: int | None = None,
        on_role: Callable[[NodeStatus], object] = lambda _status: None,
        make_node: Callable[[NodeState], RaftNode] = RaftNode,
    ) -> None:
        """``url`` is where the ROUTER listens, ``publisher_url`` where the PUB does; None: no broadcasts. Clients are
        told to find these at ``public_host``, if that is not the address at which the peer listens.

        Without ``keys`` everything is in the clear. When ``compact_bytes`` of the log were applied, a snapshot is made
        to replace them; None: never. ``on_role`` is called when the peer has another role, term or leader.
        ``make_node`` makes another node than usual: one that writes down what it does.
        """
        self.settings = settings
        #: Where it listens, once it has started.
        self.url: str = url
        self.publisher_url, self._public_host = publisher_url, public_host
        #: How many messages were dropped, by reason.
        self.dropped: Counter[str] = Counter()
        self._decoder = RequestDecoder(settings.ident, self._drop)
        #: What ended the peer; None while it runs, and after close().
        self.failure: BaseException | None = None
        self.ended: asyncio.Event = asyncio.Event()
        self._storage, self._keys = storage, keys
        self._on_role, self._make_node = on_role, make_node
        self.runner: MachineRunner = MachineRunner(
            machine,
            storage,
            settings.ident,
            publish=lambda message: self._sockets.publish(message.to_frames()),
            drop=self._drop,
            peer_id=settings.peer_id,
        )
        self._state_machine, self._compact_bytes = machine, compact_bytes
        watch = () if self.runner.watches.server is None else (Capability.WATCH,)
        leases = (Capability.LEASES,) if self.runner.leases.has_leases else ()
        capabilities = (*_CAPABILITIES, *watch, *leases)
        self._hello = Hello(settings.peer_id, secrets.randbelow(2**53), capabilities, round(QUIET_S * 1000))
        self._asked = AskedRequests()
        self._role: tuple[Role, int, str | None] | None = None
        self._unsound_appends = 0
        self._unsound_leader: str | None = None  # of whom it was logged
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # in the node's time, which goes on where that of the loop stands still
        self._horizon = RequestHorizon(settings.request_id_ttl_s)
        self._deadline = 0.0  # of the node
        self._is_closed = False
        self._stopping, self._closing = ExitStack(), AsyncExitStack()
        self._closing.callback(storage.close)
        self._closing.callback(self.runner.close)

    async def start(self) -> None:
        """Listen, and take part. Raises TransportError if an address cannot be had. After an error all is closed."""
        self._loop = asyncio.get_running_loop()
        try:
            self._make_parts()
            self._begin()
        except BaseException:
            await self.close()
            raise

    def _make_parts(self) -> None:
        self._sockets = PeerSockets(self._watch, self._loop.remove_reader, self._drop, self._keys)
        self._stopping.callback(self._sockets.close)
        self.disk: DiskWorker = DiskWorker(self._storage, self._loop, self._on_synced, self._on_read)
        machine, compact_bytes, guard = self._state_machine, self._compact_bytes, self._guarded
        trimming = self._trimming = Trimming(self.settings, machine, self._sockets.tell)
        self._compaction = Compaction(trimming, machine, self._storage, self.disk, compact_bytes, guard, self._turn)
        self._closing.callback(self._compaction.close)
        self._closing.push_async_callback(self.disk.close)  # first: it works on what the others close

    def _begin(self) -> None:
        self.url, self.publisher_url = self._sockets.bind(self.url, self.publisher_url, self._public_host)
        state = NodeState(
            self.settings,
            self._storage,
            applied_index=0,  # a snapshot is restored beside everything else
            rng=random.Random(secrets.randbits(64)),  # noqa: S311  # it spreads elections in time
            now=boot_s(),
            wall_s=wall_ns() / 1_000_000_000,
        )
        self._node = self._make_node(state)
        self._turn()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Stop taking part, wait for the disk, and give everything back. After a failure, too, and more than once."""
        if not self._is_closed:
            self._stop()
        await self._closing.aclose()

    @property
    def requests(self) -> Counter[str]:
        """How many requests came, by the name of their type."""
        return self._decoder.requests

    def status(self) -> NodeStatus:
        """What there is to tell; while it runs."""
        return self._node.status()

    def hand_over(self) -> bool:
        """If it leads, let the connected member that lacks least lead. Whether that began; ``on_role`` tells more."""
        lagging = sorted(self._node.status().followers, key=lambda each: each.lag)
        has_begun = any(self._node.transfer(each.peer_id, boot_s()) for each in lagging)
        self._turn()
        return has_begun

    def cut_off(self, peer_ids: frozenset[str]) -> None:
        """For tests: do not reach these peers, and reach all others, until it is called again."""
        self._sockets.cut_off(peer_ids)
        for peer_id in peer_ids:
            self._node.peer_lost(peer_id, boot_s())
        self._turn()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- one turn ------------------------------------------------------------------------------------------------------

    def _watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._turn)

    def _turn(self) -> None:
        self._guarded(self._take_turn)

    def _on_synced(self, error: Exception | None) -> None:
        self._guarded(lambda: self._go_on(error))

    def _on_read(self, error: Exception | None) -> None:
        self._guarded(lambda: self._look_again(error))

    def _guarded(self, act: Callable[[], None]) -> None:
        """A peer that has lost its way must not go on speaking: whatever goes wrong ends it."""
        if self._is_closed:
            return
        try:
            act()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _take_turn(self) -> None:
        now = boot_s()
        self._sockets.settle(now)
        came = self._sockets.receive(_TURN, now)
        # Only now: if the process stood still after a message had come, a lease may be over that was not before.
        now, wall_s = boot_s(), wall_ns() / 1_000_000_000
        incoming = list(self._incoming(came, now))
        if incoming:
            self._node.steps(incoming, now, wall_s)
            if self._node.unsound_appends != self._unsound_appends:
                self._note_unsound_appends()
        if now >= self._deadline:
            self._node.tick(now, wall_s)
        for data in self.runner.leases.due(now):
            self._node.propose(data, RequestId(new_raw_id()), now)
        if not self.runner.is_restoring:
            self._compaction.turn(self._node, self.runner.applied_bytes, now)
        is_done = self._carry_out(now)
        self.disk.read_ahead()
        self.runner.watches.turn(now, self._sockets.answer)
        if (before_s := self._horizon.due(now, wall_s, self._storage.newest_request_s)) is not None:
            self._storage.forget_requests(before_s)
        self._set_timer(now, at_once=not is_done)

    def _go_on(self, error: Exception | None) -> None:
        """The disk has done its job, or could not."""
        now = boot_s()
        if error is not None:
            self._node.fail(now)
            raise error
        self._node.advance(now)
        self._take_turn()

    def _look_again(self, error: Exception | None) -> None:
        """Let the node go on with what it waits for: the other thread has read it."""
        if error is not None:
            raise error
        self._node.disk_read(boot_s())
        self._take_turn()

    def _set_timer(self, now: float, *, at_once: bool) -> None:
        self._deadline = self._node.next_deadline()
        # The descriptor of what nobody has taken has told of it, and does not tell again.
        when = min(self._deadline, self.runner.next_deadline(), now if at_once else self._sockets.next_look(now))
        if self._timer is not None:
            if now <= self._timer_at <= when:
                return  # most messages put off what is due: a turn too many now and then costs less than a timer each
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_later(max(0.0, when - now), self._on_timer), when

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()

    def _stop(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._stopping.close()
        self.ended.set()

    def _fail(self, error: BaseException) -> None:
        line = on_one_line(f"peer {self.settings.peer_id} ends: {error}")
        logger.critical("%s", line, exc_info=not isinstance(error, RaftError))
        self.failure = error
        self._stop()

    # -- what comes in -------------------------------------------------------------------------------------------------

    def _incoming(self, came: Received, now: float) -> Iterator[Incoming]:
        for dealer, began in came.connections:
            self._log_change(f"{'connected to' if began else 'has lost'} peer {dealer.peer_id} at {dealer.url}")
            if began:
                dealer.send([self._hello.to_request_id(), *RequestLogInfo(self.settings.ident).to_frames()])
            else:
                self._node.peer_lost(dealer.peer_id, now)
                self._trimming.lost(dealer.peer_id)
        for peer_id, frames in came.replies:
            reply = self._reply(peer_id, frames, now)
            if reply is not None:
                yield reply
        for frames in came.requests:
            request = self._request(frames, now)
            if request is not None:
                yield request

    def _request(self, frames: list[bytes], now: float) -> Request | None:
        """What the node has to see; None for what is dropped, or answered here."""
        request = self._decoder.decode(frames)
        if request is None:
            return None
        message = request.message
        if self._keys is not None and isinstance(message, ConfigUpdate | ConfigProposal):
            self._keys.read_again()
            self._node.admit_only(self._keys.peer_ids)
        if isinstance(message, BroadcastStateUrl):
            self._answer(request, BroadcastStateUrlReply(self.publisher_url))
            return None
        if isinstance(message, Trim | TakeSnapshot):
            self._compaction.on_request(request, message, self._node.status(), self._answer)
            return None
        if isinstance(message, ClientDispatch) and message.type == AskLeases.TYPE and self.runner.leases.has_leases:
            self._answer(request, self.runner.leases.support(self._node.configuration.change))
            return None
        if isinstance(message, ClientDispatch):
            question = Question(message, lambda answer: self._reply_to(request, answer))
            if self.runner.ask(question):
                if self.runner.may_be_stale(message):
                    self.runner.answer_as_it_is(question)
                else:
                    self._node.read(question, now)
            return None
        if isinstance(message, BeginWatch | CancelWatch | Seen):
            watches = self.runner.watches
            if self.runner.is_restoring or not watches.request(request.route, request.request_id, message, now):
                self._drop("a watch that cannot be served")
            return None
        return request

    def _reply(self, peer_id: str, frames: list[bytes], now: float) -> Reply | None:
        request_id, rest = frames[0], frames[1:]
        try:
            if is_hello(request_id):
                hello = hello_in_reply(rest)
                names = frozenset(hello.capabilities) if hello is not None else frozenset()
                quiet_ms = None if hello is None else hello.quiet_ms
                self._node.set_capabilities(peer_id, names, now, QUIET_S if quiet_ms is None else quiet_ms / 1000)
                self._trimming.learn(peer_id, names, self._node.leader_id)
                self.runner.leases.learn(peer_id, names)
                return None
            reply = self._asked.decode(peer_id, request_id, rest)
            if reply is not None:
                return Reply(peer_id, request_id, reply)
            self._drop("an answer to nothing")
        except ProtocolError:
            self._drop("malformed answer")
        return None

    def _drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _carry_out(self, now: float) -> bool:
        """Until the node wants nothing more, or applying has taken long. Whether that was all."""
        is_done, end = False, boot_s() + _CARRYING_OUT_S
        while not is_done and boot_s() < end:
            ready = self._node.ready()
            self._send(ready.send)
            if ready.persist is not None:
                self.disk.begin(ready.persist)
            self._note_role(now)
            applied = self.runner.carry_out(ready, now)
            if applied is not None:
                self._node.applied(applied, now)
            else:
                is_done = not self.runner.is_restoring  # sending and writing give the node nothing to say
        self.runner.tick(now)
        return is_done

    def _send(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            match output:
                case Answer(message=message):
                    self._answer(output, message)
                case Ask(peer_id, request_id, message):
                    self._ask(peer_id, request_id, message)
                case Connect(peer):
                    self._asked.forget(peer.id)
                    self._sockets.connect(peer.id, peer.url)
                case Reconnect(peer_id):
                    self._asked.forget(peer_id)
                    self._sockets.reconnect(peer_id)
                case Disconnect(peer_id):
                    self._asked.forget(peer_id)
                    self._sockets.disconnect(peer_id)

    def _ask(self, peer_id: str, request_id: bytes, message: Message) -> None:
        if peer_id not in self._sockets.dealers:
            return
        frames = message.to_frames()
        self._asked.ask(peer_id, request_id, frames[0])
        self._sockets.tell(peer_id, [request_id, *frames])

    def _answer(self, request: Request | Answer, message: Message) -> None:
        frames = message.to_frames()
        if isinstance(message, LogInfoReply) and is_hello(request.request_id):
            frames = [*frames, self._hello.to_frame()]
        self._reply_to(request, frames)

    def _reply_to(self, request: Request | Answer, frames: Sequence[bytes]) -> None:
        if not self._sockets.answer([request.route, request.request_id, *frames]):
            self._drop("an answer nobody takes")

    def _note_unsound_appends(self) -> None:
        """Count them, and log the first of each leader: replication to this peer stops until that leader is mended."""
        node, before = self._node, self._unsound_appends
        self._unsound_appends = node.unsound_appends
        self.dropped["entries that cannot follow each other"] += self._unsound_appends - before
        if node.leader_id != self._unsound_leader:
            self._unsound_leader = node.leader_id
            what = f"leader {node.leader_id} sends entries whose terms fall, or a list of members that cannot be read"
            logger.error("%s", on_one_line(f"peer {self.settings.peer_id} refuses them: {what}"))

    def _note_role(self, now: float) -> None:
        node = self._node
        role = (node.role, node.term, node.leader_id)
        if role == self._role:
            return
        was_leader = self._role is not None and self._role[0] is Role.LEADER
        self._role = role
        status = node.status()
        what = f"{status.role.value} in term {status.term}, leader {status.leader_id}"
        self._log_change(what)
        if status.role is Role.LEADER:
            self.runner.lead(status, now)
            self._trimming.lead()
        else:
            self._trimming.follow(status.leader_id)
            if was_leader:
                self.runner.follow()
        self._on_role(status)

    def _log_change(self, what: str) -> None:
        CLUSTER_LOGGER.info("%s", on_one_line(f"peer {self.settings.peer_id}: {what}"))


# -- one way to make a peer: for the command, embedded peers and embedded clusters -------------------------------------


@attrs.frozen(kw_only=True)
class PeerOptions:
    """What all peers of a cluster have in common. Raises InvalidArgumentError for what cannot be used.

    ``settings`` are changes of :class:`.NodeSettings`; ``curve_keys`` is the directory of all public keys. What the
    options mean is said where people give them: :class:`raft_client.server.EmbeddedCluster`.
    """

    cluster: str = ""
    machine: Callable[[], StateMachine] = KeyValueStateMachine
    fsync: Fsync = Fsync.GROUP
    limits: StorageLimits | None = None
    curve_keys: Path | None = None
    compact_bytes: int | None = None
    trim_forgets_ids: bool = False
    settings: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        value: object = self.compact_bytes
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(
                f"compact_bytes is a number of bytes, at least 1, or None, not {value!r}", argument="compact_bytes"
            )
        self.settings_of("1")

    def settings_of(self, peer_id: str) -> NodeSettings:
        """All settings of this peer."""
        own = {"peer_id": peer_id, "ident": self.cluster.encode(), "trim_forgets_ids": self.trim_forgets_ids}
        try:
            return NodeSettings(**{**own, **self.settings})
        except TypeError as error:
            raise InvalidArgumentError(f"settings cannot be used: {error}") from None


def open_peer(
    options: PeerOptions,
    peer_id: str,
    peers: Peers,
    data: Path,
    *,
    url: str,
    publisher_url: str,
    open_log: Callable[..., DiskLog] = DiskLog.open,
    **more: Any,
) -> RaftPeer:
    """Open the log at ``data`` and return the peer that writes to it, to be started.

    ``peers`` count when there is no log yet; later it says who they are. ``more`` and the URLs are what
    :class:`.RaftPeer` takes. Raises TransportError if this is the first start and an address is taken, SettingsError if
    a key is missing, and what :meth:`.DiskLog.open` raises.
    """
    settings = options.settings_of(peer_id)
    keys = CurveKeys.of_member(options.curve_keys, peer_id, peers)
    check_first_start(data, url, publisher_url)
    log = open_log(data, peer_id=peer_id, ident=settings.ident, peers=peers, fsync=options.fsync, limits=options.limits)
    return RaftPeer(
        settings,
        log,
        options.machine(),
        url=url,
        publisher_url=publisher_url,
        keys=keys,
        compact_bytes=options.compact_bytes,
        **more,
    )


def check_first_start(data: Path, *urls: str | None) -> None:
    """Raises TransportError if there is no data directory yet and somebody listens at one of these URLs already.

    A start that cannot listen must not leave a directory behind: the addresses of the members are in it.
    """
    for url in () if data.exists() else urls:
        host, _, port = (url or "").removeprefix("tcp://").rpartition(":")
        if not port.isdigit():
            continue  # a free one, or a Unix socket
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
                None if host == "*" else host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError:
            continue  # the name of an interface, which ØMQ knows, or of nothing, which it says
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise TransportError(f"cannot listen at {url}: {error.strerror}") from error
