"""A client as the broker sees it: its connection, and its session, which is kept while it is away (MQTT 5.0, 4.1).

A :class:`Connection` has the bytes that wait for its socket, and belongs to at most one :class:`Session`, which belongs
to at most one connection: they point at each other, so they stand together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, Final, Protocol, cast

import attrs

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    ConnackProperties,
    Disconnect,
    DisconnectProperties,
    ReasonCode,
    connack_return_code,
    encode,
)
from statestore_client.mqtt.qos import PUBACK, Inbound
from statestore_client.server.broker.limits import NEVER_EXPIRES
from statestore_client.server.broker.memory import UNRELEASED_BYTES
from statestore_client.server.broker.message import LARGE_BYTES
from statestore_client.server.broker.outbound import MessageQueue, Outbound
from statestore_client.server.broker.records import SessionRecord
from statestore_client.server.key_index import KeyIndex
from statestore_client.server.shares import Shares
from statestore_client.wire.protocol import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from statestore_client.mqtt.packets import Connect, Packet, Publish, Will
    from statestore_client.server.broker.admission import Credentials, Permissions
    from statestore_client.server.broker.journal_writer import BrokerPersistence, SessionPersister
    from statestore_client.server.broker.limits import BrokerLimits
    from statestore_client.server.broker.memory import MemoryBudget
    from statestore_client.server.broker.message import Delivery, Message
    from statestore_client.server.broker.retained import RetainedCursor
    from statestore_client.server.broker.scheduling import Timer
    from statestore_client.server.broker.topic_tree import GrantedSubscription
    from statestore_client.server.journal import Journal
    from statestore_client.wire.instant import Instant

# -- aliases -----------------------------------------------------------------------------------------------------------
#
# The topic aliases that the broker uses towards one client (MQTT 5.0, 3.3.2.3.4).
#
# The first message of a topic carries the topic and a new alias, the following ones the alias alone. Aliases go to the
# first topics that come, and stay with them: which topics will come again nobody knows, and a receiver that is told new
# meanings all the time saves nothing. They end with the connection.


@attrs.frozen
class Alias:
    """``is_known``: the peer has been told the topic, so that the alias can stand for it."""

    number: int
    is_known: bool


@attrs.define(eq=False)
class OutgoingAliases:
    """Invariants: at most ``maximum`` topics, numbered from 1 in the order of :meth:`remember`. ``bytes`` is what they
    hold; that much of the budget is theirs.
    """

    maximum: int
    _budget: MemoryBudget
    bytes: int = 0
    _known: dict[str, Alias] = attrs.Factory(dict)

    def of(self, topic: str) -> Alias | None:
        """The alias to send this topic with; None if there is none, or no memory to remember it."""
        known = self._known
        alias = known.get(topic)
        if alias is None and len(known) < self.maximum and self._budget.admits(len(topic), self.bytes):
            alias = Alias(len(known) + 1, is_known=False)
        return alias

    def remember(self, topic: str, alias: Alias) -> int:
        """The topic was sent with a new alias. Returns the bytes that are now in the budget for it."""
        self._known[topic] = attrs.evolve(alias, is_known=True)
        self.bytes += len(topic)
        self._budget.total += len(topic)
        return len(topic)


# -- connection --------------------------------------------------------------------------------------------------------
#
# One network connection as the pure broker sees it: what is known of the peer, and the bytes that wait for its socket.


@attrs.frozen
class CloseReason:
    """Why a connection ends. ``by_peer``: it said DISCONNECT or went away; otherwise the broker ended it."""

    reason_code: int
    reason: str
    by_peer: bool = False


@attrs.define(eq=False)
class Connection:
    """Written by the broker, emptied by the runtime.

    *Output commit*: what is said to a client waits until what it depends on is durable. With a ``journal``, the broker
    writes into ``staged``. The runtime takes a cut of the journal and seals what is staged at that moment; when the cut
    is durable, it releases that into the outbox. So an acknowledgement, a reply or a delivery never goes out before the
    records that were made before it. Without a journal, ``staged`` is the outbox.

    The runtime takes ``outbox`` with :meth:`take` and writes it in one go; once ``ending`` is set it closes the socket
    after that. ``is_congested`` is the runtime's word that the socket takes no more for now.
    Invariant: nothing is staged after ``ending`` was set. Invariant: ``outbox_bytes`` counts what is staged, sealed and
    in the outbox; bytes go this way and keep their order.
    """

    peer: str
    _dirty: list[Connection] = attrs.field(repr=False)
    _outbox_limit: int
    _budget: MemoryBudget = attrs.field(repr=False)
    last_received: float  # monotonic seconds
    opened_at: float = attrs.field(init=False)
    version: int = MQTT_5_0
    client_id: str = ""  # that it asked for
    session: Session | None = None
    outbox: list[bytes | memoryview] = attrs.field(factory=list, repr=False)
    outbox_bytes: int = 0
    shared: int = 0  # pieces in the outbox that may lie in others, too
    pending: int = 0  # jobs that it caused
    is_congested: bool = False
    ending: CloseReason | None = None
    maximum_packet_size: int = MAX_PACKET_SIZE
    topic_aliases: dict[int, str] = attrs.field(factory=dict, repr=False)  # the peer's
    aliases: OutgoingAliases | None = None  # those that the peer takes; None for none
    alias_bytes: int = 0  # of the topics of all aliases
    silence_s: float = 0.0  # one and a half keep-alives; 0 for no keep-alive
    timer: Timer | None = None
    was_refused: bool = False
    wants_reasons: bool = False  # asked for problem information, by name
    receive_maximum: int = 0  # what it was told: QoS 2 messages that it may leave unreleased
    counted_for: tuple[str | None, str | None] = (None, None)  # user and network
    certificate: str | None = None  # the name in the peer's certificate, which TLS has verified
    method: str | None = None  # of enhanced authentication
    verification: PendingAuth | None = None
    held: deque[tuple[Publish, float]] | None = None  # see Backpressure in overflow.py; with the moments since when
    held_bytes: int = 0  # of those
    journal: Journal | None = attrs.field(default=None, kw_only=True, repr=False)
    staged: list[bytes | memoryview] = attrs.field(factory=list, init=False, repr=False)
    sealed: list[bytes | memoryview] = attrs.field(factory=list, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.opened_at = self.last_received
        if self.journal is None:
            self.staged = self.outbox

    @property
    def is_full(self) -> bool:
        """Whether what can wait should wait in the session's queue."""
        return self.is_congested or self.outbox_bytes >= self._outbox_limit

    @property
    def has_backlog(self) -> bool:
        """Whether messages wait for this connection, or packets of it, so that :meth:`Broker.drained` has something to
        do.
        """
        session = self.session
        return session is not None and bool(
            self.held
            or session.waiting0.items
            or session.outbound.waiting.items
            or session.outbound.resend
            or session.cursors
        )

    @property
    def is_held(self) -> bool:
        """Whether its next packet has to wait: what it caused is not done yet, its credentials are being verified, or
        the disk is behind: whoever went on sending would fill the memory.

        When it no longer has to, the connection is among the dirty ones, but for the disk.
        """
        journal = self.journal
        if journal is not None and journal.waiting_bytes >= journal.most_bytes:
            return True
        return self.pending > 0 or (self.verification is not None and self.session is None)

    def job_done(self) -> None:
        """One job that it caused is done."""
        self.pending -= 1
        if not self.pending:
            self._dirty.append(self)

    def write(self, frame: bytes | memoryview) -> None:
        """Stage encoded bytes."""
        if self.ending is not None:
            return
        staged = self.staged
        if not staged:
            self._dirty.append(self)
        staged.append(frame)
        self.outbox_bytes += len(frame)

    def seal(self) -> None:
        """All that is staged waits for the cut that is taken now, and so does what is sealed already."""
        if self.sealed:
            self.sealed.extend(self.staged)
            self.staged.clear()
        else:
            self.sealed, self.staged = self.staged, self.sealed

    def release(self) -> None:
        """The cut is durable."""
        self.outbox.extend(self.sealed)
        self.sealed.clear()

    def send(self, packet: Packet) -> None:
        """Send anything but PUBLISH. A packet larger than the peer accepts, a SUBACK of a thousand codes for example,
        cannot be left out: the connection ends (MQTT-3.1.2-24).
        """
        frame = encode(packet, self.version)
        if len(frame) <= self.maximum_packet_size:
            self.write(frame)
        else:
            self.disconnect(ReasonCode.PACKET_TOO_LARGE, "the answer is larger than the maximum packet size")

    def acknowledge(self, packet_id: int, kind: bytes = PUBACK) -> None:
        """Send an acknowledgement with success, the most frequent packet of all: four bytes."""
        self.write(kind + packet_id.to_bytes(2, "big"))

    def publish(self, delivery: Delivery, now: Instant) -> bool:
        """Send a PUBLISH. False if it is larger than the peer accepts: it was not sent."""
        if self.aliases is not None and self._publish_aliased(self.aliases, delivery, now, dup=0):
            return True
        message = delivery.message
        frame = message.frame(
            self.version, delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id, now
        )
        if len(frame) < LARGE_BYTES > len(message.payload) and len(frame) <= self.maximum_packet_size:
            self.write(frame)
            return True
        return self._put(message, frame)

    def publish_again(self, delivery: Delivery, now: Instant) -> bool:
        """Send a PUBLISH that an earlier connection may have seen, with DUP set. False as in :meth:`publish`."""
        if self.aliases is not None and self._publish_aliased(self.aliases, delivery, now, dup=8):
            return True
        frame = delivery.message.duplicate(
            self.version, delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id, now
        )
        return self._put(delivery.message, frame)

    def _publish_aliased(self, aliases: OutgoingAliases, delivery: Delivery, now: Instant, *, dup: int) -> bool:
        """Send a PUBLISH with a topic alias. False if there is none left for its topic, or if it would be too large."""
        message = delivery.message
        alias = aliases.of(message.topic)
        if alias is None:
            return False
        flags = dup | delivery.qos << 1 | delivery.retain
        topic = "" if alias.is_known else message.topic
        ids, packet_id = delivery.subscription_ids, delivery.packet_id
        frame = message.aliased(flags, ids, packet_id, now, alias=alias.number, topic=topic)
        if not self._put(message, frame):
            return False
        if not alias.is_known:
            self.alias_bytes += aliases.remember(message.topic, alias)
        return True

    def _put(self, message: Message, frame: bytes) -> bool:
        payload = message.payload
        if len(frame) < LARGE_BYTES > len(payload):
            if len(frame) > self.maximum_packet_size:
                return False
            self.write(frame)
            return True
        return self._put_large(frame, payload if message.is_large else b"")

    def _put_large(self, frame: bytes, payload: bytes) -> bool:
        if len(frame) + len(payload) > self.maximum_packet_size:
            return False
        if len(frame) < LARGE_BYTES:
            self.write(frame)
        else:
            self._write_shared(frame)
        if payload:
            self._write_shared(payload)
        return True

    def _write_shared(self, piece: bytes) -> None:
        """Append bytes that may lie in many outboxes. Invariant: memoryviews in the outbox are in the budget, and
        ``shared`` is their number.
        """
        if self.ending is None:
            self.shared += 1
            self._budget.share(piece)
            self.write(memoryview(piece))

    def pieces(self) -> Iterable[bytes | memoryview]:
        """All that waits to be written, in order."""
        return self.outbox if self.journal is None else (*self.outbox, *self.sealed, *self.staged)

    def take(self) -> bytes:
        """Empty the outbox."""
        outbox = self.outbox
        data = bytes(outbox[0]) if len(outbox) == 1 else b"".join(outbox)
        if self.shared:
            self._let_go(outbox)
        outbox.clear()
        self.outbox_bytes -= len(data)
        return data

    def take_some(self, at_most: int) -> bytes | memoryview:
        """Take up to this many bytes out of the outbox. A large payload is not copied."""
        outbox = self.outbox
        size = pieces = 0
        for piece in outbox:
            if size + len(piece) > at_most:
                break
            size += len(piece)
            pieces += 1
        data: bytes | memoryview
        if pieces:
            data = b"".join(outbox[:pieces])
            self._let_go(outbox[:pieces])
            del outbox[:pieces]
        else:
            first = outbox[0]
            data, outbox[0] = first[:at_most], first[at_most:]
            size = at_most
        self.outbox_bytes -= size
        return data

    def discard(self) -> None:
        """Throw away what waits to be written."""
        for pieces in (self.outbox, self.sealed, self.staged):
            self._let_go(pieces)
            pieces.clear()
        self.outbox_bytes = 0

    def _let_go(self, pieces: Iterable[bytes | memoryview]) -> None:
        if not self.shared:
            return
        for piece in pieces:
            if isinstance(piece, memoryview):
                self.shared -= 1
                self._budget.unshare(cast("bytes", piece.obj))  # of a part: the whole

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, ending: CloseReason) -> None:
        """Close after what is in the outbox. The first reason counts."""
        if self.ending is None:
            if not self.outbox:
                self._dirty.append(self)
            self.ending = ending

    def disconnect(self, reason_code: int, reason: str) -> None:
        """End the connection with a reason, in the way that the peer's version and state allow.

        MQTT 5.0: CONNACK before the session is there, DISCONNECT after. 3.1.1 has no DISCONNECT from servers: just a
        close.
        """
        if self.session is None:
            self.refuse(reason_code, reason)
            return
        if self.version == MQTT_5_0 and self.ending is None:
            frame = encode(
                Disconnect(reason_code, DisconnectProperties(reason_string=self._reason_string(reason))), MQTT_5_0
            )
            if len(frame) > self.maximum_packet_size:
                # The reason string must not be the cause of a packet that is too large (MQTT-3.14.2-3).
                frame = encode(Disconnect(reason_code), MQTT_5_0)
            if len(frame) <= self.maximum_packet_size:
                self.write(frame)
        self.close(CloseReason(reason_code, reason))

    def refuse(self, reason_code: int, reason: str) -> None:
        """Answer CONNECT with a refusal and close. 3.1.1 has codes for a few reasons only; for the others, a close."""
        if self.ending is not None:
            return
        self.was_refused = True
        if self.version == MQTT_5_0:
            frame = encode(Connack(False, reason_code, ConnackProperties(reason_string=self._reason_string(reason))))
            if len(frame) > self.maximum_packet_size:
                frame = encode(Connack(False, reason_code))  # MQTT-3.2.2-19
            if len(frame) <= self.maximum_packet_size:
                self.write(frame)
        elif connack_return_code(reason_code) is not None:
            self.send(Connack(False, reason_code))
        self.close(CloseReason(reason_code, reason))

    def refuse_broken(self, reason_code: int, reason: str, version: int | None) -> None:
        """Answer what was to be a CONNECT and is none. ``version`` is what the decoder has read of it."""
        if version is not None:
            self.version = version
            self.refuse(reason_code, reason)
        elif reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            # The versions that are asked for and not supported are older ones: they understand the old CONNACK.
            self.version = MQTT_3_1_1
            self.refuse(reason_code, reason)
        else:
            # No MQTT at all, perhaps: say nothing.
            self.close(CloseReason(reason_code, reason))

    def detail(self, code: ReasonCode) -> ReasonCode:
        """A reason code that changes nothing, for those who asked for details: to the others it is a success."""
        return code if self.wants_reasons else ReasonCode.SUCCESS

    def _reason_string(self, reason: str) -> str | None:
        """Reasons in words go to those who asked for them: some small clients cannot read such a packet."""
        return reason if self.wants_reasons else None


