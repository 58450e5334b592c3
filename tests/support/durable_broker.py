"""A broker with a journal on a disk that is a dictionary, which may crash; random programs for it, and all that must
survive of each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Subscription,
    Unsubscribe,
    Will,
    WillProperties,
)
from statestore_client.server.broker import Application, Broker, BrokerLimits, Gatekeeper
from statestore_client.server.broker.lifecycle import GRACE_S
from statestore_client.server.broker.message import Delivery, Message
from statestore_client.server.broker.session import Connection, Session
from statestore_client.server.journal import TIME, Done, Journal, StreamTables, WriteBatch
from statestore_client.wire.instant import Instant
from support.broker_driver import Client, World

# -- durable driver ----------------------------------------------------------------------------------------------------

# A broker with a journal, a disk that is a dictionary, and crashes.


DAY = 86_400

#: Names the monotonic clock of a machine that is not restarted.
BOOT = 1


class MemoryStorage(StreamTables):
    """Implements StreamStorage."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[WriteBatch] = []

    def append(self, batch: WriteBatch, done: Done) -> None:
        self.batches.append(batch)
        self.absorb(batch)
        done(None)

    def close(self) -> None:
        pass

    def copy(self) -> MemoryStorage:
        """The disk as it is now."""
        other = MemoryStorage()
        other.streams = {stream: dict(records) for stream, records in self.streams.items()}
        return other

    def count(self) -> dict[str, int]:
        """Records by stream, the empty streams left out, and the time, which every batch has."""
        counts = {stream.value: len(records.keys() - {TIME}) for stream, records in self.streams.items()}
        return {name: count for name, count in counts.items() if count}


def _ignore(error: Exception | None) -> None:
    assert error is None


class DurableWorld(World):
    """A world whose broker writes into a journal. :meth:`commit` lets the disk do its work, which :meth:`work` calls
    for: so whatever a client receives was committed before.
    """

    def __init__(
        self, *, application: Application | None = None, gatekeeper: Gatekeeper | None = None, **limits: Any
    ) -> None:
        super().__init__(application=application, gatekeeper=gatekeeper, **limits)
        self.storage = MemoryStorage()
        self.limits = limits  # of the next life
        self._make = lambda journal: Broker(
            random=random.Random(7),
            applications=() if application is None else (application,),
            limits=BrokerLimits(**{"keep_alive_s": 0, **self.limits}),
            gatekeeper=gatekeeper,
            journal=journal,
        )
        self.journal = Journal(BOOT)
        self.broker = self._make(self.journal)

    def work(self) -> None:
        super().work()
        self.commit()

    def back(self, client_id: str, **connect: Any) -> tuple[Client, list[Packet]]:
        """A client that resumes its session, and what came behind its CONNACK."""
        client = Client(self)
        wanted = ConnectProperties(session_expiry=connect.pop("session_expiry", DAY), **connect)
        client.send(Connect(client_id, clean_start=False, properties=wanted))
        connack, *packets = client.received()
        assert isinstance(connack, Connack)
        client.connack = connack
        return client, packets

    def commit(self) -> None:
        """What was said so far is written, and then sent."""
        connections = self._staged()
        for connection in connections:
            connection.seal()
        if self.journal:
            self.storage.append(self.journal.cut(self.now), _ignore)
        for connection in connections:
            connection.release()

    def _staged(self) -> list[Connection]:
        return [*dict.fromkeys(self.broker.take_dirty())]

    def crash(self, away_s: float = 0.0, *, boot: int = BOOT) -> None:
        """Everything that was not committed is gone; another process takes over after a while. With another ``boot``
        the machine was restarted, and nobody knows how long that took.
        """
        self.monotonic += away_s
        self.journal = Journal(boot)
        self.journal.resume(self.storage, self.now)
        self.broker = self._make(self.journal)
        self.broker.restore(self.storage, self.now)


def messages_in(packets: Sequence[Packet]) -> list[Publish]:
    """The messages among what a client received."""
    return [packet for packet in packets if isinstance(packet, Publish)]


def texts_in(packets: Sequence[Packet]) -> list[bytes]:
    """Their payloads."""
    return [packet.payload for packet in messages_in(packets)]


# -- durable program ---------------------------------------------------------------------------------------------------

