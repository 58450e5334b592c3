# Generated from raft_client/aio/client.py by tools/twins.py. Edit that, and run "make twins".
"""The blocking client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, NoReturn, Self, Unpack, cast, overload

from raft_client.codecs import KeyValueCodec
from raft_client.core import arguments
from raft_client.core.arguments import DEFAULT_TIMEOUT, AppendItem, Data, Id, Timeout
from raft_client.core.calls import (
    Append,
    AwaitSettled,
    ClusterConfig,
    Custom,
    GetConfig,
    GetLogInfo,
    GetPeerConfig,
    LogInfo,
    MakeSnapshot,
    PeerConfig,
    TakenSnapshot,
    TransferLeadership,
    TrimLog,
    UpdatePeers,
)
from raft_client.core.entries_stream import DEFAULT_BUFFER_BYTES, EntriesStream, SnapshotPolicy
from raft_client.core.key_value_calls import AnyPeer
from raft_client.core.requests import ConnectionState, RequestStats
from raft_client.core.selectors import Selector
from raft_client.core.subscription import FindBroadcast, Subscription
from raft_client.core.watch_events import DEFAULT_QUEUE_BYTES, Overflow, WatchCounts, WatchItem
from raft_client.errors import InvalidArgumentError, PickleRefusedError
from raft_client.reports import LeaderListener, StateListener
from raft_client.request_id_factory import new_raw_id
from raft_client.settings import RaftOptions, RaftSettings
from raft_client.sync.engine import Engine
from raft_client.sync.key_values import KeyValues
from raft_client.sync.primitives import Listeners, check_callback
from raft_client.sync.readers import Entries, Subscriber
from raft_client.sync.watch import Watch
from raft_client.wire.configuration import Peer
from raft_client.wire.key_changes import Change, EntryCodec
from raft_client.wire.log_entry import Position, SnapshotChunk

_KEY_VALUE: Final = KeyValueCodec()


class RaftClient:
    """A client of a ØMQ Raft cluster.

    :param settings: URLs of peers such as ``tcp://10.0.0.1:8047``, in a list or in one text with commas between them;
        or :class:`~raft_client.RaftSettings`.
    :param on_state: called with each new :class:`ConnectionState` and, when the leader was lost, the reason.
    :param on_leader: called with each new leader, a :class:`Peer`.
    :param options: any other setting, by name; they win over ``settings``.

    Listeners run in a worker of their own, in order: they may be slow, may fail (that is logged) and may use the
    client. In the asyncio client they may be coroutine functions.

    Use it as a context manager: entering looks for the leader, leaving closes the connections. It follows the leader
    by itself: a request that was under way when the leader was lost is sent to the next one, with the same request id,
    so that nothing is appended twice. While it is not called, it costs nothing.

    Any number of threads may share a client; a process forked from this one may not.

    ``timeout`` is in seconds, over all attempts; ``None`` waits for ever, and the default is the setting
    ``request_timeout``. Every method raises :class:`NoLeaderError` when no leader was found in that time,
    :class:`RequestTimeoutError` when the leader did not answer, :class:`InvalidArgumentError` when nothing was sent,
    and :class:`ClientClosedError` after :meth:`close`.
    """

    def __init__(
        self,
        settings: RaftSettings | str | Iterable[str],
        *,
        on_state: StateListener | None = None,
        on_leader: LeaderListener | None = None,
        **options: Unpack[RaftOptions],
    ) -> None:
        for listener in (on_state, on_leader):
            check_callback(listener)
        if not isinstance(settings, RaftSettings):
            settings = RaftSettings(seeds=settings)
        self._settings = settings.evolve(**options) if options else settings
        self._ident = self._settings.ident
        self._on_state = on_state
        self._on_leader = on_leader
        self._opens_on_entry = True  # entering waits for the leader
        self._any_peer = AnyPeer(int.from_bytes(new_raw_id()[-2:]))
        self._engine = self._new_engine()

    def _new_engine(self) -> Engine:
        return Engine(self._settings, Listeners(self._settings.seeds, self._on_state, self._on_leader))

    # -- connection ----------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> RaftSettings:
        """What the client was made with; pickle this, not the client."""
        return self._settings

    @property
    def state(self) -> ConnectionState:
        """Whether there is a leader to talk to. It is found out by talking: while nobody waits, nobody looks."""
        return self._engine.machine.state

    @property
    def leader(self) -> Peer | None:
        """The peer to which requests go now; None while none is known."""
        url, peer_id = self._engine.machine.leader_url, self._engine.machine.leader_id
        return None if url is None or peer_id is None else Peer(peer_id, url)

    @property
    def peers(self) -> Mapping[str, str]:
        """Id -> URL of the members, as the cluster last reported them; empty before the first answer."""
        return dict(self._engine.machine.peers)

    @property
    def stats(self) -> RequestStats:
        """Counters of requests, repetitions and searches for the leader since the client was made."""
        return self._engine.machine.stats

    def open(self, timeout: Timeout = DEFAULT_TIMEOUT, *, wait: bool = True) -> Self:
        """Find the leader; returns when requests can be sent. If it fails it may be called again.

        With ``wait=False`` it returns at once, and the first call looks for the leader, until its own time-out.
        """
        if not isinstance(wait, bool):
            raise InvalidArgumentError(f"wait must be True or False, not {wait!r}")
        self._engine.open()
        self._opens_on_entry = wait
        if wait:
            self.config(timeout=timeout)
        return self

    def close(self) -> None:
        """Close the connections. What waits for an answer fails; an append may have been applied all the same."""
        self._engine.close()

    def __enter__(self) -> Self:
        engine = self._engine
        engine.check_process()
        if engine.machine.is_closed or self._opens_on_entry:
            was_closed = engine.machine.is_closed
            try:
                self.open()
            except BaseException:
                self.close()
                if not was_closed:  # by its user: it may be entered again
                    self._engine = self._new_engine()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError("a client holds sockets and cannot be pickled; pickle its settings and open another")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {','.join(self._settings.seeds)}, {self._engine.situation}>"

    # -- the cluster ---------------------------------------------------------------------------------------------------

    @overload
    def config(
        self, peer: None = None, *, settled: bool = False, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> ClusterConfig: ...
    @overload
    def config(self, peer: str, *, timeout: Timeout = DEFAULT_TIMEOUT) -> PeerConfig: ...
    def config(
        self, peer: str | None = None, *, settled: bool = False, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> ClusterConfig | PeerConfig:
        """The leader and the peers of the cluster, as the leader names them. (RequestConfig RPC)

        With a ``peer``, given by its id or URL, what that one says, a :class:`PeerConfig`: also without a leader. Open
        the client with ``wait=False`` if there may be none.

        While the members change, the list holds the old ones and the new ones. With ``settled`` it first waits until
        no change is under way, and raises :class:`ClusterBusyError` when that takes longer than ``timeout``. A change
        that begins and ends after the list was read cannot be noticed: the protocol has no compare-and-set.
        """
        seconds = self._seconds(timeout)
        if peer is not None:
            if settled:
                raise InvalidArgumentError("settled needs the answer of the leader: leave out peer", argument="settled")
            target = arguments.peer_url(peer, self._engine.machine.peers)
            return cast(PeerConfig, self._engine.call(GetPeerConfig(self._ident), timeout=seconds, target=target))
        before: ClusterConfig | None = None
        while True:
            if settled:
                self._engine.call(AwaitSettled(self._ident, new_raw_id()), timeout=seconds)
            found = cast(ClusterConfig, self._engine.call(GetConfig(self._ident), timeout=seconds))
            # The same twice: no change began after the question and had gone again before the next one.
            if not settled or found == before:
                return found
            before = found

    def publication_url(self, *, timeout: Timeout = DEFAULT_TIMEOUT) -> str:
        """Where the leader broadcasts: the URL of its PUB socket, for a SUB socket of your own. (BroadcastStateUrl RPC)

        :meth:`subscribe` finds it by itself, and again when the leader changes: the next one has another URL. Peers
        whose state machine does not broadcast say nothing, and the call ends with :class:`RequestTimeoutError`.
        """
        call = FindBroadcast(self._ident)
        return cast(str, self._engine.call(call, timeout=self._seconds(timeout)))

    def log_info(self, peer: str | None = None, *, timeout: Timeout = DEFAULT_TIMEOUT) -> LogInfo:
        """The state of the log of one peer, given by its id or URL, or of the leader. (RequestLogInfo RPC)"""
        target = None if peer is None else arguments.peer_url(peer, self._engine.machine.peers)
        call = GetLogInfo(self._ident, of_leader=target is None)
        return cast(LogInfo, self._engine.call(call, timeout=self._seconds(timeout), target=target))

    def update_config(
        self,
        peers: Iterable[Peer | tuple[str, str]],
        request_id: Id | None = None,
        *,
        wait: bool = True,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> int:
        """Make ``peers`` the members of the cluster; returns the log index of the transition. (ConfigUpdate RPC)

        A peer is its id and its URL, ``tcp://`` with an IP address and a port. The list is the complete new one.
        Returns when the old and the new members have agreed on the transition; the final list takes effect a moment
        later. While another change is under way it tries again until the time-out.

        To add or remove one peer, take the list of ``config(settled=True)``, change it, and pass ``wait=False``: when
        another change came in between, :class:`ClusterBusyError` is raised at once, and the list has to be read anew.
        One that was read during a change still holds the peers that the change removes, and would bring them back.

        Raises :class:`ConfigError` when the cluster refuses the list, also when it is the present one;
        :class:`ClusterBusyError`, :class:`RequestExpiredError`.
        """
        call = UpdatePeers(self._ident, peers, _raw_id(request_id), has_new_id=request_id is None, wait=wait)
        return cast(int, self._engine.call(call, timeout=self._seconds(timeout)))

    def transfer_leadership(self, to: str | None = None, *, timeout: Timeout = DEFAULT_TIMEOUT) -> str:
        """Let the member ``to`` (its id) lead, or any other one than now; returns the id of the leader. (HandOver RPC)

        Appends wait meanwhile, for some milliseconds, and go to the new leader. Returns when it says that it leads; at
        once if it did before. Only peers of this package hand over.

        Raises :class:`HandOverError` when there is no such member, it or the leader is a Node peer, or it did not take
        over in time; :class:`ClusterBusyError` when another hand-over goes on for longer than ``timeout``.
        """
        call = TransferLeadership(self._ident, to, int.from_bytes(new_raw_id()[-6:]))
        return cast(str, self._engine.call(call, timeout=self._seconds(timeout)))

    def trim(self, index: int, *, timeout: Timeout = DEFAULT_TIMEOUT) -> int:
        """Let peers drop the entries up to ``index``; returns the highest index that was named so far. (Trim RPC)

        The leader and all its peers that run drop them when no request id in them can be repeated any more: 8 hours
        after they were appended, as a rule, in whole segments. Readers that come later get a snapshot that says so
        instead. For state machines that keep nothing of what entries say: ``zmqraft serve --machine broadcast``.

        Raises :class:`CompactionError` when nothing was applied at that index yet, the state machine keeps a state,
        or the leader is a Node peer.
        """
        call = TrimLog(self._ident, index, int.from_bytes(new_raw_id()[-6:]))
        return cast(int, self._engine.call(call, timeout=self._seconds(timeout)))

    def take_snapshot(self, peer: str | None = None, *, timeout: Timeout = DEFAULT_TIMEOUT) -> TakenSnapshot:
        """Let a peer, given by its id or URL, or the leader make a snapshot of its state machine. (TakeSnapshot RPC)

        Returns when it is written. It takes the place of the log before it when no request id there can be repeated any
        more, 8 hours later as a rule. A peer holds one at a time: while it does, that one is returned.

        Raises :class:`CompactionError` when there is no room, nothing was applied yet, the state machine keeps no
        state (see :meth:`trim`), or the peer is a Node peer.
        """
        target = None if peer is None else arguments.peer_url(peer, self._engine.machine.peers)
        call = MakeSnapshot(self._ident, int.from_bytes(new_raw_id()[-6:]), of_leader=target is None)
        return cast(TakenSnapshot, self._engine.call(call, timeout=self._seconds(timeout), target=target))

    def dispatch(
        self,
        message_type: bytes | str,
        *frames: bytes | str,
        request_id: Id | None = None,
        peer: str | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> list[bytes]:
        """Send a message to the cluster's own state machine; returns the frames of its answer. (ClientDispatch RPC)

        ``message_type`` has at least two bytes. Without a ``request_id`` the message is sent once, to the leader: when
        that is lost, :class:`ConnectionLostError` is raised with ``may_have_been_applied``.

        A ``request_id`` is the first frame of the message, and is for state machines that carry out the same id once:
        the message is then sent again, to the next leader too, until it is answered, and errors carry the id. Make it
        with :func:`new_request_id`, and give the same one to repeat the call later. A state machine that does not look
        at ids may carry the message out several times.

        With a ``peer``, given by its id or URL, that one is asked, whoever leads. One of this package first makes sure
        that it has applied what was acknowledged, unless its state machine says that the answer may be stale.

        State machines that do not know the type say nothing, and the call ends with :class:`RequestTimeoutError`.
        """
        raw_id = None if request_id is None else arguments.request_id_of(request_id).raw
        call = Custom(self._ident, message_type, frames, raw_id)
        target = None if peer is None else arguments.peer_url(peer, self._engine.machine.peers)
        return cast(list[bytes], self._engine.call(call, timeout=self._seconds(timeout), target=target))

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(
        self, data: Data, request_id: Id | None = None, *, new_id: bool = False, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> int:
        """Append an entry; returns its log index when it is committed and applied. (RequestUpdate RPC)

        ``data`` has 1 byte to 10 MiB. With a ``request_id`` that was used before, within about 8 hours, nothing is
        appended again and the index is that of the first time: so an append that failed may be repeated, with the id
        that its error carries. Without one, a new id is made. ``new_id`` says that nobody used the given one before:
        only then can an error say that the entry was certainly not appended.

        Raises :class:`InvalidDataError`, and :class:`RequestExpiredError` for an id that is too old.
        """
        call = Append(self._ident, data, _raw_id(request_id), has_new_id=new_id or request_id is None)
        index: int = self._engine.call(call, timeout=self._seconds(timeout))
        return index

    def append_many(
        self, items: Iterable[Data | AppendItem], *, in_flight: int = 64, timeout: Timeout = DEFAULT_TIMEOUT
    ) -> list[int]:
        """Append many entries, ``in_flight`` at a time; returns their log indexes in order.

        ``items`` may be a generator; it is read as fast as the cluster takes the entries. The entries are sent in
        order, also when the leader changes, and stand in the log in that order; only a peer that is voted out and in
        again before its refusal of one entry reaches the client could turn two around (not with ``in_flight=1``). One
        failure loses no other: at the end :class:`BatchError` is raised with the index or the error of each item.
        ``timeout`` is for each entry.
        """
        calls = arguments.append_calls(items, self._ident, new_raw_id)
        room = arguments.check_in_flight(in_flight, self._settings.max_in_flight)
        outcomes = self._engine.call_many(calls, timeout=self._seconds(timeout), in_flight=room)
        arguments.raise_failures(outcomes)
        return outcomes

    # -- reading -------------------------------------------------------------------------------------------------------

    def entries(
        self,
        after: Position | int = 0,
        count: int | None = None,
        *,
        snapshot: SnapshotPolicy = SnapshotPolicy.DELIVER,
        snapshot_after: SnapshotChunk | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> Entries:
        """The log's entries after ``after``: ``count`` of them, or all that are applied. (RequestEntries RPC)

        ``after`` is an index, or the ``position`` where another reader stopped. An iterator of :class:`LogEntry`. Where
        the log was compacted, the snapshot comes first, as :class:`SnapshotChunk` pieces; ``snapshot`` can refuse
        (:class:`HistoryOutrunError`) or skip it. The peer sends no more than ``buffer_bytes`` and five messages ahead
        of the reader. When the leader is lost the stream goes on with the next one, at the right index. ``timeout`` is
        for each wait for the next message.

        ``snapshot_after`` is the last chunk that an earlier reader has kept: a snapshot with the same index, term and
        size goes on with the byte after it, and another one begins at 0 (``chunk.is_first``). Use it only if all peers
        write the same state as the same bytes, as those with the key/value machine do: the chunks may be of two peers.

        Raises :class:`OutOfDateLogError` when the log ends before ``after``, and :class:`TermMismatchError` when it is
        not the log that the position is of.
        """
        call = EntriesStream(
            self._ident,
            after,
            count=count,
            snapshot=snapshot,
            snapshot_after=snapshot_after,
            buffer_bytes=buffer_bytes,
        )
        return Entries(self._engine, call, self._seconds(timeout))

    def subscribe(
        self,
        after: Position | int | None = None,
        *,
        snapshot: SnapshotPolicy = SnapshotPolicy.DELIVER,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        silence: float | None = None,
    ) -> Subscriber:
        """The log's entries after ``after``, and then each new one as the leader broadcasts it.

        Without ``after`` it begins at the end of the log: with what is appended after the subscriber was entered, or
        started. An endless iterator; see :class:`Subscriber`. ``after`` and ``snapshot`` are as for :meth:`entries`.
        The peers' state machine must broadcast, as that of the Node peers does unless it was replaced.

        The leader is looked for when the connection to it breaks, and after ``silence`` seconds (0.1 to 3600) without a
        broadcast; the default is the setting ``broadcast_timeout``. An idle leader broadcasts every 0.1 s, and one of
        the Node peers every 0.5 s: with these, less than 0.7 s finds silence where there is none.
        """
        silence_s = arguments.check_silence(silence, self._settings.broadcast_timeout)
        subscription = Subscription(
            self._ident, after, snapshot=snapshot, buffer_bytes=buffer_bytes, silence_s=silence_s
        )
        return Subscriber(self._engine, subscription, self._settings.request_timeout)

    def watch(
        self,
        selector: Selector | Callable[[Change], bool] | None = None,
        *,
        prefix: Data | None = None,
        after: Position | int | None = None,
        codec: EntryCodec = _KEY_VALUE,
        overflow: Overflow = "reread",
        relist: bool = False,
        previous: bool = False,
        connection_events: bool = False,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        callback: Callable[[WatchItem], object] | None = None,
    ) -> Watch:
        """Watch what entries change: keys that start with ``prefix``, or what a selector or a function wants.

        It hands out the changes of the entries after ``after``, an index or a position, or from now on: from where the
        log ends when the leader hears of it, which ``started_after`` tells then. What this client appends next comes
        after that, without waiting for it, unless the leader is lost meanwhile. ``codec`` reads the entries; the
        default is :class:`KeyValueCodec`, with which a leader that serves watches tells the changes alone, and no
        entries. Codecs and functions run inside the client's own work:
        they must be quick, and get :class:`BusyError` when they use the client. When the log was compacted beyond
        ``after``, the watch ends with :class:`HistoryOutrunError`, or, with ``relist``, hands out the snapshot first.
        It ends with :class:`TermMismatchError` when ``after`` is a position in another log.

        When ``queue_bytes`` (or its share of the setting ``watch_bytes``) wait for the reader,
        ``overflow="reread"`` leaves the rest out and reads the log again when there is room, and ``"error"`` ends the
        watch. ``previous`` tells with each change what the key had before, as far as the watch has seen the key; it
        keeps the last value of every key for that. ``connection_events`` adds :class:`Suspended`, when no leader is
        heard for the setting ``broadcast_timeout``, and :class:`Resumed`, when the watch is up to date again.

        ``callback`` is called with each item by a worker of this watch's own: it may be slow, may fail (that is logged)
        and may use the client. In the asyncio client it may be a coroutine function.
        """
        wanted = self._engine.user_code.selector(arguments.selector_of(selector, prefix))
        check_callback(callback)
        return Watch(
            self._engine,
            arguments.check_codec(codec),
            lambda watches: watches.watch(
                wanted,
                after=after,
                overflow=overflow,
                relist=relist,
                previous=previous,
                connection_events=connection_events,
                queue_bytes=queue_bytes,
            ),
            callback=callback,
        )

    # -- keys and values -----------------------------------------------------------------------------------------------

    @property
    def kv(self) -> KeyValues:
        """The keys and values of a cluster whose peers have the key/value machine."""
        return KeyValues(self._engine, self._settings, self._any_peer)

    @property
    def watches(self) -> WatchCounts:
        """How many watches are open, and what waits for their readers."""
        return self._engine.watch_counts()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _seconds(self, timeout: Timeout) -> float | None:
        return self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else arguments.check_timeout(timeout)


def _raw_id(request_id: Id | None) -> bytes:
    return new_raw_id() if request_id is None else arguments.request_id_of(request_id).raw