@attrs.define(eq=False)
class PendingAuth:
    """A verdict that is being waited for.

    ``packet`` is the CONNECT, None when a client that is in shows another token. ``held`` is what came behind the
    CONNECT meanwhile: clients need not wait for CONNACK (MQTT 5.0, 3.1.4).
    """

    connection: Connection
    credentials: Credentials
    packet: Connect | None
    held: list[Packet] = attrs.Factory(list)

    @property
    def is_current(self) -> bool:
        """Whether anybody still wants to know."""
        return self.connection.verification is self and self.connection.ending is None


# -- session -----------------------------------------------------------------------------------------------------------


#: The name of the quota of all of them.
SESSIONS: Final = "sessions"

#: Shorter client identifiers are not counted: the limit for sessions bounds them.
_SHORT_NAME: Final = 1024

#: How often the name of a client is in memory, at most: it is part of the topics that are its own, once in hexadecimal.
_COPIES: Final = 8


class Share(Protocol):
    """A shared subscription, as its members know it."""

    def sort(self, session: Session) -> None:
        """Put a member where it belongs, by what it can do now."""


@attrs.define(eq=False)
class Session:
    """The state of one client identifier.

    ``connection`` is None while the client is away. ``waiting0`` has the QoS 0 messages that a slow but connected
    client could not take yet; QoS 0 for a client that is away is not kept (MQTT 5.0, 4.1 lets us choose).
    Invariant: of ``connection`` and ``expiry_timer`` at most one is set.
    """

    client_id: str
    outbound: Outbound
    waiting0: MessageQueue
    inbound: Inbound = attrs.Factory(Inbound)
    subscriptions: dict[str, GrantedSubscription] = attrs.Factory(dict)
    connection: Connection | None = None
    expiry_s: int = 0
    expiry_timer: Timer | None = None
    left_at: float | None = None  # monotonic seconds, while its client is away
    will: Will | None = None
    will_timer: Timer | None = None
    user: str | None = None  # who its client proved to be
    permissions: Permissions | None = None  # None for everything
    has_lost_rights: bool = False  # perhaps: what waits is looked at, as it may be of a topic that is forbidden by now
    shares: dict[Share, None] = attrs.Factory(dict)  # that it is a member of
    waits_in: dict[Share, None] = attrs.Factory(dict)  # those that give it nothing before it has caught up
    cursors: dict[str, RetainedCursor] = attrs.Factory(dict)  # retained messages that it is still to get, by filter
    subscription_bytes: int = 0  # what its subscriptions cost
    has_ids: bool = False  # has given a subscription identifier, once
    persister: SessionPersister | None = attrs.field(default=None, init=False)  # see persist()
    is_over: bool = False  # ended; work that was begun for it is dropped

    def persist(self, persister: SessionPersister | None) -> None:
        """Have all that happens to it written down from now on; with None, no longer."""
        self.persister = self.outbound.persister = self.outbound.waiting.persister = persister

    def save(self) -> None:
        """Write down that expiry, user, will, or whether its client is here has changed, if it is written down."""
        if self.persister is not None:
            will_at = None if self.will_timer is None else self.will_timer.when
            number = self.persister.number
            record = SessionRecord(number, self.expiry_s, self.user, self.left_at, self.will, will_at)
            self.persister.save(self.client_id, record)

    def forget_records(self) -> None:
        """Remove what is written of it, as it is over, or is to end with its connection from now on."""
        if self.persister is not None:
            self.persister.end(self.client_id, self.subscriptions, self.inbound.unreleased)
            self.persist(None)

    @property
    def ends_with_connection(self) -> bool:
        return self.expiry_s == 0

    @property
    def ends_at(self) -> float | None:
        """Monotonic seconds; None while its client is here, and for never."""
        return None if self.left_at is None or self.expiry_s == NEVER_EXPIRES else self.left_at + self.expiry_s

    @property
    def held_bytes(self) -> int:
        """The messages that it makes the broker hold."""
        return self.waiting0.bytes + self.outbound.waiting.bytes + self.outbound.bytes

    def may_get(self, topic: str) -> bool:
        """Whether what waits, of this topic, is still to be sent."""
        return not self.has_lost_rights or self.permissions is None or self.permissions.may_subscribe(topic)

    @property
    def is_flowing(self) -> bool:
        """Connected and taking messages as they come."""
        return self.connection is not None and self.outbound.is_open


