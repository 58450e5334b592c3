"""Any packets in any order, verdicts early, late and never, rules that change: nobody gets in unjudged."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Allowed, Client, World
from test_broker_fuzz import CONNECTS, PACKETS

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    Connect,
    Packet,
    Publish,
    Subscribe,
    Subscription,
)
from statestore_client.server.broker import Admitted, Broker, Credentials, Refusal, Verdict, Verification

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
STEPS = st.lists(
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
@given(RULES, STEPS)
def test_nobody_gets_in_unjudged(rules: dict[str, frozenset[str]], steps: list[tuple[int, str, object]]) -> None:
    """There is no exception, no session without a verdict, and none with a subscription that its rules forbid."""
    gate = Gate(rules)
    world = World(gatekeeper=gate, connect_timeout_s=2)
    clients: dict[int, Client] = {}
    open_questions: list[Verification] = []
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
        check(world, gate, clients)
    for client in clients.values():
        client.lose()
    world.sleep(20)
    check(world, gate, {})


def judge(broker: Broker, gate: Gate, question: Verification, verdict: object, world: World) -> None:
    """Bring a verdict, in time or too late."""
    assert isinstance(verdict, Admitted | Refusal)
    if question.is_current:
        gate.count(verdict)
    broker.verified(question, verdict, world.now)


def check(world: World, gate: Gate, clients: dict[int, Client]) -> None:
    """What has to be true after every step."""
    broker = world.broker
    assert broker.audit() == ()
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