# Random programs of clients of a broker with a journal, and all that must survive of it.


NAMES = ("a", "b", "c")
TOPICS = ("t", "t/1", "t/2", "will")
#: Deadlines are rounded: of none that a client makes is it in doubt whether it is over when brokers are compared.
UNEVEN_S = 0.37
FILTERS = ("t", "t/#", "+/1", "#", "$share/g/t/#")

_name = st.sampled_from(NAMES)
#: What clients do, and time. A program is a list of such steps.
STEPS = (
    st.tuples(st.just("connect"), _name, st.booleans(), st.sampled_from((0, 50, DAY)), st.sampled_from((1, 3, 50))),
    st.tuples(st.just("leave"), _name, st.booleans()),
    st.tuples(st.just("subscribe"), _name, st.sampled_from(FILTERS), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("unsubscribe"), _name, st.sampled_from(FILTERS)),
    st.tuples(
        st.just("publish"), _name, st.sampled_from(TOPICS[:3]), st.integers(0, 2), st.booleans(), st.booleans(),
        st.sampled_from((None, 20, 500)),
    ),
    st.tuples(st.just("release"), _name),
    st.tuples(st.just("acknowledge"), _name, st.integers(1, 4)),
    st.tuples(st.just("publish"), _name, st.just("t/1"), st.just(2), st.just(False), st.just(False), st.none()),
    st.tuples(st.just("sleep"), st.sampled_from((1.0, 30.0))),
    st.tuples(st.just("commit")),
)  # fmt: skip


class Program:
    """Three clients, at most one of them with a will: the order of two that are due together is not defined."""

    def __init__(self, world: DurableWorld) -> None:
        self.world = world
        self.clients: dict[str, Client] = {}
        self.unanswered: dict[str, list[Publish | Pubrel]] = {name: [] for name in NAMES}
        self.unreleased: dict[str, list[int]] = {name: [] for name in NAMES}
        self._texts = 0

    def client(self, name: str) -> Client | None:
        client = self.clients.get(name)
        if client is None or client.is_ended:
            return None
        self.unanswered[name] += [packet for packet in client.received() if isinstance(packet, (Publish, Pubrel))]
        return client

    def run(self, step: tuple[Any, ...]) -> None:
        getattr(self, f"_{step[0]}")(*step[1:])

    def _connect(self, name: str, clean: bool, expiry_s: int, window: int) -> None:
        old = self.clients.get(name)
        client = self.clients[name] = Client(self.world)
        will = Will("will", b"will", 1, True, WillProperties(will_delay=10)) if name == "a" else None
        properties = ConnectProperties(session_expiry=expiry_s, receive_maximum=window)
        client.send(Connect(name, clean_start=clean, will=will, properties=properties))
        if old is not None:
            old.lose()
        self.unanswered[name].clear()
        connack, *packets = client.received()
        assert isinstance(connack, Connack)
        self.unanswered[name] += [packet for packet in packets if isinstance(packet, (Publish, Pubrel))]
        if not connack.session_present:
            self.unreleased[name].clear()

    def _leave(self, name: str, with_disconnect: bool) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            if with_disconnect:
                client.send(Disconnect())
            client.lose()

    def _subscribe(self, name: str, topic_filter: str, qos: int, handling: int) -> None:
        client = self.client(name)
        if client is not None:
            packets = client.subscribe(Subscription(topic_filter, qos, retain_handling=handling), identifier=qos + 1)
            self.unanswered[name] += [packet for packet in packets if isinstance(packet, (Publish, Pubrel))]

    def _unsubscribe(self, name: str, topic_filter: str) -> None:
        client = self.client(name)
        if client is not None:
            client.send(Unsubscribe(client.next_id(), (topic_filter,)))

    def _publish(self, name: str, topic: str, qos: int, retain: bool, empty: bool, expiry_s: int | None) -> None:
        client = self.client(name)
        if client is None:
            return
        self._texts += 1
        text = b"" if retain and empty else b"%d" % self._texts
        packet_id = self._texts % 65_535 + 1 if qos else 0
        if qos == 2:
            self.unreleased[name].append(packet_id)
        properties = PublishProperties(message_expiry=expiry_s)
        client.send(Publish(topic, text, qos, retain, False, packet_id, properties))

    def _release(self, name: str) -> None:
        client = self.client(name)
        if client is not None and self.unreleased[name]:
            client.send(Pubrel(self.unreleased[name].pop(0)))

    def _acknowledge(self, name: str, count: int) -> None:
        client = self.client(name)
        if client is None:
            return
        unanswered = self.unanswered[name]
        for packet in unanswered[:count]:
            if isinstance(packet, Pubrel):
                client.send(Pubcomp(packet.packet_id))
            elif packet.qos:
                client.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))
        del unanswered[:count]

    def _sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)

    def _commit(self) -> None:
        self.world.work()

    def begin(self) -> None:
        """Something to lose."""
        for name in NAMES:
            self.run(("connect", name, True, DAY, 3))
            self.run(("subscribe", name, "t/#", 2, 0))

    def all_return(self, before: Broker) -> None:
        """The clients that were connected to another broker are back while they are awaited: no will goes out."""
        clients, self.clients = self.clients, {}
        sessions = {name: session for name in clients if (session := before._state.sessions.get(name)) is not None}
        here = [name for name, session in sessions.items() if session.connection is clients[name].connection]
        retained = self.world.broker._state.retained
        will = retained._by_topic.get("will")
        self.world.sleep(GRACE_S - 0.5)
        for name in here:
            self._connect(name, False, sessions[name].expiry_s, 3)
        self.world.sleep(1)
        assert "a" not in here or retained._by_topic.get("will") is will

    def all_leave(self) -> None:
        """The one with the will last: it goes to those who are away."""
        for name in reversed(NAMES):
            self._leave(name, with_disconnect=False)