class _Away:
    """Sessions whose clients are away and for whom no message waits: who left first comes first, of all and of each
    user. Whoever has used his quota up asks for one of his own at each CONNECT, and costs no look at those of others.
    """

    __slots__ = ("_all", "_of")

    def __init__(self) -> None:
        self._all: OrderedDict[Session, None] = OrderedDict()
        self._of: dict[str | None, OrderedDict[Session, None]] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._all)

    def __contains__(self, session: Session) -> bool:
        return session in self._all

    def add(self, session: Session) -> None:
        """At the end, unless it is here already."""
        if session not in self._all:
            self._all[session] = None
            self._of.setdefault(session.user, OrderedDict())[session] = None

    def discard(self, session: Session) -> None:
        """If it is here."""
        if session in self._all:
            del self._all[session]
            own = self._of[session.user]
            del own[session]
            if not own:
                del self._of[session.user]

    def first(self) -> Session | None:
        """Of all."""
        return next(iter(self._all), None)

    def first_of(self, user: str | None) -> Session | None:
        """Of this user."""
        return next(iter(self._of.get(user, ())), None)


@attrs.define(eq=False)
class Sessions:
    """All sessions by client identifier. Invariant: one session per identifier, one connection per session."""

    _limits: BrokerLimits
    _budget: MemoryBudget
    _persistence: BrokerPersistence | None = None
    _by_client: dict[str, Session] = attrs.Factory(dict)
    #: The same client identifiers, for what looks at all of them, some at a time.
    _sorted: KeyIndex[str] = attrs.Factory(KeyIndex)
    _away: _Away = attrs.Factory(_Away)
    #: Whose they are.
    shares: Shares = attrs.field(init=False)
    #: The session of a client identifier, None if there is none. The dictionary's own method: every request asks.
    get: Callable[[str], Session | None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.get = self._by_client.get
        self.shares = Shares(SESSIONS, self._limits.sessions, self._limits.sessions_per_user)

    def __len__(self) -> int:
        return len(self._by_client)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._by_client

    def all(self) -> tuple[Session, ...]:
        return tuple(self._by_client.values())

    def in_order(self, at: str, count: int) -> list[Session]:
        """So many, by client identifier, from ``at`` on."""
        some = islice(self._sorted.keys_from(at, inclusive=True), count)
        return [self._by_client[client_id] for client_id in some]

    def lacking(self, client_id: str, user: str | None) -> str | None:
        """The name of the quota that does not allow this client a session, and no other session can make room."""
        if client_id in self._by_client:
            return None
        quota = self.shares.lacking(user, 1, 1)
        return None if quota is None or self.dispensable(user, quota) is not None else quota

    def create(self, client_id: str, user: str | None = None, *, is_lasting: bool = False) -> Session:
        """A new session of a user; ``is_lasting`` if it is to outlive its connections."""
        outbound = Outbound(self._queue(), self._budget, self._limits.in_flight_bytes)
        session = Session(client_id, outbound, self._queue())
        session.waiting0.owner = session.outbound.waiting.owner = client_id
        if is_lasting and self._persistence is not None:
            session.persist(self._persistence.persister())
        session.user = user
        self.shares.add(user, 1)
        self._by_client[client_id] = session
        self._sorted.add(client_id)
        self._budget.total += name_bytes(client_id)
        return session

    def assign(self, session: Session, user: str | None) -> None:
        """The session is of another user than it was thought to be."""
        is_away = session in self._away
        self._away.discard(session)
        self.shares.add(session.user, -1)
        session.user = user
        self.shares.add(user, 1)
        if is_away:
            self._away.add(session)

    def has_room_for_name(self, client_id: str) -> bool:
        """Whether a session may have this name. A long one has no share in what is reserved for every session."""
        more = name_bytes(client_id)
        return not more or self._budget.total + more <= self._budget.limit

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold. For tests: looks at everything."""
        users = Counter(session.user for session in self._by_client.values())
        if any(self.shares.of(user) != count for user, count in users.items()):
            yield f"{users} have sessions, and not what is noted"
        yield from self.shares.violations()
        if list(self._sorted) != sorted(self._by_client):
            yield "the list of client identifiers is not that of the sessions"
        if any(session.connection is not None or session.is_over or session.held_bytes for session in self._away):
            yield "a session that is in use counts as dispensable"

    def _queue(self) -> MessageQueue:
        return MessageQueue(self._limits.queued_messages, self._limits.queued_bytes, self._budget)

    def remove(self, session: Session) -> None:
        """Forget a session and all that it holds, its will and its subscriptions aside."""
        session.forget_records()
        del self._by_client[session.client_id]
        self.shares.add(session.user, -1)
        self._sorted.remove(session.client_id)
        self._budget.total -= name_bytes(session.client_id)
        self._away.discard(session)
        session.is_over = True
        session.cursors.clear()
        session.waiting0.clear()
        session.outbound.reset()
        self._budget.total -= UNRELEASED_BYTES * len(session.inbound.unreleased)
        session.inbound.unreleased.clear()

    # -- who is away --------------------------------------------------------------------------------------------------

    def client_left(self, session: Session) -> None:
        """The session's client went away; the session stays."""
        if not session.held_bytes:
            self._away.add(session)

    def queue_filled(self, session: Session) -> None:
        """The session of an absent client gets its first message."""
        self._away.discard(session)

    def queue_emptied(self, session: Session) -> None:
        """The session lost what it held, and may not even have a client that is here."""
        if session.connection is None and not session.is_over:
            self._away.add(session)

    def client_came(self, session: Session) -> None:
        """The session's client is here (again)."""
        self._away.discard(session)

    def dispensable(self, user: str | None, quota: str) -> Session | None:
        """What makes room for a session of this user, who lacks this quota. Of the sessions that hold no message, the
        one whose client has been away longest, or whose last message expired first; one of his own, unless he has few.
        """
        if quota == SESSIONS and self.shares.has_little(user, 1):
            return self._away.first()
        return self._away.first_of(user)


def name_bytes(client_id: str) -> int:
    """What a long client identifier costs."""
    return _COPIES * getsizeof(client_id) if len(client_id) > _SHORT_NAME else 0


# -- view --------------------------------------------------------------------------------------------------------------
#
# What people look at: sessions as values. They do not change any more when the sessions do.


@attrs.frozen(kw_only=True)
class SessionView:
    """One session at one moment.

    ``subscriptions`` maps topic filters to the granted QoS. ``queued`` messages did not go out yet, ``in_flight`` ones
    are not acknowledged by the client, and ``unreleased`` are QoS 2 messages of the client that wait for its PUBREL.
    ``expiry_s`` is how long the session outlives its connection, None for ever.
    """

    client_id: str
    is_connected: bool
    user: str | None
    subscriptions: Mapping[str, int]
    queued: int
    in_flight: int
    unreleased: int
    expiry_s: int | None
    has_will: bool


def view_of(session: Session) -> SessionView:
    return SessionView(
        client_id=session.client_id,
        is_connected=session.connection is not None,
        user=session.user,
        subscriptions={name: grant.qos for name, grant in session.subscriptions.items()},
        queued=len(session.outbound.waiting.items) + len(session.waiting0.items),
        in_flight=len(session.outbound.in_flight),
        unreleased=len(session.inbound.unreleased),
        expiry_s=None if session.expiry_s == NEVER_EXPIRES else session.expiry_s,
        has_will=session.will is not None,
    )
