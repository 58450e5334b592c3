"""Any packets in any order: the broker never raises, never forgets its invariants, and both clocks only go on. With
verdicts early, late and never, and rules that change, nobody gets in unjudged.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Allowed, Client, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeProperties,
    Subscription,
    Unsubscribe,
    Will,
    WillProperties,
)
from statestore_client.server.broker import Admitted, Broker, Credentials, PendingAuth, Refusal, Verdict

IDS = st.integers(1, 4)
TOPICS = st.sampled_from(["a", "a/b", "a/b/c", "$x", "b"])
FILTERS = st.sampled_from(["a", "a/#", "+/b", "#", "$share/g/a/#", "$share/g/+", "$x"])
QOS = st.integers(0, 2)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(QOS)
    properties = PublishProperties(
        message_expiry=draw(st.none() | st.integers(0, 5)), topic_alias=draw(st.none() | st.integers(1, 3))
    )
    topic = draw(TOPICS) if properties.topic_alias is None else draw(TOPICS | st.just(""))
    payload = draw(st.sampled_from([b"", b"x", b"y" * 300]))
    return Publish(topic, payload, qos, draw(st.booleans()), False, draw(IDS) if qos else 0, properties)


SUBSCRIPTIONS = st.builds(Subscription, FILTERS, QOS, st.just(False), st.booleans(), st.integers(0, 2))
WILLS = st.builds(
    Will, TOPICS, st.just(b"w"), QOS, st.booleans(), st.builds(WillProperties, will_delay=st.none() | st.integers(0, 9))
)
CONNECTS = st.builds(
    Connect,
    st.sampled_from(["", "c1", "c2", "c3"]),
    version=st.sampled_from([4, 5]),
    clean_start=st.booleans(),
    keep_alive=st.integers(0, 5),
    will=st.none() | WILLS,
    properties=st.builds(
        ConnectProperties,
        session_expiry=st.none() | st.integers(0, 9),
        receive_maximum=st.none() | st.integers(1, 3),
        maximum_packet_size=st.none() | st.integers(60, 400),
    ),
)
PACKETS: st.SearchStrategy[Packet] = st.one_of(
    publishes(),
    publishes(),
    st.builds(Puback, IDS),
    st.builds(Pubrec, IDS, st.sampled_from([0, 0x80])),
    st.builds(Pubrel, IDS),
    st.builds(Pubcomp, IDS),
    st.builds(
        Subscribe,
        IDS,
        st.lists(SUBSCRIPTIONS, min_size=1, max_size=3).map(tuple),
        st.builds(SubscribeProperties, subscription_id=st.none() | st.integers(1, 9)),
    ),
    st.builds(Unsubscribe, IDS, st.lists(FILTERS, min_size=1, max_size=2).map(tuple)),
    st.just(Pingreq()),
    st.builds(Disconnect, st.sampled_from([0, 4]), st.builds(DisconnectProperties, st.none() | st.integers(0, 9))),
    st.just(Auth()),
    st.just(Connack()),
    CONNECTS,
)
STEPS = st.lists(
    st.tuples(st.integers(0, 3), CONNECTS.map(lambda c: ("open", c)))
    | st.tuples(st.integers(0, 3), PACKETS.map(lambda p: ("send", p)))
    | st.tuples(
        st.integers(0, 3), st.sampled_from([("lose", None), ("congest", None), ("drain", None), ("wait", None)])
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
@pytest.mark.attack("MQTT", "spoiled packets in any order, from strangers and clients")
def test_the_broker_survives_everything(steps: list[tuple[int, tuple[str, Packet | None]]]) -> None:
    """Four connections with three names and small limits raise no exception, and the counts agree afterwards."""
    world = World(
        queued_messages=3,
        receive_maximum=2,
        retained_messages=2,
        subscriptions_per_session=3,
        outbox_bytes=500,
        session_expiry_s=0xFFFFFFFF,
    )
    clients: dict[int, Client] = {}
    for slot, (what, packet) in steps:
        client = clients.get(slot)
        if what == "open" and packet is not None:
            if client is not None:
                client.lose()
            clients[slot] = client = Client(world, packet.version if isinstance(packet, Connect) else 5)
            client.send(packet)
        elif client is None:
            continue
        elif what == "send" and packet is not None:
            client.send(packet)
        elif what == "lose":
            client.lose()
            del clients[slot]
        elif what == "congest":
            world.broker.congested(client.connection)
        elif what == "drain":
            world.broker.drained(client.connection, world.now)
        else:
            world.sleep(1.5)
        check(world)
        for other in clients.values():
            if not other.connection.is_congested:
                other.received()
    for client in clients.values():
        client.lose()
    world.sleep(20)
    check(world)
    assert all(session.expiry_s is None for session in world.broker.sessions())
    for session in world.broker.sessions():
        last = Client(world)
        last.send(Connect(session.client_id))
        last.lose()
    check(world)
    usage = world.broker.usage
    assert (usage.sessions, usage.held_bytes, usage.subscription_bytes) == (0, 0, 0)


def check(world: World) -> None:
    """No invariant is broken, no limit passed, and no fault escaped."""
    assert audit(world.broker) == ()
    for session in world.broker.sessions():
        assert session.queued <= 2 * 3
        assert session.unreleased <= 4
    assert world.broker.usage.retained_messages <= 2
    assert world.broker.reports.take_faults() == []


# -- verdicts and rules ------------------------------------------------------------------------------------------------


USERS = st.sampled_from(["u", "v", None])
VERDICTS = st.builds(Admitted, USERS) | st.just(Refusal(0x87, "no"))
RULES = st.fixed_dictionaries(
    {user: st.frozensets(st.sampled_from(["a", "a/b", "b", "a/#", "#"])) for user in ("u", "v")}
)


class Gate:
    """Answers with the next verdict of a list, or later when there is none."""

    def __init__(self, rules: dict[str, frozenset[str]]) -> None:
        self.rules = rules
        self.next: Verdict | None = None
        self.admitted = 0

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        verdict, self.next = self.next, None
        self.count(verdict)
        return verdict

    def count(self, verdict: Verdict | None) -> None:
        self.admitted += isinstance(verdict, Admitted)

    def permissions(self, user: str | None, client_id: str) -> Allowed | None:
        return None if user is None else Allowed(self.rules[user])


def with_method(packet: Connect, method: str | None) -> Connect:
    """CONNECT of 5.0 with enhanced authentication."""
    if packet.version != 5 or method is None:
        return packet
    properties = attrs.evolve(packet.properties, authentication_method=method, authentication_data=b"1")
    return attrs.evolve(packet, properties=properties)


METHODS = st.sampled_from([None, None, "M"])
AUTHS = st.builds(Auth, st.sampled_from([0x18, 0x19]), st.builds(AuthProperties, st.sampled_from(["M", "N"])))
GATED_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.just("open"), st.builds(with_method, CONNECTS, METHODS))
    | st.tuples(st.integers(0, 2), st.just("enter"), st.builds(with_method, CONNECTS, METHODS))
    | st.tuples(st.integers(0, 2), st.just("subscribe"), st.sampled_from(["a", "b", "a/#", "#"]))
    | st.tuples(st.integers(0, 2), st.just("send"), PACKETS | AUTHS)
    | st.tuples(st.integers(0, 2), st.sampled_from(["lose", "wait"]), st.none())
    | st.tuples(st.integers(0, 2), st.sampled_from(["judge", "next"]), VERDICTS)
    | st.tuples(st.integers(0, 2), st.just("rules"), RULES),
    max_size=50,
)


@settings(max_examples=300, deadline=None)
@given(RULES, GATED_STEPS)
@pytest.mark.ci
@pytest.mark.attack("MQTT", "come in without a verdict")
def test_nobody_gets_in_unjudged(rules: dict[str, frozenset[str]], steps: list[tuple[int, str, object]]) -> None:
    """There is no exception, no session without a verdict, and none with a subscription that its rules forbid."""
    gate = Gate(rules)
    world = World(gatekeeper=gate, connect_timeout_s=2)
    clients: dict[int, Client] = {}
    open_questions: list[PendingAuth] = []
    for slot, what, argument in steps:
        client = clients.get(slot)
        if what in ("open", "enter") and isinstance(argument, Connect):
            if what == "enter":
                gate.next = Admitted("uv"[slot % 2])
            if client is not None:
                client.lose()
            clients[slot] = client = Client(world, argument.version)
            client.send(argument)
        elif what == "next":
            gate.next = argument
        elif what == "rules":
            gate.rules = argument
            world.broker.review(world.now)
        elif what == "judge" and open_questions:
            judge(world.broker, gate, open_questions.pop(slot % len(open_questions)), argument, world)
        elif what == "wait":
            world.sleep(1.5)
        elif client is not None and what == "lose":
            client.lose()
            del clients[slot]
        elif client is not None and what == "subscribe":
            client.send(Subscribe(1, (Subscription(str(argument), 1),)))
        elif client is not None and what == "send":
            client.send(argument)
        open_questions += world.broker.reports.take_verifications()
        check_gate(world, gate, clients)
    for client in clients.values():
        client.lose()
    world.sleep(20)
    check_gate(world, gate, {})


def judge(broker: Broker, gate: Gate, question: PendingAuth, verdict: object, world: World) -> None:
    """Bring a verdict, in time or too late."""
    assert isinstance(verdict, Admitted | Refusal)
    if question.is_current:
        gate.count(verdict)
    broker.verified(question, verdict, world.now)


def check_gate(world: World, gate: Gate, clients: dict[int, Client]) -> None:
    """What has to be true after every step."""
    broker = world.broker
    assert audit(broker) == ()
    assert broker.counters.connects <= gate.admitted
    assert broker.reports.take_faults() == []
    for session in broker.sessions():
        permissions = gate.permissions(session.user, session.client_id)
        assert broker.permissions(session.client_id) == permissions
        if permissions is not None:
            assert all(permissions.may_subscribe(topic_filter) for topic_filter in session.subscriptions)
    for client in clients.values():
        packets: list[Packet] = client.received()
        if client.connection.session is None:
            assert not any(isinstance(packet, Publish | Auth) for packet in packets)
            assert all(packet.reason_code for packet in packets if isinstance(packet, Connack))
        verification = client.connection.verification
        assert verification is None or not verification.held or client.connection.session is None
