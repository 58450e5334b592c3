"""What happened in the broker: counters, what clients lost, what listeners hear, and what the runtime is to log."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import attrs

from statestore_client.mqtt.packets import ReasonCode
from statestore_client.server.broker.records import DroppedMessagesRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker.session import Connection, PendingAuth, Session
    from statestore_client.server.journal import JournalStream
    from statestore_client.wire.instant import Instant

T = TypeVar("T")

# -- counters ----------------------------------------------------------------------------------------------------------
#
# What happened, in numbers: nothing is dropped without being counted here.


@attrs.define(eq=False)
class Counters:
    """Totals since the broker was made."""

    connects: int = 0
    refused_connects: int = 0
    takeovers: int = 0
    held_connects: int = 0  # of client identifiers that keep stealing their session
    most_clients: int = 0  # connected at the same time
    received_bytes: int = 0  # of all connections, as they came from and went to the sockets
    sent_bytes: int = 0
    received_messages: int = 0
    sent_messages: int = 0  # those sent again count again
    refused_messages: int = 0  # answered with a reason code of 0x80 or more, or by closing a 3.1.1 connection
    dropped_qos0: int = 0  # the subscriber's queue was full
    dropped_too_large: int = 0  # larger than the subscriber's maximum packet size (MQTT 5.0, 3.1.2.11.4)
    dropped_expired: int = 0
    dropped_forbidden: int = 0  # the subscriber lost the right to the topic while they waited
    dropped_full: int = 0  # QoS 1 and 2: the subscriber's queue was full, or it held most when the server was
    ended_full: int = 0  # sessions that ended because of that
    dropped_unowned: int = 0  # a reply to a full queue, where publishers are refused a will, too
    not_retained: int = 0  # QoS 0 messages delivered but, the store being full, not retained
    application_errors: int = 0
    evicted_sessions: int = 0  # ended early, to make room for a new one

    @property
    def dropped(self) -> int:
        """Messages that a subscriber did not get."""
        given_up = self.dropped_full + self.dropped_unowned
        others = self.dropped_too_large + self.dropped_expired + self.dropped_forbidden
        return given_up + self.dropped_qos0 + others


# -- events ------------------------------------------------------------------------------------------------------------
#
# What clients do, told to a program that asked for it, mostly a test.
#
# The parts of the broker tell it where they do it: an event is told after it was accepted and done, in the order in
# which it was done, and in the middle of everything. The receiver may take notes, and calls nobody.


class BrokerEvents(Protocol):
    """Receives them."""

    def connected(self, connection: Connection, client_id: str) -> None:
        """CONNECT was accepted."""

    def disconnected(self, connection: Connection, client_id: str) -> None:
        """A client that was connected is not any more; ``connection.ending`` says why."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        """One filter of a SUBSCRIBE: the granted QoS, None if it was refused."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """One filter of an UNSUBSCRIBE."""

    def published(self, client_id: str, packet: Publish) -> None:
        """A message of a client, or its will, was accepted. Its topic is in full, whatever alias the client used."""


# -- dropped messages --------------------------------------------------------------------------------------------------
#
# What sessions lost because their queue was full: how many messages and since when, until their client was told.
#
# An acknowledgement tells a publisher that the server has the message, not that each subscriber had room for it. So who
# bears a full queue, the subscriber, has to hear of it: in the CONNACK of its next connection. The count survives its
# session, and a restart.


#: The user property of CONNACK: ``21504 since 2026-01-31T12:00:00.000Z``.
DROPPED_MESSAGES: Final = "dropped-messages"

#: A queue that stays full is told to the log now and then, not with each message.
_LOG_PAUSE_S: Final = 60.0

#: Publishers that are refused try again.
_REFUSAL_PAUSE_S: Final = 1.0

#: Longer client identifiers are not remembered once their session has ended: nothing else bounds their bytes then.
_LONG_NAME: Final = 1024


@attrs.frozen(eq=False)
class QueueOverflow:
    """For the log: this session loses messages. ``dropped`` is how many so far, ``since`` a time in ISO 8601."""

    session: Session
    dropped: int
    since: str


@attrs.define(eq=False)
class _Dropped:
    """``since_ms`` is wall clock; ``log_again_at`` monotonic."""

    user: str | None
    count: int
    since_ms: int
    log_again_at: float = float("-inf")


@attrs.define(eq=False)
class DroppedMessages:
    """By client identifier, at most ``limit``: those whose first loss is oldest are forgotten first.

    ``overflows`` are for the log.
    """

    _limit: int
    _stream: JournalStream | None = None
    _by_client: OrderedDict[str, _Dropped] = attrs.Factory(OrderedDict)
    overflows: list[QueueOverflow] = attrs.Factory(list)
    _refusal_again_at: float = float("-inf")

    def __len__(self) -> int:
        """Clients that were not told yet."""
        return len(self._by_client)

    def note(self, session: Session, now: Instant, count: int = 1) -> None:
        """The session does not get this many messages."""
        client_id = session.client_id
        loss = self._by_client.get(client_id)
        if loss is None or loss.user != session.user:
            loss = _Dropped(session.user, 0, now.wall_ms)
            self._put(client_id, loss)
        loss.count += count
        if self._stream is not None:
            self._stream.put(client_id, DroppedMessagesRecord(loss.user, loss.count, loss.since_ms))
        if now.monotonic >= loss.log_again_at:
            loss.log_again_at = now.monotonic + _LOG_PAUSE_S
            self.overflows.append(QueueOverflow(session, loss.count, _text(loss.since_ms)))

    def note_refusal(self, session: Session, now: Instant) -> None:
        """The session loses nothing, but a publisher is refused because of it: now and then the log says so."""
        if now.monotonic >= self._refusal_again_at:
            self._refusal_again_at = now.monotonic + _REFUSAL_PAUSE_S
            self.overflows.append(QueueOverflow(session, 0, _text(now.wall_ms)))

    def _put(self, client_id: str, loss: _Dropped) -> None:
        self._by_client[client_id] = loss
        if len(self._by_client) > max(1, self._limit):
            self.forget(next(iter(self._by_client)))

    def notice_for(self, client_id: str, user: str | None) -> str | None:
        """What CONNACK says to this client, None for nothing. Call :meth:`forget` when it does."""
        loss = self._by_client.get(client_id)
        return None if loss is None or loss.user != user else f"{loss.count} since {_text(loss.since_ms)}"

    def forget(self, client_id: str) -> None:
        """The client was told."""
        if self._by_client.pop(client_id, None) is not None and self._stream is not None:
            self._stream.remove(client_id)

    def ended(self, session: Session) -> None:
        """The session is over. Its client is still told, if it comes again."""
        if len(session.client_id) > _LONG_NAME:
            self.forget(session.client_id)

    def load(self, records: Iterable[tuple[str, DroppedMessagesRecord]]) -> None:
        """They are in the journal already. A server that may remember fewer than the one before forgets the oldest."""
        for client_id, record in sorted(records, key=_since):
            self._put(client_id, _Dropped(record.user, record.count, record.since_ms))


def _since(item: tuple[str, DroppedMessagesRecord]) -> int:
    return item[1].since_ms


def _text(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- reports -----------------------------------------------------------------------------------------------------------


#: What of refusals whoever runs the server wants to know: who may not, and who has enough.
DENIALS: Final = frozenset((ReasonCode.NOT_AUTHORIZED, ReasonCode.QUOTA_EXCEEDED))

#: Denials kept for the log, of one call into the broker. The others are counted.
_MOST: Final = 64


@attrs.define(eq=False)
class Denial:
    """Something that a client asked for and did not get, with the reason code: it may not (0x87), there was no room
    for it (0x97), or there was nowhere to answer (0x83). For the log. ``peer`` is None while the client is away; so
    many ``more`` came behind this one, and there was no room for them here.
    """

    peer: str | None
    client_id: str
    user: str | None
    reason_code: int
    action: str
    what: str
    more: int = 0


@attrs.frozen(eq=False)
class WrongClock:
    """For the log: this client's clock was ahead of the server's by so much. ``peer`` is None while it is away."""

    peer: str | None
    client_id: str
    user: str | None
    ahead_s: float


@attrs.define(eq=False)
class Reports:
    """Take what there is after each call into the broker."""

    _counters: Counters
    _dropped_messages: DroppedMessages
    _denials: list[Denial] = attrs.Factory(list)
    _faults: list[Exception] = attrs.Factory(list)
    _verifications: list[PendingAuth] = attrs.Factory(list)
    _clocks: list[WrongClock] = attrs.Factory(list)
    #: All that there is to be taken; to be looked at only.
    news: tuple[Sequence[object], ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.news = (self._denials, self._faults, self._verifications, self._clocks, self._dropped_messages.overflows)

    def note_denial(self, session: Session, reason_code: int, action: str, what: str) -> None:
        """A client did not get something."""
        if len(self._denials) < _MOST:
            peer = None if session.connection is None else session.connection.peer
            self._denials.append(Denial(peer, session.client_id, session.user, reason_code, action, what))
        else:
            self._denials[-1].more += 1

    def note_fault(self, error: Exception) -> None:
        """The application failed."""
        self._counters.application_errors += 1
        self._faults.append(error)

    def note_verification(self, verification: PendingAuth) -> None:
        """The gatekeeper cannot decide at once."""
        self._verifications.append(verification)

    def note_clock(self, session: Session, ahead_s: float) -> None:
        """A client's clock is wrong."""
        if len(self._clocks) < _MOST:
            peer = None if session.connection is None else session.connection.peer
            self._clocks.append(WrongClock(peer, session.client_id, session.user, ahead_s))

    def take_denials(self) -> list[Denial]:
        """What clients did not get since the last call: they may not have it, or there was no room."""
        return _taken(self._denials)

    def take_overflows(self) -> list[QueueOverflow]:
        """Sessions that lose messages because their queue is full, each one now and then."""
        return _taken(self._dropped_messages.overflows)

    def take_clocks(self) -> list[WrongClock]:
        """Clients whose clocks are ahead, once for each request that told."""
        return _taken(self._clocks)

    def take_faults(self) -> list[Exception]:
        """Exceptions that escaped the application."""
        return _taken(self._faults)

    def take_verifications(self) -> list[PendingAuth]:
        """Credentials to be verified elsewhere, each once. :meth:`Broker.verified` takes the verdict."""
        return _taken(self._verifications)


def _taken(news: list[T]) -> list[T]:
    taken = news.copy()
    news.clear()
    return taken


# -- usage -------------------------------------------------------------------------------------------------------------
#
# What the broker holds at one moment.


@attrs.frozen
class BrokerUsage:
    """``clients`` are connected; ``losing_clients`` were not told yet how many messages they have lost. ``held_bytes``
    is what ``BrokerLimits.held_bytes`` is compared with.
    """

    sessions: int
    clients: int
    losing_clients: int
    subscriptions: int
    subscription_bytes: int
    retained_messages: int
    retained_bytes: int
    held_bytes: int