def is_calm(broker: Broker, now: Instant) -> bool:
    """Whether no will and no end of a session is due before clients are no longer awaited."""
    timers = [timer for s in broker._state.sessions.all() for timer in (s.expiry_timer, s.will_timer)]
    return all(timer is None or timer.when > now.monotonic + GRACE_S for timer in timers)


def broker_state(broker: Broker, now: Instant, *, is_exact: bool) -> dict[str, Any]:
    """Everything that must survive; what is fleeting need not. Not exact: whether a message is in flight already may
    differ, as the server was away when it was published.
    """
    state = broker._state
    retained = {
        topic: (message.payload, left(message.expires_at, now))
        for topic, message in state.retained._by_topic.items()
        if not message.is_expired(now)
    }
    return {"retained": retained} | {s.client_id: _session_state(s, now, is_exact) for s in state.sessions.all()}


def _session_state(session: Session, now: Instant, is_exact: bool) -> dict[str, Any]:
    outbound = session.outbound
    flying = [delivery for delivery in outbound.in_flight.values() if not delivery.is_released]
    timers = [None if timer is None else left(timer.when, now) for timer in (session.expiry_timer, session.will_timer)]
    return {
        "expiry": (session.expiry_s, session.user, session.will, timers),
        "grants": {name: (g.qos, g.no_local, g.ids) for name, g in session.subscriptions.items()},
        "messages": [
            (_message_state(d.message, now), d.qos, d.retain, d.subscription_ids, d.packet_id if is_exact else None)
            for d in [*flying, *outbound.waiting.items]
            if not d.message.is_fleeting
        ],
        "releases": [d.packet_id for d in outbound.in_flight.values() if d.is_released],
        "inbound": list(session.inbound.unreleased),
        "cursors": {name: (cursor.qos, cursor.ids, cursor.at) for name, cursor in session.cursors.items()},
        "bytes": sum(map(_size, outbound.waiting.items)) if is_exact else None,
    }


def _size(delivery: Delivery) -> int:
    """Without what a message from the disk does not have."""
    message = delivery.message
    return 0 if message.is_fleeting else message.size - len(message.block or b"")


def _message_state(message: Message, now: Instant) -> tuple[Any, ...]:
    return (message.topic, message.payload, message.publisher, left(message.expires_at, now))


class Left(float):
    """Seconds, equal to others that are nearly the same: deadlines are rounded on their way to the disk."""

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        return float.__eq__(self, other) or (isinstance(other, float) and abs(self - other) < 0.01)


def left(when: float | None, now: Instant) -> Left | None:
    """Until a deadline."""
    return None if when is None else Left(when - now.monotonic)
