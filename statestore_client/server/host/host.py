"""Hosts the state store as a client of a foreign broker: requests come in as messages, and answers leave as messages.

What holds, whatever is lost:

* A request is acknowledged to the broker once the broker has acknowledged its response, and both wait until its outcome
  is durable. What was not acknowledged comes again, when the connection stands again or the next host connects. (A
  broker may take the acknowledgement of a host that is killed, and drop the response before it.)
* A request that comes again is answered from memory, with the same answer. It is the same if its client, correlation
  data and content are: a broker does not hand on that its publisher has sent a message twice.
* What the broker has taken is what it has acknowledged. The rest is sent again on the next connection, in the same
  order, as a repeated PUBLISH if the broker has kept the session.
* The host connects when its store is restored and not before: a session that the broker has kept brings requests at
  once.
* Queues are bounded. What is too much waits in the broker, because requests are not acknowledged.

Output commit is that of :class:`~statestore_client.server.runtime.storage.GroupCommit`: what is to be said is *staged*,
*sealed* when the journal is cut, and *released* when that cut is durable.

Invariant: outputs keep the order of the requests that caused them, in all of these places.
Invariant: at most as many messages are unacknowledged on a connection as its broker allows.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from statestore_client.errors import ServerError, TimestampError
from statestore_client.mqtt.packets.types import Publish, PublishProperties, ReasonCode
from statestore_client.server.broker.application import (
    Application,
    Deliver,
    DisconnectClient,
    Drop,
    InOrder,
    ReportClock,
    ReportDenial,
    Route,
    Told,
)
from statestore_client.server.host.askers import asker_of
from statestore_client.server.host.notices import Notice, Notices
from statestore_client.server.host.registrations import REGISTRATION_S, Observation, Observers, Registrations
from statestore_client.wire.commands import KeyNotify, decode_command
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.protocol import (
    COMMAND_TOPIC,
    FIRST_ERROR,
    QOS,
    TIMESTAMP,
    Dialect,
    notification_topic,
    parse_notification_topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from statestore_client.server.broker.application import Effect
    from statestore_client.server.journal import Journal, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.wire.instant import Instant

# -- outputs: what the runtime carries out, in this order -------------------------------------------------------------


@hot_value
class Send:
    """Publish with QoS 1; :meth:`Host.published` tells of its PUBACK. ``is_again``: it was sent on an earlier
    connection of the session, and is the same PUBLISH, with DUP.
    """

    delivery_id: int
    message: Publish
    is_again: bool = False


@hot_value
class Acknowledge:
    """PUBACK of a request, by its packet identifier."""

    packet_id: int


Output: TypeAlias = "Send | Acknowledge"


class HostedApplication(Application, Protocol):
    """The state store."""

    def tell_again(self, told: Told, client_ids: Iterable[str]) -> Sequence[Effect]:
        """What these clients were to be told in an earlier life. Raises DamagedRecordError."""


# -- limits ------------------------------------------------------------------------------------------------------------

#: Bytes of answers that wait for the broker. With more, requests are not carried out; their senders have a window.
MOST_BYTES: Final = 32 * 1024 * 1024
#: The same for answers and notifications, in number: a change may have thousands of observers, who count as one.
MOST_OUTPUTS: Final = 4096

#: Stands in place of the packet identifier of a request without a timestamp: who hands it on gives it another one.
_ANY_ID: Final = 1


# -- queue -------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Debt:
    """Acknowledge a request on the ``connection`` on which it came, when ``waits_for`` is 0. That counts the responses
    that the broker has not acknowledged, and one more until the request has been carried out and its responses are
    sent. ``since`` is when the request came, in monotonic seconds.
    """

    packet_id: int
    connection: int
    since: float
    waits_for: int = 1


@hot_value
class _Response:
    message: Publish
    debt: _Debt


@attrs.define(eq=False)
class _Notifications:
    """Of one change, made when there is room for them."""

    effects: Iterator[Effect]
    notice: Notice | None


_Queued: TypeAlias = "_Response | _Debt | _Notifications"


@hot_value
class _Delivery:
    """Sent, and not acknowledged. Notifications have who observes what, and the moment when they were sent."""

    message: Publish
    observation: Observation | None = None
    moment: int = 0
    notice: Notice | None = None
    debt: _Debt | None = None


@attrs.define(eq=False)
class Counters:
    """Since the start."""

    requests: int = 0
    again: int = 0  # with DUP
    notifications: int = 0
    refused: int = 0  # messages of ours that the broker did not take
    faults: int = 0


class Host:
    """See the module. Times of ``now`` are as everywhere; packet identifiers are those of one connection."""

    def __init__(
        self,
        service: HostedApplication,
        observers: Observers,
        *,
        client_id: str,
        journal: Journal | None = None,
        dialect: Dialect = Dialect.SERVICE,
        id_property: str | None = None,
        registration_s: float = REGISTRATION_S,
    ) -> None:
        """``client_id`` is the host's own, ``id_property`` the user property in which the broker says who publishes."""
        self._service = service
        self._client_id = client_id
        self._journal = journal
        self._dialect = dialect
        self._id_property = id_property
        self._notices = Notices(journal)
        self.registrations = Registrations(observers, registration_s, journal)
        self.counters = Counters()
        #: Whether the store is restored, so that requests may come.
        self.is_restored: bool = False
        self.is_connected: bool = False
        #: What the runtime is to carry out; it empties it.
        self.outbox: list[Output] = []
        #: Lines for the log: what was refused, and exceptions of the service.
        self.reports: list[ReportDenial | ReportClock | Drop | DisconnectClient | Exception] = []
        self._connection = 0
        self._lost_before = 0  # requests of earlier connections do not come again: the broker has lost the session
        self._window = 0  # that the broker takes unacknowledged
        self._last_delivery = 0
        self._waiting: deque[tuple[Publish, _Debt]] = deque()  # requests that there is no room for
        self._staged: list[_Queued] = []
        self._sealed: list[_Queued] = []
        self._ready: deque[_Queued] = deque()
        self._again: deque[int] = deque()  # deliveries of earlier connections, to be sent first
        self._debts: deque[_Debt] = deque()  # of this connection, in the order in which its requests came
        self._is_same_session = False
        self._is_to_ask = False  # whether the broker tells of messages without subscribers
        self._deliveries: dict[int, _Delivery] = {}
        self._sent = 0  # of them, on this connection
        self._bytes = 0  # of all that is queued and in flight

    # -- what happens --------------------------------------------------------------------------------------------------

    def restore(self, storage: StoredRecords | None, now: Instant, *, is_warm: bool = False) -> None:
        """The store has all that there was, or there is nothing: connect. Who observed in an earlier life still does,
        and hears of what is still to be told. Raises DamagedRecordError.
        """
        del now, is_warm
        if storage is not None and self._journal is not None:
            least = self.registrations.restore(storage, self._journal.timeline)
            for notice, told in self._notices.restore(storage, least):
                effects = self._service.tell_again(told, self.registrations.told_of(told.key, notice.number))
                self._staged += [
                    _Notifications(iter(each.effects), notice) for each in effects if type(each) is InOrder
                ]
                if not effects:
                    self._notices.heard(notice)
        self.is_restored = True

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """Another host on the same log wrote this. What is the host's in it changes with each request: it is kept as
        records, and read by :meth:`restore`.
        """

    def rows(self) -> Iterator[Row]:
        """None: all of it is in those records."""
        return iter(())

    @property
    def state_bytes(self) -> int:
        """Of no weight beside that of the store."""
        return 0

    def connected(self, now: Instant, *, session_present: bool, receive_maximum: int) -> None:
        """A connection stands, on which the broker takes ``receive_maximum`` messages at a time."""
        self._connection += 1
        self.is_connected, self._window, self._sent = True, receive_maximum, 0
        self._is_same_session = session_present
        self.registrations.tells = None
        if session_present:
            self._waiting.clear()  # they come again
        else:
            self._lost_before = self._connection
        self._forget_the_question()
        self._again = deque(self._deliveries)
        self._debts.clear()
        self._is_to_ask = True
        self._pump()
        self._take_waiting(now)

    def disconnected(self) -> None:
        """It is gone. What is not acknowledged is kept for the next one."""
        self.is_connected = False
        self.outbox.clear()

    def receive(self, message: Publish, now: Instant) -> None:
        """A message of the broker, on this connection."""
        debt = _Debt(message.packet_id, self._connection, now.monotonic)
        if debt.packet_id:
            self._debts.append(debt)
        if self._waiting or self.is_full:
            self._waiting.append((message, debt))
        else:
            self._handle(message, debt, now)

    def published(self, delivery_id: int, reason_code: int, now: Instant) -> None:
        """The PUBACK of a message of this connection."""
        delivery = self._deliveries.pop(delivery_id, None)
        if delivery is None:
            return
        self._sent -= 1
        self._bytes -= len(delivery.message.payload)
        self._notices.heard(delivery.notice)
        if delivery.debt is not None:
            self._settle(delivery.debt)
        if reason_code >= FIRST_ERROR:
            self.counters.refused += 1
        is_unheard = reason_code == ReasonCode.NO_MATCHING_SUBSCRIBERS
        if delivery.observation is not None and is_unheard:
            self.registrations.unheard(delivery.observation, delivery.moment)
        elif delivery.observation is None and delivery.moment:
            self.registrations.tells = is_unheard
        self._pump()
        self._take_waiting(now)

    def tick(self, now: Instant) -> None:
        """Time has passed: keys expire, and registrations."""
        self.registrations.tick(now.monotonic)
        self._stage_notifications(self._service.tick(now))
        self._take_waiting(now)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do (monotonic seconds)."""
        due = min(self._service.next_deadline() or inf, self.registrations.next_deadline() or inf)
        return None if due == inf else due

    # -- output commit -------------------------------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        """Whether something is staged."""
        return bool(self._staged)

    def take_dirty(self) -> tuple[Host, ...]:
        """Who has something staged."""
        return (self,) if self._staged else ()

    def seal(self) -> None:
        """What is staged waits for the cut of the journal that is taken now, and so does what is sealed already."""
        self._sealed += self._staged
        self._staged.clear()

    def release(self) -> None:
        """The cut is durable."""
        self._ready.extend(self._sealed)
        self._sealed.clear()
        self._pump()

    def caught_up(self, now: Instant) -> None:
        """There may be room for requests that wait."""
        self._take_waiting(now)

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether requests have to wait."""
        outputs = len(self._staged) + len(self._sealed) + len(self._ready)
        is_behind = self._journal is not None and self._journal.is_full
        return is_behind or outputs >= MOST_OUTPUTS or self._bytes >= MOST_BYTES

    @property
    def in_flight(self) -> int:
        """Messages that the broker has not acknowledged."""
        return len(self._deliveries)

    @property
    def waiting(self) -> int:
        """Requests that there is no room for."""
        return len(self._waiting)

    @property
    def open_requests(self) -> int:
        """Those of this connection that are not acknowledged."""
        return len(self._debts)

    def lag_s(self, now: float) -> float:
        """How long the oldest of them has been here (monotonic seconds); 0 if there is none."""
        return max(0.0, now - self._debts[0].since) if self._debts else 0.0

    def _take_waiting(self, now: Instant) -> None:
        while self._waiting and not self.is_full:
            self._handle(*self._waiting.popleft(), now)

    def _handle(self, message: Publish, debt: _Debt, now: Instant) -> None:
        """Its responses, then its acknowledgement, then what others are told of it."""
        self.counters.requests += 1
        self.counters.again += message.dup
        effects = self._effects(message, now) if message.topic == COMMAND_TOPIC else ()
        staged = self._staged
        for effect in effects:
            if type(effect) is Route:
                self._bytes += len(effect.message.payload)
                debt.waits_for += 1
                staged.append(_Response(effect.message, debt))
            elif not isinstance(effect, InOrder | Deliver | Route):
                self.reports.append(effect)
        staged.append(debt)
        if len(effects) > 1:
            self._stage_notifications(effects)

    def _effects(self, message: Publish, now: Instant) -> Sequence[Effect]:
        properties = message.properties
        asker = asker_of(properties, self._id_property)
        if message.packet_id and not any(name == TIMESTAMP for name, _ in properties.user_properties):
            # The service takes it for the same request then, if it has the same correlation data.
            message = attrs.evolve(message, dup=True, packet_id=_ANY_ID)
        try:
            if _KEY_NOTIFY in message.payload[:_VERB_WITHIN].upper():
                return self._observe(asker, message, now)
            return self._service.handle(asker, message, now)
        except Exception as error:  # noqa: BLE001 - our own defect; the other clients must not suffer from it
            self.counters.faults += 1
            self.reports.append(error)
            return ()

    def _observe(self, asker: str, message: Publish, now: Instant) -> Sequence[Effect]:
        """Probably a KEYNOTIFY. It is carried out each time that it comes."""
        try:
            command = decode_command(message.payload, self._dialect)
        except ServerError:
            command = None
        if not isinstance(command, KeyNotify):
            return self._service.handle(asker, message, now)
        observation, stamp = (asker, command.key), _stamp(message)
        if command.stop and self.registrations.is_outdated(observation, stamp):
            # What it was to end is over. What there is now stays, which is what this does.
            message = attrs.evolve(message, payload=KeyNotify(command.key).encode())
        effects = self._service.handle(asker, message, now)
        self.registrations.asked(observation, stamp, now.monotonic, self._notices.next_number)
        return effects

    def _stage_notifications(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, InOrder):
                self._staged.append(_Notifications(iter(effect.effects), self._notices.changed(effect.told)))

    # -- messages of ours ----------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Hand out what is ready, as far as the broker takes it."""
        if not self.is_connected:
            return
        again, ready = self._again, self._ready
        while again and self._sent < self._window:
            self._send_again(again.popleft())
        if again:
            return
        if self._is_to_ask and self._sent < self._window:
            self._is_to_ask = False
            self._ask_whether_it_tells()
        while ready:
            item = ready[0]
            if type(item) is _Response:
                if self._comes_again(item.debt.connection):
                    self._bytes -= len(item.message.payload)
                elif self._sent >= self._window:
                    return
                else:
                    self._send(_Delivery(item.message, debt=item.debt))
            elif type(item) is _Debt:
                self._settle(item)
            elif isinstance(item, _Notifications) and not self._notify(item.effects, item.notice):
                return
            ready.popleft()

    def _settle(self, debt: _Debt) -> None:
        """It waits for one thing less. Requests are acknowledged in the order in which they came (MQTT 5.0, 4.6)."""
        debt.waits_for -= 1
        debts = self._debts
        while debts and not debts[0].waits_for:
            self.outbox.append(Acknowledge(debts.popleft().packet_id))

    def _comes_again(self, connection: int) -> bool:
        """Whether the broker brings the requests of an earlier connection again that were not acknowledged there."""
        return self._lost_before <= connection < self._connection

    def _notify(self, effects: Iterator[Effect], notice: Notice | None) -> bool:
        """Whether all of them are sent."""
        while self._sent < self._window:
            effect = next(effects, None)
            if effect is None:
                self._notices.heard(notice)
                return True
            if isinstance(effect, Deliver | Route):
                self.counters.notifications += 1
                self._bytes += len(effect.message.payload)
                observation = parse_notification_topic(effect.message.topic)
                if notice is not None:
                    notice.untold += 1
                self._send(_Delivery(effect.message, observation, self.registrations.moment(), notice))
        return False

    def _send(self, delivery: _Delivery) -> None:
        self._last_delivery += 1
        self._deliveries[self._last_delivery] = delivery
        self._sent += 1
        self.outbox.append(Send(self._last_delivery, delivery.message))

    def _send_again(self, delivery_id: int) -> None:
        self._sent += 1
        self.outbox.append(Send(delivery_id, self._deliveries[delivery_id].message, self._is_same_session))

    def _ask_whether_it_tells(self) -> None:
        """Publish where nobody listens: does the broker say so? One that does is relied upon."""
        topic = notification_topic(self._client_id, _NO_KEY)
        message = Publish(topic, b"", QOS, False, False, 0, PublishProperties(message_expiry=1))
        self._send(_Delivery(message, None, self.registrations.moment()))

    def _forget_the_question(self) -> None:
        """It is asked again on each connection."""
        asked = [number for number, each in self._deliveries.items() if each.moment and each.observation is None]
        for number in asked:
            del self._deliveries[number]


def _stamp(message: Publish) -> HlcTimestamp | None:
    try:
        text = next((value for name, value in message.properties.user_properties if name == TIMESTAMP), None)
        return None if text is None else HlcTimestamp.parse(text)
    except TimestampError:
        return None  # the service refuses it


_KEY_NOTIFY: Final = b"KEYNOTIFY"
#: The verb stands in front of everything else.
_VERB_WITHIN: Final = 32
#: Of the message to nobody.
_NO_KEY: Final = b"nobody"
