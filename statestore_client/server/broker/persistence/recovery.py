"""After a restart: the broker's state from its records.

Clients that were here are awaited (:mod:`statestore_client.server.broker.session.awaited`). What was running out before
has gone on running out while the server was away, and what has run out is ended before the first client comes, in the
order of its deadlines.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.persistence.records import (
    NO_PROPERTIES,
    CopiesRecord,
    DeliveryRecord,
    DroppedMessagesRecord,
    GrantRecord,
    MessageRecord,
    ReleaseRecord,
    SessionRecord,
    WalkRecord,
    WillRecord,
)
from statestore_client.server.broker.quotas.memory_budget import UNRELEASED_BYTES
from statestore_client.server.broker.session.inflight import MessageDelivery
from statestore_client.server.broker.session.wills import will_bytes
from statestore_client.server.journal import DamagedRecordError, Stream, Timeline, load, records_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.broker.persistence.durable_session import SessionPersister
    from statestore_client.server.broker.persistence.persister import BrokerPersistence
    from statestore_client.server.broker.routing.retained import Retained
    from statestore_client.server.broker.session.awaited import AwaitedClients, Permit
    from statestore_client.server.broker.session.lifecycle import SessionLifecycle
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.state import State
    from statestore_client.server.broker.timers import Timer
    from statestore_client.server.journal import StoredRecords, WriteBatch
    from statestore_client.wire.instant import Instant

__all__ = ["absorb_retained", "recover"]


def recover(
    state: State,
    lifecycle: SessionLifecycle,
    awaited: AwaitedClients,
    storage: StoredRecords,
    now: Instant,
    *,
    is_warm: bool,
) -> None:
    """Fill an empty broker; ``is_warm``: the retained messages are here. Raises DamagedRecordError, or what the storage
    raises.
    """
    if state.persistence is None:
        raise InvalidArgumentError("a broker without a journal has nothing to restore")
    Recovery(state, state.persistence, lifecycle, awaited.permit, storage, now, is_warm).run()
    awaited.begin(now)


def absorb_retained(retained: Retained, batch: WriteBatch, timeline: Timeline) -> None:
    """What another broker has written of its retained messages. Raises DamagedRecordError."""
    for changes in batch.changes:
        if changes.stream is not Stream.RETAINED:
            continue
        for topic in changes.removals:
            retained.unload(str(topic))
        try:
            for _, fields in records_in(changes):
                retained.load(MessageRecord.read(fields, timeline).message)
        except (TypeError, ValueError) as error:
            raise DamagedRecordError(f"records of retained messages: {error!r}") from error


@attrs.define(eq=False)
class Recovery:
    """Fills an empty broker. The order of the streams matters: what refers to something comes after it."""

    _state: State
    _persistence: BrokerPersistence
    _lifecycle: SessionLifecycle
    _permit: Permit
    _storage: StoredRecords
    _now: Instant
    _is_warm: bool
    _timeline: Timeline = attrs.field(init=False)
    _sessions: dict[int, tuple[Session, SessionPersister, SessionRecord]] = attrs.Factory(dict)
    _messages: dict[int, Message] = attrs.Factory(dict)
    _due: list[tuple[float, Callable[[Instant], None]]] = attrs.Factory(list)

    @_timeline.default
    def _of_the_journal(self) -> Timeline:
        return self._persistence.journal.timeline

    def run(self) -> None:
        try:
            self._load_all()
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedRecordError(f"records do not fit together: {error!r}") from error
        # Those who left first come first; they make room first.
        now = self._now.monotonic
        for session, persister, record in sorted(self._sessions.values(), key=partial(_left_at, now)):
            self._go_on(session, persister, record)
        self._due.sort(key=lambda item: item[0])  # equal moments keep their order: the will before the end
        for _, action in self._due:
            action(self._now)

    def _load_all(self) -> None:
        self._retained()
        self._all_sessions()
        self._wills()
        self._subscriptions()
        self._all_messages()
        self._deliveries()
        self._copies()
        self._releases()
        self._inbound()
        self._walks()
        for client_id, fields in load(self._storage, Stream.LOSSES):
            self._state.dropped_messages.loaded(client_id, DroppedMessagesRecord.read(fields))

    # -- the streams --------------------------------------------------------------------------------------------------

    def _retained(self) -> None:
        timeline, retained = self._timeline, self._state.retained
        if not self._is_warm:
            rows = load(self._storage, Stream.RETAINED)
            retained.fill([MessageRecord.read(fields, timeline).message for _, fields in rows])
        retained.sweep(self._now)

    def _all_sessions(self) -> None:
        state, timeline = self._state, self._timeline
        for client_id, fields in load(self._storage, Stream.SESSIONS):
            record = SessionRecord.read(fields, timeline)
            persister = self._persistence.known_persister(record.number)
            session = state.sessions.create(client_id)  # nothing is written down while it is read
            session.expiry_s, session.user = record.expiry_s, record.user
            self._lifecycle.wills.put(session, record.will)
            self._sessions[record.number] = (session, persister, record)

    def _wills(self) -> None:
        """Their sessions ended with the server."""
        for client_id, fields in load(self._storage, Stream.WILLS):
            self._state.awaited.wills[client_id] = record = WillRecord.read(fields)
            self._state.budget.total += will_bytes(record.will)
            self._persistence.will_loaded(client_id)

    def _named(self, subject: str) -> tuple[Session, SessionPersister, str]:
        number, _, topic_filter = subject.partition(" ")
        session, persister, _ = self._sessions[int(number)]
        return session, persister, topic_filter

    def _subscriptions(self) -> None:
        subscriptions = self._state.subscriptions
        for subject, fields in load(self._storage, Stream.SUBSCRIPTIONS):
            session, _, topic_filter = self._named(subject)
            subscriptions.put(session, topic_filter, GrantRecord.read(fields).grant)

    def _all_messages(self) -> None:
        number = 0
        for number, fields in load(self._storage, Stream.MESSAGES):
            self._messages[number] = MessageRecord.read(fields, self._timeline).message
        self._continue(Stream.MESSAGES, number)

    def _continue(self, stream: Stream, number: int) -> None:
        self._persistence.journal[stream].next_number = number + 1

    def _deliveries(self) -> None:
        last = 0
        in_flight: list[tuple[int, Session, MessageDelivery, int]] = []
        for number, fields in load(self._storage, Stream.DELIVERIES):
            record = DeliveryRecord.read(fields, self._timeline)
            session, persister, _ = self._sessions[record.session]
            kept = record.message if isinstance(record.message, int) else None
            message = record.message if isinstance(record.message, Message) else self._messages[record.message]
            delivery = MessageDelivery(message, record.qos, record.retain, record.ids)
            persister.loaded(delivery, number, kept)
            if record.packet_id:
                in_flight.append((record.order, session, delivery, record.packet_id))
            else:
                session.outbound.waiting.push(delivery)
            last = max(last, number, record.order)
        for _, session, delivery, packet_id in sorted(in_flight, key=lambda item: item[0]):
            self._put_in_flight(session, delivery, packet_id)
        self._continue(Stream.DELIVERIES, last)

    def _copies(self) -> None:
        """What was accepted and not yet copied. A session or message that is not there was removed by hand."""
        number, persistence = 0, self._persistence
        stream = persistence.journal[Stream.COPIES]
        for number, fields in load(self._storage, Stream.COPIES):
            record = CopiesRecord.read(fields)
            message = self._messages.get(record.message)
            stream.remove_lazily(number)
            if message is None:
                continue
            persistence.hold_loaded(message, record.message)
            for qos, retain, ids, sessions in record.groups:
                for session, persister, _ in filter(None, map(self._sessions.get, sessions)):
                    delivery = MessageDelivery(message, qos, retain, ids)
                    session.outbound.waiting.push(delivery)
                    persister.queued(delivery)
            persistence.release(message)
        self._continue(Stream.COPIES, number)

    def _put_in_flight(self, session: Session, delivery: MessageDelivery, packet_id: int) -> None:
        outbound = session.outbound
        delivery.packet_id = packet_id
        outbound.restore(delivery)
        outbound.bytes += delivery.message.size
        self._state.budget.hold(delivery.message)

    def _releases(self) -> None:
        nothing = Message("", b"", 2, False, NO_PROPERTIES, "", None)
        number = 0
        for number, fields in load(self._storage, Stream.RELEASES):
            record = ReleaseRecord.read(fields)
            session, persister, _ = self._sessions[record.session]
            delivery = MessageDelivery(nothing, 2, False, ())
            delivery.is_released = True
            persister.release_loaded(record.packet_id, number)
            self._put_in_flight(session, delivery, record.packet_id)
        self._continue(Stream.RELEASES, number)

    def _inbound(self) -> None:
        for subject, _ in load(self._storage, Stream.INBOUND):
            session = self._sessions[subject >> 16][0]
            session.inbound.unreleased[subject & 0xFFFF] = False
            self._state.budget.total += UNRELEASED_BYTES

    def _walks(self) -> None:
        for subject, fields in load(self._storage, Stream.WALKS):
            session, persister, topic_filter = self._named(subject)
            persister.walk_loaded(topic_filter)
            session.walks[topic_filter] = WalkRecord.read(fields).walk(topic_filter)

    # -- time goes on -------------------------------------------------------------------------------------------------

    def _go_on(self, session: Session, persister: SessionPersister, record: SessionRecord) -> None:
        session.persist(persister)
        self._permit(session)
        self._state.sessions.client_left(session)
        # The limit may have become lower since.
        session.expiry_s = min(record.expiry_s, self._state.limits.session_expiry_s)
        if record.left_at is None:
            self._state.awaited.sessions[session] = None
        else:
            self._run_out(session, record)
        if session.expiry_s != record.expiry_s:
            persister.save(session)

    def _run_out(self, session: Session, record: SessionRecord) -> None:
        session.left_at = record.left_at
        if session.will is not None:
            session.will_timer = self._at(record.will_at, partial(self._lifecycle.wills.send, session))
        ends_at = session.ends_at
        if ends_at is not None and ends_at <= self._now.monotonic:
            self._at(ends_at, partial(self._lifecycle.end, session))
        else:
            self._lifecycle.watch_end(session, self._now)

    def _at(self, when: float | None, action: Callable[[Instant], None]) -> Timer | None:
        """A timer; None for a time that is over: then the action runs as soon as everything is here."""
        if when is not None and when > self._now.monotonic:
            return self._state.timers.add(when, action)
        self._due.append((when or 0.0, action))
        return None


def _left_at(now: float, item: tuple[Session, SessionPersister, SessionRecord]) -> float:
    left_at = item[2].left_at
    return now if left_at is None else left_at
