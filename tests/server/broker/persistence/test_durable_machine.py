"""Random programs against a broker with a journal. The oracle is the same broker, whose clients all lose their
connection at the moment of the crash: what is restored from the committed batches must be in the same state.

All that a client ever received was committed before, so this says that what was acknowledged is there, in order, that
QoS 2 identifiers and PUBRELs are, and that nothing is there that is over.
"""

from __future__ import annotations

from typing import Any

from broker_driver import Client
from durable_driver import DAY, DurableWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
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
from statestore_client.server.broker import Broker
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.session.session import Session
from statestore_client.wire.instant import Instant

_NAMES = ("a", "b", "c")
_TOPICS = ("t", "t/1", "t/2", "will")
_FILTERS = ("t", "t/#", "+/1", "#", "$share/g/t/#")

_name = st.sampled_from(_NAMES)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), _name, st.booleans(), st.sampled_from((0, 50, DAY)), st.sampled_from((1, 3, 50))),
        st.tuples(st.just("leave"), _name, st.booleans()),
        st.tuples(st.just("subscribe"), _name, st.sampled_from(_FILTERS), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("unsubscribe"), _name, st.sampled_from(_FILTERS)),
        st.tuples(
            st.just("publish"), _name, st.sampled_from(_TOPICS[:3]), st.integers(0, 2), st.booleans(), st.booleans(),
            st.sampled_from((None, 20, 500)),
        ),
        st.tuples(st.just("release"), _name),
        st.tuples(st.just("acknowledge"), _name, st.integers(1, 4)),
        st.tuples(st.just("publish"), _name, st.just("t/1"), st.just(2), st.just(False), st.just(False), st.none()),
        st.tuples(st.just("sleep"), st.sampled_from((1.0, 30.0))),
        st.tuples(st.just("commit")),
        st.tuples(st.just("crash"), st.sampled_from((0.0, 25.0))),
    ),
    max_size=60,
)  # fmt: skip


class _Program:
    """Three clients, at most one of them with a will: the order of two that are due together is not defined."""

    def __init__(self) -> None:
        self.world = DurableWorld()
        self.clients: dict[str, Client] = {}
        self.unanswered: dict[str, list[Publish | Pubrel]] = {name: [] for name in _NAMES}
        self.unreleased: dict[str, list[int]] = {name: [] for name in _NAMES}
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

    def _crash(self, away_s: float) -> None:
        """Compare the restored broker with the one whose clients are all gone now."""
        world = self.world
        world.work()
        written = world.storage.copy()
        world.sleep(away_s)
        for name in reversed(_NAMES):  # the one with the will last: it goes to those who are away
            self._leave(name, with_disconnect=False)
        expected = _state(world.broker, world.now, is_exact=not away_s)
        world.storage = written
        world.crash()
        assert _state(world.broker, world.now, is_exact=not away_s) == expected
        assert world.broker.audit() == ()
        world.work()

    def end(self) -> None:
        """When all sessions and retained messages are gone, nothing is left on the disk."""
        self._crash(0.0)
        world = self.world
        for name in _NAMES:
            client = Client(world)
            client.send(Connect(name, clean_start=True))
            client.received()
        for topic in _TOPICS:
            client.publish(topic, b"", 1, retain=True)
        client.received()
        assert world.storage.count() == {}


def _state(broker: Broker, now: Instant, *, is_exact: bool) -> dict[str, Any]:
    """Everything that must survive. Not exact: whether a message is in flight already may differ, as the server was
    away when it was published.
    """
    state = broker._state
    retained = {
        topic: (message.payload, _left(message.expires_at, now))
        for topic, message in state.retained._by_topic.items()
        if not message.is_expired(now)
    }
    return {"retained": retained} | {s.client_id: _session_state(s, now, is_exact) for s in state.sessions.all()}


def _session_state(session: Session, now: Instant, is_exact: bool) -> dict[str, Any]:
    outbound = session.outbound
    flying = [delivery for delivery in outbound.in_flight.values() if not delivery.is_released]
    timers = [None if timer is None else _left(timer.when, now) for timer in (session.expiry_timer, session.will_timer)]
    return {
        "expiry": (session.expiry_s, session.user, session.will, timers),
        "grants": {name: (g.qos, g.no_local, g.ids) for name, g in session.subscriptions.items()},
        "messages": [
            (_message_state(d.message, now), d.qos, d.retain, d.subscription_ids, d.packet_id if is_exact else None)
            for d in [*flying, *outbound.waiting.items]
        ],
        "releases": [d.packet_id for d in outbound.in_flight.values() if d.is_released],
        "inbound": list(session.inbound.unreleased),
        "walks": {name: (walk.qos, walk.ids, walk.at) for name, walk in session.walks.items()},
        "bytes": session.outbound.waiting.bytes if is_exact else None,
    }


def _message_state(message: Message, now: Instant) -> tuple[Any, ...]:
    return (message.topic, message.payload, message.publisher, _left(message.expires_at, now))


def _left(when: float | None, now: Instant) -> float | None:
    return None if when is None else round(when - now.monotonic, 2)


@given(_steps)
@settings(max_examples=100, deadline=None)
def test_a_restored_broker_is_one_whose_clients_all_left(steps: list[tuple[Any, ...]]) -> None:
    """At any crash sessions, queues, QoS 2 state, wills and retained messages equal those of a broker whose clients all
    left."""
    program = _Program()
    for name in _NAMES:  # something to lose
        program.run(("connect", name, True, DAY, 3))
        program.run(("subscribe", name, "t/#", 2, 0))
    for step in steps:
        program.run(step)
    program.end()
