"""After a restart: the broker's state from its records.

Clients that were here are awaited (:mod:`statestore_client.server.broker.lifecycle`). What was running out before
has gone on running out while the server was away, and what has run out is ended before the first client comes, in the
order of its deadlines.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.broker.memory import UNRELEASED_BYTES
from statestore_client.server.broker.message import Delivery, Message, will_bytes
from statestore_client.server.broker.records import (
    NO_PROPERTIES,
    CopiesRecord,
    DeliveryRecord,
    DroppedMessagesRecord,
    GrantRecord,
    MessageRecord,
    ReleaseRecord,
    SessionRecord,
    WillRecord,
)
from statestore_client.server.broker.retained import CursorRecord
from statestore_client.server.journal import DamagedRecordError, Stream, load, records_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.broker.journal_writer import BrokerPersistence, SessionPersister
    from statestore_client.server.broker.lifecycle import ReconnectGrace, SessionLifecycle, SessionPermissions
    from statestore_client.server.broker.scheduling import Timer
    from statestore_client.server.broker.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.server.broker.topic_tree import GrantedSubscription
    from statestore_client.server.journal import Changes, Row, StoredRecords, Timeline, WriteBatch
    from statestore_client.wire.instant import Instant


@attrs.define(eq=False)
class Recovery:
    """Fills an empty broker. Of a standby, sessions and retained messages are here before: :meth:`absorb`."""

    _state: State
    _lifecycle: SessionLifecycle
    _permissions: SessionPermissions
    _awaited: ReconnectGrace
    _sessions: StoredSessions = attrs.field(init=False)
    _messages: dict[int, Message] = attrs.field(factory=dict, init=False)
    _due: list[tuple[float, Callable[[Instant], None]]] = attrs.field(factory=list, init=False)

    @_sessions.default
    def _none_yet(self) -> StoredSessions:
        return StoredSessions(self._state, self._permissions, lambda number: self._persistence.known_persister(number))

    @property
    def _persistence(self) -> BrokerPersistence:
        if self._state.persistence is None:
            raise InvalidArgumentError("a broker without a journal has nothing to restore")
        return self._state.persistence

    @property
    def _timeline(self) -> Timeline:
        return self._persistence.journal.timeline

    def absorb(self, batch: WriteBatch, timeline: Timeline) -> None:
        """What another broker has written of sessions and retained messages. Raises DamagedRecordError."""
        for changes in batch.changes:
            if changes.stream is Stream.RETAINED:
                self._absorb_retained(changes, timeline)
            else:
                self._sessions.absorb(changes, timeline)

    def _absorb_retained(self, changes: Changes, timeline: Timeline) -> None:
        retained = self._state.retained
        for topic in changes.removals:
            retained.unload(str(topic))
        try:
            for _, fields in records_in(changes):
                retained.load(MessageRecord.read(fields, timeline).message)
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of retained messages: {error!r}") from error

    def rows(self) -> Iterator[Row]:
        """What is written of each retained message."""
        for topic, message in self._state.retained.all_in_turn():
            yield Stream.RETAINED, topic, None if message is None else MessageRecord(message)

    def run(self, storage: StoredRecords, now: Instant, *, is_warm: bool) -> None:
        """Begin with all this; ``is_warm``: what can be absorbed has been. Raises DamagedRecordError, or what the
        storage raises.
        """
        try:
            if not is_warm:
                self._load_what_can_be_absorbed(storage)
            self._load_the_rest(storage)
            sessions = self._sessions.hand_over()
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRecordError(f"records do not fit together: {error!r}") from error
        self._state.retained.sweep(now)
        self._persistence.wills_loaded(self._state.awaited.wills)
        # Those who left first come first; they make room first.
        for stored in sorted(sessions, key=partial(_left_at, now.monotonic)):
            self._go_on(stored, now)
        self._due.sort(key=lambda item: item[0])  # equal moments keep their order: the will before the end
        for _, action in self._due:
            action(now)
        self._due.clear()
        self._messages.clear()
        self._awaited.begin(now)

    def _load_what_can_be_absorbed(self, storage: StoredRecords) -> None:
        timeline, sessions = self._timeline, self._sessions
        rows = load(storage, Stream.RETAINED)
        self._state.retained.fill([MessageRecord.read(fields, timeline).message for _, fields in rows])
        for client_id, fields in load(storage, Stream.SESSIONS):
            sessions.put(client_id, fields, timeline)
        for subject, fields in load(storage, Stream.SUBSCRIPTIONS):
            sessions.subscribe(subject, fields)
        for client_id, fields in load(storage, Stream.WILLS):
            sessions.put_will(client_id, fields)

    def _load_the_rest(self, storage: StoredRecords) -> None:
        """The order matters: what refers to something comes after it."""
        self._all_messages(storage)
        self._deliveries(storage)
        self._copies(storage)
        self._releases(storage)
        self._inbound(storage)
        self._walks(storage)
        losses = load(storage, Stream.LOSSES)
        self._state.dropped_messages.load([(name, DroppedMessagesRecord.read(fields)) for name, fields in losses])

    # -- the streams --------------------------------------------------------------------------------------------------

    def _all_messages(self, storage: StoredRecords) -> None:
        number = 0
        for number, fields in load(storage, Stream.MESSAGES):
            self._messages[number] = MessageRecord.read(fields, self._timeline).message
        self._continue(Stream.MESSAGES, number)

    def _continue(self, stream: Stream, number: int) -> None:
        self._persistence.journal[stream].next_number = number + 1

    def _deliveries(self, storage: StoredRecords) -> None:
        last = 0
        in_flight: list[tuple[int, Session, Delivery, int]] = []
        for number, fields in load(storage, Stream.DELIVERIES):
            record = DeliveryRecord.read(fields, self._timeline)
            stored = self._sessions[record.session]
            session = stored.session
            kept = record.message if isinstance(record.message, int) else None
            message = record.message if isinstance(record.message, Message) else self._messages[record.message]
            delivery = Delivery(message, record.qos, record.retain, record.ids)
            stored.persister.loaded(delivery, number, kept)
            if record.packet_id:
                in_flight.append((record.order, session, delivery, record.packet_id))
            else:
                session.outbound.waiting.push(delivery)
            last = max(last, number, record.order)
        for _, session, delivery, packet_id in sorted(in_flight, key=lambda item: item[0]):
            self._put_in_flight(session, delivery, packet_id)
        self._continue(Stream.DELIVERIES, last)

    def _copies(self, storage: StoredRecords) -> None:
        """What was accepted and not yet copied. A session or message that is not there was removed by hand."""
        number, persistence = 0, self._persistence
        stream = persistence.journal[Stream.COPIES]
        for number, fields in load(storage, Stream.COPIES):
            record = CopiesRecord.read(fields)
            message = self._messages.get(record.message)
            stream.remove_lazily(number)
            if message is None:
                continue
            persistence.hold_loaded(message, record.message)
            for qos, retain, ids, sessions in record.groups:
                for stored in filter(None, map(self._sessions.get, sessions)):
                    delivery = Delivery(message, qos, retain, ids)
                    stored.session.outbound.waiting.push(delivery)
                    stored.persister.queued(delivery)
            persistence.release(message)
        self._continue(Stream.COPIES, number)

    def _put_in_flight(self, session: Session, delivery: Delivery, packet_id: int) -> None:
        outbound = session.outbound
        delivery.packet_id = packet_id
        outbound.restore(delivery)
        outbound.bytes += delivery.message.size
        self._state.budget.hold(delivery.message)

    def _releases(self, storage: StoredRecords) -> None:
        nothing = Message("", b"", 2, False, NO_PROPERTIES, "", None)
        number = 0
        for number, fields in load(storage, Stream.RELEASES):
            record = ReleaseRecord.read(fields)
            stored = self._sessions[record.session]
            delivery = Delivery(nothing, 2, False, ())
            delivery.is_released = True
            stored.persister.release_loaded(record.packet_id, number)
            self._put_in_flight(stored.session, delivery, record.packet_id)
        self._continue(Stream.RELEASES, number)

    def _inbound(self, storage: StoredRecords) -> None:
        for subject, _ in load(storage, Stream.INBOUND):
            session = self._sessions[subject >> 16].session
            session.inbound.unreleased[subject & 0xFFFF] = False
            self._state.budget.total += UNRELEASED_BYTES

    def _walks(self, storage: StoredRecords) -> None:
        for subject, fields in load(storage, Stream.CURSORS):
            number, topic_filter = named(subject)
            stored = self._sessions[number]
            stored.persister.cursor_loaded(topic_filter)
            stored.session.cursors[topic_filter] = CursorRecord.read(fields).cursor(topic_filter)

    # -- time goes on -------------------------------------------------------------------------------------------------

    def _go_on(self, stored: StoredSession, now: Instant) -> None:
        session, record = stored.session, stored.record
        session.persist(stored.persister)
        if not stored.is_permitted or stored.rules is not self._permissions.rules:
            self._permissions.renew(session)
        self._state.sessions.client_left(session)
        # The limit may have become lower since.
        session.expiry_s = min(record.expiry_s, self._state.limits.session_expiry_s)
        if record.left_at is None:
            self._state.awaited.sessions[session] = None
        else:
            self._run_out(session, record, now)
        if session.expiry_s != record.expiry_s:
            session.save()

    def _run_out(self, session: Session, record: SessionRecord, now: Instant) -> None:
        session.left_at = record.left_at
        if session.will is not None:
            session.will_timer = self._at(record.will_at, partial(self._lifecycle.send_will, session), now)
        ends_at = session.ends_at
        if ends_at is not None and ends_at <= now.monotonic:
            self._at(ends_at, partial(self._lifecycle.end, session), now)
        else:
            self._lifecycle.watch_end(session, now)

    def _at(self, when: float | None, action: Callable[[Instant], None], now: Instant) -> Timer | None:
        """A timer; None for a time that is over: then the action runs as soon as everything is here."""
        if when is not None and when > now.monotonic:
            return self._state.timers.add(when, action)
        self._due.append((when or 0.0, action))
        return None


def _left_at(now: float, stored: StoredSession) -> float:
    left_at = stored.record.left_at
    return now if left_at is None else left_at


# -- stored sessions ---------------------------------------------------------------------------------------------------
#
# The sessions and subscriptions of another life, as their records make them, and the wills that are left of others.
#
# There may be ten thousand sessions, and whoever takes the place of the server that has them must not begin with making
# them. So a standby has them at once, each record as it comes; a restart goes through the same code with all records.
# They stay as they are until :class:`.Recovery` gives them to the clock. What is in flight or waits for them does not:
# it changes with each message, and means something only together.
#
# Records come in any order: rows of a snapshot, and batches that are newer.


@attrs.define(eq=False)
class StoredSession:
    """A session that nothing is written of yet, and its record, with deadlines of the machine's clock.
    ``is_permitted``: by these ``rules`` all of its subscriptions are; otherwise they are to be looked at again.
    """

    session: Session
    persister: SessionPersister
    record: SessionRecord
    rules: object
    is_permitted: bool = True


@attrs.define(eq=False)
class StoredSessions:
    """Those in the broker's state, and what more is known of them."""

    _state: State
    _permissions: SessionPermissions
    _persister: Callable[[int], SessionPersister]
    _by_number: dict[int, StoredSession] = attrs.Factory(dict)
    _by_client: dict[str, StoredSession] = attrs.Factory(dict)  # the latest record is the last
    _early: dict[int, dict[str, GrantedSubscription]] = attrs.Factory(dict)  # by number of a session still to come

    def absorb(self, changes: Changes, timeline: Timeline) -> None:
        """What another broker has written. Raises DamagedRecordError."""
        stream = changes.stream
        try:
            if stream is Stream.SESSIONS:
                for client_id in changes.removals:
                    self._remove(str(client_id))
                for client_id, fields in records_in(changes):
                    self.put(client_id, fields, timeline)
            elif stream is Stream.SUBSCRIPTIONS:
                for subject in changes.removals:
                    self._unsubscribe(str(subject))
                for subject, fields in records_in(changes):
                    self.subscribe(subject, fields)
            elif stream is Stream.WILLS:
                for client_id in changes.removals:
                    self._forget_will(str(client_id))
                for client_id, fields in records_in(changes):
                    self.put_will(client_id, fields)
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of {stream.value}: {error!r}") from error

    def __getitem__(self, number: int) -> StoredSession:
        """Raises KeyError."""
        return self._by_number[number]

    def get(self, number: int) -> StoredSession | None:
        return self._by_number.get(number)

    def hand_over(self) -> list[StoredSession]:
        """All of them, to be forgotten here. Raises ValueError if sessions of subscriptions are missing."""
        if self._early:
            raise ValueError(f"subscriptions of sessions that are not there: {[*self._early][:10]}")
        sessions = [*self._by_client.values()]
        self._by_client.clear()
        self._by_number.clear()
        return sessions

    # -- sessions -----------------------------------------------------------------------------------------------------

    def put(self, client_id: str, fields: Any, timeline: Timeline) -> None:
        """A record of a session. Raises TypeError and ValueError, as the others do."""
        record = SessionRecord.read(fields, timeline)
        stored = self._by_client.pop(client_id, None)
        if stored is not None and stored.record.number != record.number:
            self._end(stored)
            stored = None
        if stored is None:
            if record.number in self._by_number:
                raise ValueError(f"two sessions have the number {record.number}")
            # Nothing is written down while it is read.
            session = self._state.sessions.create(client_id, record.user)
            self._permissions.ask(session)
            stored = StoredSession(session, self._persister(record.number), record, self._permissions.rules)
            self._by_number[record.number] = stored
            for topic_filter, grant in self._early.pop(record.number, {}).items():
                self._subscribe(stored, topic_filter, grant)
        session = self._by_client.setdefault(client_id, stored).session
        if session.user != record.user:
            self._state.sessions.assign(session, record.user)
            stored.is_permitted = False
        stored.record = record
        session.expiry_s = record.expiry_s
        self._state.budget.total += will_bytes(record.will) - will_bytes(session.will)
        session.will = record.will

    def _remove(self, client_id: str) -> None:
        stored = self._by_client.pop(client_id, None)
        if stored is not None:
            self._end(stored)

    def _end(self, stored: StoredSession) -> None:
        """Its subscriptions may be removed by the same batch, and only later."""
        session = stored.session
        del self._by_number[stored.record.number]
        self._state.subscriptions.remove_all(session)
        self._state.budget.total -= will_bytes(session.will)
        self._state.sessions.remove(session)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, subject: str, fields: Any) -> None:
        """A record of a subscription."""
        number, topic_filter = named(subject)
        grant = GrantRecord.read(fields).grant
        stored = self._by_number.get(number)
        if stored is None:
            self._early.setdefault(number, {})[topic_filter] = grant
        else:
            self._subscribe(stored, topic_filter, grant)

    def _subscribe(self, stored: StoredSession, topic_filter: str, grant: GrantedSubscription) -> None:
        permissions = stored.session.permissions
        if permissions is not None and not permissions.may_subscribe(topic_filter):
            stored.is_permitted = False  # the server that wrote this has, or had, other rules
        self._state.subscriptions.put(stored.session, topic_filter, grant)

    def _unsubscribe(self, subject: str) -> None:
        number, topic_filter = named(subject)
        stored = self._by_number.get(number)
        if stored is not None:
            self._state.subscriptions.remove(stored.session, topic_filter)
        elif number in self._early:
            self._early[number].pop(topic_filter, None)
            if not self._early[number]:
                del self._early[number]

    # -- wills --------------------------------------------------------------------------------------------------------

    def put_will(self, client_id: str, fields: Any) -> None:
        """A record of a will whose session ends with the server."""
        self._forget_will(client_id)
        self._state.awaited.wills[client_id] = record = WillRecord.read(fields)
        self._state.budget.total += will_bytes(record.will)

    def _forget_will(self, client_id: str) -> None:
        record = self._state.awaited.wills.pop(client_id, None)
        if record is not None:
            self._state.budget.total -= will_bytes(record.will)


def named(subject: str) -> tuple[int, str]:
    """The number of a session and the filter of its subscription."""
    number, _, topic_filter = subject.partition(" ")
    return int(number), topic_filter
