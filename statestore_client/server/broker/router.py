"""From a message to its subscribers: who gets it and how.

What the application wants done is here, too: most of it is messages.

A subscriber with QoS 1 or 2 whose queue is full is the business of ``overflow``. QoS 0 is dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.mqtt.packets import Disconnect, Publish, ReasonCode, encode
from statestore_client.server.broker.application import (
    Application,
    Deliver,
    DisconnectClient,
    Drop,
    Effect,
    InOrder,
    ReportClock,
    ReportDenial,
    Route,
)
from statestore_client.server.broker.memory import DELIVERY_BYTES
from statestore_client.server.broker.message import Delivery, message_of
from statestore_client.server.broker.records import CopiesRecord
from statestore_client.server.broker.state import PendingDisconnect, State
from statestore_client.server.broker.subscriptions import BLOCK, Target, caught_up
from statestore_client.server.journal import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statestore_client.server.broker.journal_writer import BrokerPersistence
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.overflow import OverflowPolicy
    from statestore_client.server.broker.session import Connection, Session
    from statestore_client.server.broker.subscriptions import Subscribers
    from statestore_client.server.broker.topic_tree import GrantedSubscription
    from statestore_client.wire.instant import Instant

# -- copies ------------------------------------------------------------------------------------------------------------
#
# Which clients get a message and how: copies for the subscribers of one filter, and of several that overlap.


def copies(block: Iterable[tuple[Session, GrantedSubscription]], message: Message) -> list[Target]:
    """Those for some of the subscribers of one filter."""
    qos, retain, publisher = message.qos, message.retain, message.publisher
    targets: list[Target] = []
    for session, grant in block:
        if grant.no_local and session.client_id == publisher:
            continue
        granted = grant.qos
        targets.append((session, qos if qos < granted else granted, retain and grant.retain_as_published, grant.ids))
    return targets


def copy(session: Session, grant: GrantedSubscription, message: Message) -> Target:
    """The one for a member of a share."""
    return (session, min(message.qos, grant.qos), message.retain and grant.retain_as_published, grant.ids)


class MergedCopies:
    """Overlapping filters: one copy per client at the highest QoS with all identifiers (MQTT 5.0, 3.3.4)."""

    __slots__ = ("_ids", "_targets")

    def __init__(self) -> None:
        self._targets: dict[Session, Target] = {}
        self._ids: dict[Session, list[int]] = {}  # adding tuples would take quadratic time

    def add(self, targets: Iterable[Target]) -> None:
        """Those of some subscribers of one filter."""
        merged = self._targets
        for target in targets:
            session = target[0]
            other = merged.get(session)
            if other is None:
                merged[session] = target
                continue
            self._ids.setdefault(session, [*other[3]]).extend(target[3])
            merged[session] = (session, max(other[1], target[1]), other[2] or target[2], ())

    def targets(self) -> Iterator[Target]:
        """All of them, once nothing is added any more."""
        for session, qos, retain, ids in self._targets.values():
            found = self._ids.get(session)
            yield (session, qos, retain, ids if found is None else tuple(found))


# -- fan out -----------------------------------------------------------------------------------------------------------
#
# One message on its way to many: everything that takes long is done in slices, and a crash in between loses no copy.
#
# What is acknowledged to its publisher has to reach all who were subscribed at that moment. So the copies are planned
# first, slice by slice, in memory. Then, in one step, the message is accepted: it is retained, acknowledged, and what
# is still to be copied is written down, one record for each slice. Then the slices are delivered; the record of a slice
# goes in the same step in which its copies are written down themselves. A server that comes back after a crash either
# knows nothing of the message, and its publisher sends it again, or goes on with the slices that are left: each
# subscriber with QoS 2 gets it once.
#
# Where nothing is written down and nobody can be refused, there is nothing to plan: the message is accepted at once.


#: Less of large messages: each copy may be encoded.
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_FEWEST: Final = 8


@attrs.frozen
class Acceptance:
    """What to do when the copies are planned. ``accept`` says whether to go on. ``refuse``: somebody has no room, and
    the publisher is to hear of it; None if nobody can be refused.
    """

    accept: Callable[[Instant], bool]
    refuse: Callable[[Instant], None] | None = None


class FanOut:
    """A job: call it until it returns False. Subscribers are those of the moment in which it was made."""

    __slots__ = (
        "_acceptance",
        "_at_once",
        "_blocks",
        "_message",
        "_now",
        "_persistence",
        "_router",
        "_shares",
        "_steps",
    )

    def __init__(
        self,
        router: Router,
        persistence: BrokerPersistence | None,
        message: Message,
        matches: Sequence[Subscribers],
        acceptance: Acceptance,
    ) -> None:
        self._router = router
        self._persistence = persistence
        self._message = message
        self._acceptance = acceptance
        self._at_once = max(_FEWEST, min(BLOCK, _BYTES_AT_ONCE // message.size))
        self._blocks = [tuple(subscribers.direct.blocks) for subscribers in matches if subscribers.direct.blocks]
        self._shares = [block for subscribers in matches for block in subscribers.shared.blocks]
        self._now: Instant
        self._steps = self._work()

    def __call__(self, now: Instant) -> bool:
        self._now = now
        return next(self._steps, False)

    def _work(self) -> Iterator[bool]:
        """Yields True after each slice."""
        router, acceptance = self._router, self._acceptance
        is_promised = acceptance.refuse is not None
        slices = self._plan()
        records: list[CopiesRecord | None] = []
        if self._persistence is not None or (is_promised and router.overflow.is_strict):
            planned: list[list[Target]] = []
            for targets in slices:
                if acceptance.refuse is not None and not router.admits(targets, self._message, self._now):
                    acceptance.refuse(self._now)
                    return
                planned.append(targets)
                records.append(None if self._persistence is None else _record(targets))
                yield True
            slices = iter(planned)
        if not acceptance.accept(self._now):
            return
        done = self._written(records)
        for targets in slices:
            some = [target for target in targets if not target[0].is_over]
            router.deliver(some, self._message, self._now, is_promised=is_promised)
            next(done, None)
            yield True

    def _written(self, records: Sequence[CopiesRecord | None]) -> Iterator[None]:
        """Write down what is to be copied; each next() says that one slice has been. The first one was done already."""
        persistence, message = self._persistence, self._message
        if persistence is None:
            return iter(())
        stream = persistence.journal[Stream.COPIES]
        numbers = [
            None if record is None else stream.add(CopiesRecord(persistence.hold(message), record.groups))
            for record in records
        ]

        def one_done() -> Iterator[None]:
            for number in numbers:
                if number is not None:
                    stream.remove_lazily(number)
                    persistence.release(message)
                yield

        return one_done()

    # -- who gets it --------------------------------------------------------------------------------------------------

    def _plan(self) -> Iterator[list[Target]]:
        """The copies, some at a time; an empty list for work that gave none yet."""
        if len(self._blocks) == 1:
            for block in self._blocks[0]:
                yield from self._cut(copies(block, self._message))
        elif self._blocks:
            yield from self._merged()
        has_room = partial(self._router.overflow.has_room_in_queue, message=self._message)
        for shares in self._shares:
            picked = [(group, group.pick(has_room)) for _, group in shares]
            targets = [
                copy(session, group.grants[session], self._message) for group, session in picked if session is not None
            ]
            yield from self._cut(targets)

    def _merged(self) -> Iterator[list[Target]]:
        """Overlapping filters: one copy for each client."""
        merged = MergedCopies()
        work = 0
        for blocks in self._blocks:
            for block in blocks:
                merged.add(copies(block, self._message))
                work += len(block)
                if work >= BLOCK:
                    work = 0
                    yield []
        targets: list[Target] = []
        for target in merged.targets():
            targets.append(target)
            if len(targets) == self._at_once:
                yield targets
                targets = []
        yield targets

    def _cut(self, targets: list[Target]) -> Iterator[list[Target]]:
        at_once = self._at_once
        for start in range(0, len(targets), at_once):
            yield targets[start : start + at_once]


def _record(targets: Sequence[Target]) -> CopiesRecord | None:
    """Of the copies for sessions that are written down, None if there are none. Its message comes later."""
    groups: dict[tuple[int, bool, tuple[int, ...]], list[int]] = {}
    for session, qos, retain, ids in targets:
        if qos and session.persister is not None:
            groups.setdefault((qos, retain, ids), []).append(session.persister.number)
    if not groups:
        return None
    return CopiesRecord(0, tuple((*how, tuple(numbers)) for how, numbers in groups.items()))


# -- router ------------------------------------------------------------------------------------------------------------


#: Looks at retained messages in one turn: about a millisecond.
_AT_ONCE: Final = 64


@attrs.define(eq=False)
class Router:
    """Plans copies of a message and puts them on their way."""

    _state: State
    overflow: OverflowPolicy

    # -- who gets it --------------------------------------------------------------------------------------------------

    def has_to_wait(self, matches: Sequence[Subscribers], topic: str) -> bool:
        """Whether a message is one for :meth:`fan_out`: for many, or behind one for many."""
        if topic in self._state.background.queues:
            return True
        if len(matches) == 1:
            only = matches[0]
            return len(only.direct.blocks) > 1 or len(only.shared.blocks) > 1
        count = len(matches)
        for subscribers in matches:
            if count > BLOCK:
                break
            count += len(subscribers.direct) + len(subscribers.shared)
        return count > BLOCK

    def plan(self, message: Message, matches: Sequence[Subscribers]) -> list[Target]:
        """One copy for each subscribed client, and one for each share."""
        if not matches:
            return []
        if len(matches) == 1 and not matches[0].shared.blocks:
            blocks = matches[0].direct.blocks
            if len(blocks) == 1:
                return copies(blocks[0], message)
            return [target for block in blocks for target in copies(block, message)]
        merging = MergedCopies()
        for subscribers in matches:
            for block in subscribers.direct.blocks:
                merging.add(copies(block, message))
        targets = [*merging.targets()]
        has_room = partial(self.overflow.has_room_in_queue, message=message)
        for subscribers in matches:
            for shares in subscribers.shared.blocks:
                for _, group in shares:
                    session = group.pick(has_room)
                    if session is not None:
                        targets.append(copy(session, group.grants[session], message))
        return targets

    def admits(self, targets: Sequence[Target], message: Message, now: Instant) -> bool:
        """Whether every subscriber can take its copy, now or in its queue; where publishers are never refused, yes."""
        if not self.overflow.is_strict:
            return True
        for session, qos, _, _ in targets:
            if qos and not self.overflow.has_room(session, message, now):
                self._state.dropped_messages.note_refusal(session, now)
                return False
        return True

    # -- on its way ---------------------------------------------------------------------------------------------------

    def deliver(self, targets: Sequence[Target], message: Message, now: Instant, *, is_promised: bool) -> None:
        """Start or queue every copy. ``is_promised``: the caller asked :meth:`admits`, and its publisher was answered;
        otherwise nobody can be refused.
        """
        budget = self._state.budget
        for session, qos, retain, ids in targets:
            if not qos:
                self._deliver0(session, message, retain, ids, now)
                continue
            outbound = session.outbound
            has_room = budget.total + message.size <= budget.limit and not outbound.waiting.items
            if not has_room and not self.overflow.accepts(session, message, now, is_promised=is_promised):
                continue
            delivery = Delivery(message, qos, retain, ids)
            connection = session.connection
            if connection is None or session.cursors or not outbound.is_open or connection.is_full:
                if connection is None and not outbound.waiting.items:
                    self._state.sessions.queue_filled(session)
                outbound.waiting.push(delivery)
            else:
                outbound.start(delivery)
                self._put(session, connection, delivery, now)

    def fan_out(
        self,
        matches: Sequence[Subscribers],
        message: Message,
        acceptance: Acceptance,
        cause: Connection | None,
    ) -> None:
        """Deliver to any number of subscribers, in slices; messages of one topic keep their order. ``cause`` is not
        served before that is done.
        """
        fan_out = FanOut(self, self._state.persistence, message, matches, acceptance)
        self._state.background.add(message.topic, fan_out, cause)

    def retain(self, message: Message, now: Instant) -> bool:
        """Keep a message for later subscribers; False if there is no room for it."""
        retained = self._state.retained
        if not retained.has_room(message, now):
            self._state.counters.not_retained += 1
            return False
        retained.put(message)
        return True

    def _put(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """Send a delivery that is in flight or of QoS 0. One that cannot be sent counts as done."""
        try:
            was_sent = connection.publish(delivery, now)
        except Exception as error:  # noqa: BLE001 - a message of the application that MQTT has no form for
            self._state.reports.note_fault(error)
            was_sent = False
        if was_sent:
            self._state.counters.sent_messages += 1
        else:
            self._state.counters.dropped_too_large += 1
            if delivery.qos:
                session.outbound.forget(delivery)

    def _deliver0(self, session: Session, message: Message, retain: bool, ids: tuple[int, ...], now: Instant) -> None:
        connection = session.connection
        if connection is None:
            return
        waiting = session.waiting0
        delivery = Delivery(message, 0, retain, ids)
        # Behind the retained messages, unless those wait for acknowledgements.
        has_to_wait = waiting.items or connection.is_full or (session.cursors and session.outbound.has_window)
        if not has_to_wait and (not message.is_large or self._admits0(session, message, now)):
            self._put(session, connection, delivery, now)
        elif waiting.is_full(message) or not self._admits0(session, message, now):
            self._state.counters.dropped_qos0 += 1
        else:
            waiting.push(delivery)

    def _admits0(self, session: Session, message: Message, now: Instant) -> bool:
        return self.overflow.admits(DELIVERY_BYTES if message.holders else message.size, session.held_bytes, now)

    # -- what waited --------------------------------------------------------------------------------------------------

    def send_pending(self, session: Session, now: Instant) -> None:
        """Send what waits, as far as the client's window and its socket allow."""
        connection = session.connection
        if connection is None:
            return
        outbound = session.outbound
        while outbound.resend and not connection.is_full and (delivery := outbound.next_ready()) is not None:
            self._put_again(session, connection, delivery, now)
        if not session.cursors or not self._send_retained(session, now):
            self._send_waiting(session, now)
        if session.waits_in and session.is_flowing:
            caught_up(session)

    def _send_waiting(self, session: Session, now: Instant) -> None:
        connection, outbound = session.connection, session.outbound
        if connection is None:
            return
        while session.waiting0.items and not connection.is_full:
            self._start(session, connection, session.waiting0.pop(), now)
        while not connection.is_full and not session.cursors and (delivery := outbound.next_ready()) is not None:
            self._start(session, connection, delivery, now)

    # -- retained messages --------------------------------------------------------------------------------------------

    def _send_retained(self, session: Session, now: Instant) -> bool:
        """Give out retained messages. New messages wait behind them; True if those of QoS 0 have to, as well: the rest
        follows in slices. Where it has to wait for acknowledgements or for the socket, QoS 0 does not.
        """
        background = self._state.background
        if session in background.queues:
            return True
        if not self._send_some_retained(session, now):
            return False
        background.add(session, partial(self._send_retained_slice, session))
        return True

    def _send_retained_slice(self, session: Session, now: Instant) -> bool:
        has_more = self._send_some_retained(session, now)
        if not has_more:
            self._send_waiting(session, now)
        return has_more

    def _send_some_retained(self, session: Session, now: Instant) -> bool:
        """Give out some retained messages, as far as the client takes them; True if it takes more. Otherwise
        :meth:`send_pending` goes on when it does.
        """
        for _ in range(_AT_ONCE):
            connection = session.connection
            if not session.cursors or connection is None or connection.is_full or not session.outbound.has_window:
                return False
            if self._state.pending_disconnects:
                return True  # perhaps its own: look again when they are carried out
            cursor = next(iter(session.cursors.values()))
            message = self._state.retained.advance(cursor, now)
            if cursor.at is None:
                del session.cursors[cursor.topic_filter]
            if session.persister is not None:
                session.persister.cursor_moved(cursor)
            if message is None or (cursor.no_local and message.publisher == session.client_id):
                continue
            delivery = Delivery(message, min(message.qos, cursor.qos), True, cursor.ids)
            self._give(session, connection, delivery, now)
        return bool(session.cursors)

    def _give(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """Send a retained message to a client whose window is open, before what waits."""
        message = delivery.message
        if self._admits0(session, message, now):
            if delivery.qos:
                session.outbound.start(delivery)
            self._put(session, connection, delivery, now)
        elif delivery.qos:
            self.overflow.lose(session, now)
        else:
            self._state.counters.dropped_qos0 += 1

    def _start(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        is_expired = delivery.message.is_expired(now)
        if is_expired or not session.may_get(delivery.message.topic):
            if is_expired:
                self._state.counters.dropped_expired += 1
            else:
                self._state.counters.dropped_forbidden += 1
            session.outbound.waiting.dropped(delivery)
            if delivery.qos:
                # Its packet identifier goes with it, as if it had got one in the queue: clients' own tests count so.
                session.outbound.next_id()
            return
        if delivery.qos:
            session.outbound.start(delivery)
        self._put(session, connection, delivery, now)

    def _put_again(self, session: Session, connection: Connection, delivery: Delivery, now: Instant) -> None:
        """A new connection may take smaller packets than the last one did, and have lost rights."""
        if not session.may_get(delivery.message.topic):
            self._state.counters.dropped_forbidden += 1
            session.outbound.forget(delivery)
        elif connection.publish_again(delivery, now):
            self._state.counters.sent_messages += 1
        else:
            self._state.counters.dropped_too_large += 1
            session.outbound.forget(delivery)


# -- effects -----------------------------------------------------------------------------------------------------------
#
# What the application wants done: its messages, notifications and disconnects, in order, some at a time.


#: What servers say of themselves (MQTT 5.0, 4.7.2), and what is a filter, not a topic.
_RESERVED: Final = ("$SYS/", "$share/")

#: Where a bridge of another broker tells whether it is connected: the one topic below $SYS that is its clients'.
_BRIDGE_STATE: Final = re.compile(r"\$SYS/broker/connection/[^/]+/state")

#: Effects of a series in one turn.
_EFFECTS_AT_ONCE: Final = 64


@attrs.define(eq=False)
class EffectRunner:
    """Carries out effects, and sends messages that nobody can be refused."""

    _state: State
    _router: Router

    def perform(self, effects: Iterable[Effect], now: Instant, cause: Connection | None = None) -> None:
        """Carry out what the application wants, in order. A fault in one effect does not stop the others. ``cause`` is
        not served before all of it is done.
        """
        for effect in effects:
            try:
                if isinstance(effect, Route):
                    self.send(effect.message, "", now, cause, is_fleeting=effect.is_fleeting)
                elif isinstance(effect, Deliver):
                    self._push(effect, now)
                elif isinstance(effect, InOrder):
                    self._begin(effect, now, cause)
                elif isinstance(effect, ReportDenial):
                    self._deny(effect.client_id, effect.reason_code, effect.action, effect.what)
                elif isinstance(effect, ReportClock):
                    self._note_clock(effect)
                elif isinstance(effect, Drop):
                    self._deny(effect.client_id, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "publish", effect.why)
                else:
                    self._kick(effect)
            except Exception as error:  # noqa: BLE001 - e.g. a topic that cannot be encoded
                self._state.reports.note_fault(error)

    def _begin(self, series: InOrder, now: Instant, cause: Connection | None) -> None:
        effects = iter(series.effects)

        def go_on(now: Instant) -> bool:
            try:
                some = list(islice(effects, _EFFECTS_AT_ONCE))
            except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
                self._state.reports.note_fault(error)
                return False
            self.perform(some, now)
            return len(some) == _EFFECTS_AT_ONCE

        background = self._state.background
        # Mostly there are a few effects, and nothing before them: then nothing has to wait.
        if series.subject in background.queues or go_on(now):
            background.add(series.subject, go_on, cause)

    def send(
        self,
        packet: Publish,
        publisher: str,
        now: Instant,
        cause: Connection | None = None,
        *,
        is_fleeting: bool = False,
    ) -> None:
        """To subscribers, and to the retained messages: a message whose publisher cannot be refused."""
        state, router, topic = self._state, self._router, packet.topic
        message = message_of(packet, publisher, now, is_fleeting=is_fleeting)
        is_answer = packet.qos == 1 and not (packet.retain or publisher)
        targets = state.subscriptions.answer_plans.get(topic) if is_answer else None
        if targets is not None and topic not in state.background.queues:
            router.deliver(targets, message, now, is_promised=False)
            return
        matches = state.subscriptions.match(topic)
        if router.has_to_wait(matches, topic):
            router.fan_out(matches, message, Acceptance(partial(self._kept, message)), cause)
            return
        if message.retain:
            router.retain(message, now)
        targets = router.plan(message, matches)
        if is_answer and not any(subscribers.shared for subscribers in matches):
            state.subscriptions.remember_plan(topic, targets)
        router.deliver(targets, message, now, is_promised=False)

    def _kept(self, message: Message, now: Instant) -> bool:
        if message.retain:
            self._router.retain(message, now)
        return True

    def _push(self, effect: Deliver, now: Instant) -> None:
        """To the owner's connection only, with the identifiers of its own subscriptions that match. Nobody else is
        looked at: a share's turn is for messages that its members get.
        """
        session = self._state.sessions.get(effect.client_id)
        if session is None or session.connection is None:
            return
        message = message_of(effect.message, "", now, is_fleeting=effect.is_fleeting)
        ids = self._state.subscriptions.ids_of(session, message.topic) if session.has_ids else ()
        self._router.deliver(((session, message.qos, False, ids),), message, now, is_promised=False)

    def _deny(self, client_id: str, reason_code: int, action: str, what: str) -> None:
        session = self._state.sessions.get(client_id)
        if session is not None:
            self._state.reports.note_denial(session, reason_code, action, what)

    def _note_clock(self, effect: ReportClock) -> None:
        session = self._state.sessions.get(effect.client_id)
        if session is not None:
            self._state.reports.note_clock(session, effect.ahead_s)

    def _kick(self, effect: DisconnectClient) -> None:
        encode(Disconnect(effect.reason_code))  # raises now for a code that DISCONNECT has not, not in the middle of it
        session = self._state.sessions.get(effect.client_id)
        if session is not None and session.connection is not None:
            self._state.pending_disconnects.append(PendingDisconnect(session, effect.reason_code, effect.reason))

    # -- from clients --------------------------------------------------------------------------------------------------

    def handled(
        self, application: Application, client_id: str, packet: Publish, now: Instant
    ) -> Sequence[Effect] | None:
        """What the application wants done after a will; None if it failed."""
        try:
            return application.handle(client_id, packet, now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)
            return None

    def tick(self, application: Application, now: Instant) -> None:
        """Have done what an application does by itself."""
        try:
            effects = application.tick(now)
        except Exception as error:  # noqa: BLE001 - a fault of the application must not take the broker down
            self._state.reports.note_fault(error)
            return
        self.perform(effects, now)

    # -- wills --------------------------------------------------------------------------------------------------------

    def publish_will(self, packet: Publish, client_id: str, now: Instant) -> None:
        """A will is an ordinary message of its client, but nobody waits for its acknowledgement."""
        application = self._state.applications.find(packet.topic)
        if application is not None:
            effects = self.handled(application, client_id, packet, now)
            if effects is not None:
                self.perform(effects, now)
                self._published(client_id, packet)
            return
        session = self._state.sessions.get(client_id)
        is_permitted = session is None or session.permissions is None or session.permissions.may_publish(packet.topic)
        if is_permitted and not is_reserved(packet.topic):
            self.send(packet, client_id, now)
            self._published(client_id, packet)
        elif session is not None:
            self._state.reports.note_denial(session, ReasonCode.NOT_AUTHORIZED, "publish", packet.topic)

    def _published(self, client_id: str, packet: Publish) -> None:
        if self._state.events is not None:
            self._state.events.published(client_id, packet)


def is_reserved(topic: str) -> bool:
    return topic.startswith(_RESERVED) and not _BRIDGE_STATE.fullmatch(topic)
