"""The gatekeeper's verdicts: at once, later, never; enhanced authentication; permissions."""

from __future__ import annotations

from typing import Any

import pytest
from support.broker_driver import Allowed, Client, World
from support.broker_invariants import audit

from statestore_client.mqtt.packets import (
    Auth,
    AuthProperties,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Will,
    WillProperties,
)
from statestore_client.server.broker import Admitted, Credentials, Refusal, Verdict

#: Reason codes as the standard numbers them (MQTT 5.0, 2.4).
PROTOCOL_ERROR, IMPLEMENTATION_SPECIFIC, BAD_PASSWORD, NOT_AUTHORIZED, UNAVAILABLE = 0x82, 0x83, 0x86, 0x87, 0x88
BAD_METHOD, ADMINISTRATIVE = 0x8C, 0x98


class Gate:
    """Remembers what it was asked, and answers what it was told to."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.verdict = verdict
        self.asked: list[Credentials] = []
        self.rules: dict[str | None, Allowed] = {}

    def authenticate(self, credentials: Credentials) -> Verdict | None:
        self.asked.append(credentials)
        return self.verdict

    def permissions(self, user: str | None, client_id: str) -> Allowed | None:
        return self.rules.get(user)


def connecting(world: World, client_id: str = "c", *, version: int = 5, **options: Any) -> Client:
    """A client that has said CONNECT."""
    client = Client(world, version)
    method, data = options.pop("method", None), options.pop("data", None)
    expiry, window = options.pop("session_expiry", None), options.pop("receive_maximum", None)
    properties = ConnectProperties(
        session_expiry=expiry,
        receive_maximum=window,
        request_problem_information=1,
        authentication_method=method,
        authentication_data=data,
    )
    client.send(Connect(client_id, version=version, properties=properties, **options))
    return client


def judged(world: World, verdict: Verdict) -> None:
    """The verdict on the one question that is open."""
    (verification,) = world.broker.reports.take_verifications()
    world.broker.verified(verification, verdict, world.now)


def in_with_token(world: World, gate: Gate, user: str = "pump") -> Client:
    """A client that came in with a token."""
    gate.verdict = Admitted(user)
    client = connecting(world, method="M", data=b"1")
    assert client.one(Connack).reason_code == 0
    gate.verdict = None
    return client


# -- the verdict on CONNECT --------------------------------------------------------------------------------------------


def test_the_gatekeeper_sees_what_the_client_showed() -> None:
    """The gatekeeper gets user name, password, method, data and TLS's verified name; its argument's repr shows no
    secret."""
    gate = Gate(Admitted())
    world = World(gatekeeper=gate)
    connection = world.broker.connection_opened(world.now, certificate="cn")
    properties = ConnectProperties(authentication_method="M", authentication_data=b"secret data")
    packet = Connect("c", username="u", password=b"secret word", properties=properties)
    world.broker.receive(connection, [packet], world.now)
    assert gate.asked == [Credentials("c", "cn", "u", b"secret word", "M", b"secret data")]
    assert "secret" not in repr(gate.asked)


@pytest.mark.parametrize("version", [5, 4])
def test_a_late_refusal(version: int) -> None:
    """A refusal that comes later is told in CONNACK, and the connection ends."""
    world = World(gatekeeper=Gate())
    client = connecting(world, version=version, username="u")
    assert not client.received()
    judged(world, Refusal(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong"))
    assert client.one(Connack).reason_code == BAD_PASSWORD
    assert client.is_ended
    assert world.broker.usage.sessions == 0
    assert world.broker.counters.refused_connects == 1


def test_packets_behind_connect_wait_for_the_verdict() -> None:
    """Packets that come before the verdict, for which a client need not wait (MQTT 5.0, 3.1.4), are handled after it in
    order."""
    world = World(gatekeeper=Gate())
    client = connecting(world, username="u")
    client.send(Subscribe(1, (Subscription("t", 1),)), Publish("t", b"x", 1, packet_id=2), Pingreq())
    assert not client.received()
    judged(world, Admitted("u"))
    kinds = [type(packet) for packet in client.received()]
    assert kinds == [Connack, Suback, Puback, Publish, Pingresp]


def test_a_second_connect_behind_the_first_is_one_too_many() -> None:
    """A second CONNECT before the verdict is held, and then is a protocol error."""
    world = World(gatekeeper=Gate())
    client = connecting(world, username="u")
    client.send(Connect("c2"))
    judged(world, Admitted("u"))
    connack, disconnect = client.received()
    assert isinstance(connack, Connack)
    assert isinstance(disconnect, Disconnect)
    assert disconnect.reason_code == PROTOCOL_ERROR
    assert len(world.broker.reports.take_verifications()) == 0


@pytest.mark.parametrize("packet", [Publish("t"), Auth(0x19, AuthProperties("M", b"2"))])
def test_nothing_may_come_behind_a_connect_with_a_method(packet: Packet) -> None:
    """Behind a CONNECT with a method only AUTH that answers the server's, and DISCONNECT, may come (MQTT-3.1.2-30)."""
    world = World(gatekeeper=Gate())
    client = connecting(world, method="M", data=b"1")
    client.send(packet)
    assert client.one(Connack).reason_code == PROTOCOL_ERROR
    judged(world, Admitted("u"))
    assert not client.received()
    assert world.broker.usage.sessions == 0


def test_a_verdict_that_does_not_come() -> None:
    """Without a verdict in time CONNACK has a code that is worth another attempt, and a late verdict changes
    nothing."""
    world = World(gatekeeper=Gate(), connect_timeout_s=10)
    client = connecting(world, username="u")
    world.sleep(9.9)
    assert not client.received()
    world.sleep(0.2)
    assert client.one(Connack).reason_code == UNAVAILABLE
    judged(world, Admitted("u"))
    assert world.broker.usage.sessions == 0


def test_a_peer_that_left_before_the_verdict() -> None:
    """A peer that left before its verdict gets no session."""
    world = World(gatekeeper=Gate())
    client = connecting(world, username="u")
    (verification,) = world.broker.reports.take_verifications()
    assert verification.is_current
    client.lose()
    assert not verification.is_current
    world.broker.verified(verification, Admitted("u"), world.now)
    assert world.broker.usage.sessions == 0


def test_limits_are_looked_at_again_with_the_verdict() -> None:
    """Limits are checked again with the verdict, so that of two that wait for the last place one gets it."""
    world = World(gatekeeper=Gate(), connections=1)
    clients = [connecting(world, client_id, username="u") for client_id in "ab"]
    for verification in world.broker.reports.take_verifications():
        world.broker.verified(verification, Admitted("u"), world.now)
    assert [client.one(Connack).reason_code for client in clients] == [0, 0x89]


def test_a_session_belongs_to_its_user() -> None:
    """Another user gets neither the session nor the connection of a client identifier, not even with a clean start."""
    gate = Gate(Admitted("alice"))
    world = World(gatekeeper=gate)
    alice = connecting(world, session_expiry=100)
    assert alice.one(Connack).reason_code == 0
    for user in ("mallory", None):
        gate.verdict = Admitted(user)
        mallory = connecting(world)
        assert mallory.one(Connack).reason_code == NOT_AUTHORIZED
    assert not alice.is_ended
    alice.lose()
    assert connecting(world).one(Connack).reason_code == NOT_AUTHORIZED
    gate.verdict = Admitted("alice")
    assert connecting(world, clean_start=False).one(Connack).session_present


# -- AUTH --------------------------------------------------------------------------------------------------------------


def test_a_renewal_with_a_late_verdict() -> None:
    """AUTH 0x19 is answered with AUTH 0x00 when the verdict comes, and the connection goes on meanwhile."""
    gate = Gate()
    world = World(gatekeeper=gate)
    client = in_with_token(world, gate)
    client.send(Auth(0x19, AuthProperties("M", b"2")))
    assert gate.asked[-1] == Credentials("c", None, None, None, "M", b"2")
    client.send(Pingreq())
    client.one(Pingresp)
    judged(world, Admitted("pump"))
    assert client.one(Auth) == Auth(0x00, AuthProperties("M"))
    world.sleep(100)
    assert not client.is_ended


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Refusal(ReasonCode.NOT_AUTHORIZED, "expired"), NOT_AUTHORIZED),
        (Refusal(ReasonCode.SERVER_UNAVAILABLE, "nobody knows"), IMPLEMENTATION_SPECIFIC),
        (Admitted("another"), NOT_AUTHORIZED),
        (Admitted(None), NOT_AUTHORIZED),
    ],
)
def test_a_renewal_that_fails(verdict: Verdict, code: int) -> None:
    """A failed renewal, also with a token of another user, ends the connection with DISCONNECT."""
    gate = Gate()
    world = World(gatekeeper=gate)
    client = in_with_token(world, gate)
    client.send(Auth(0x19, AuthProperties("M", b"2")))
    judged(world, verdict)
    assert client.one(Disconnect).reason_code == code


def test_two_renewals_at_once() -> None:
    """A second renewal before the end of the first ends the connection."""
    gate = Gate()
    world = World(gatekeeper=gate)
    client = in_with_token(world, gate)
    client.send(Auth(0x19, AuthProperties("M", b"2")), Auth(0x19, AuthProperties("M", b"3")))
    assert client.one(Disconnect).reason_code == PROTOCOL_ERROR


def test_a_renewal_without_a_verdict() -> None:
    """A renewal without a verdict ends the connection after the time for connecting, with a code worth another
    attempt."""
    gate = Gate()
    world = World(gatekeeper=gate, connect_timeout_s=10)
    client = in_with_token(world, gate)
    client.send(Auth(0x19, AuthProperties("M", b"2")))
    world.sleep(10.1)
    assert client.one(Disconnect).reason_code == IMPLEMENTATION_SPECIFIC
    judged(world, Admitted("pump"))
    assert not client.received()


# -- permissions -------------------------------------------------------------------------------------------------------


def guarded(*topics: str) -> tuple[World, Gate]:
    gate = Gate(Admitted("u"))
    gate.rules["u"] = Allowed(frozenset(topics))
    return World(gatekeeper=gate), gate


def test_a_forbidden_publish() -> None:
    """A forbidden PUBLISH of any QoS, also with RETAIN, reaches nobody."""
    world, gate = guarded("open")
    gate.rules["spy"] = Allowed(frozenset("#"))
    client = world.client("c")
    gate.verdict = Admitted("spy")
    spy = world.client("spy")
    spy.subscribe("#")
    client.publish("open", b"x", 1)
    for qos in (1, 2, 0):
        client.publish("secret", b"x", qos, retain=True)
    assert [message.topic for message in spy.messages()] == ["open"]
    assert spy.subscribe("#") == []


def test_a_forbidden_will() -> None:
    """A CONNECT with a forbidden will is refused."""
    world, _ = guarded("open")
    assert connecting(world, will=Will("secret", b"")).one(Connack).reason_code == NOT_AUTHORIZED
    assert connecting(world, will=Will("open", b"")).one(Connack).reason_code == 0


def test_a_client_that_may_not_be_here() -> None:
    """The rules can refuse a connection itself."""
    world, gate = guarded()
    gate.rules["u"] = Allowed(frozenset(), Refusal(ReasonCode.NOT_AUTHORIZED, "not with this name"))
    connack = connecting(world).one(Connack)
    assert (connack.reason_code, connack.properties.reason_string) == (NOT_AUTHORIZED, "not with this name")


@pytest.mark.attack("MQTT", "rights that were taken away")
def test_new_rules() -> None:
    """With new rules affected clients are disconnected, and forbidden subscriptions are removed, also those of absent
    clients."""
    world, gate = guarded("a", "b")
    gate.rules["v"] = Allowed(frozenset("a"))
    here = connecting(world, "here", session_expiry=100)
    away = connecting(world, "away", session_expiry=100)
    gate.verdict = Admitted("v")
    other = connecting(world, "other", session_expiry=100)
    for client in (here, away, other):
        client.received()
        client.subscribe("a", "b")
    away.lose()
    gate.rules["u"] = Allowed(frozenset("b"))
    world.broker.review(world.now)
    assert here.one(Disconnect).reason_code == ADMINISTRATIVE
    assert not other.is_ended
    gate.verdict = Admitted("u")
    for client_id in ("here", "away"):
        client = connecting(world, client_id, clean_start=False)
        assert client.one(Connack).session_present
        other.publish("a", b"")
        assert not client.messages()
        client.publish("b", b"")
        assert [message.topic for message in client.messages()] == ["b"]


@pytest.mark.attack("MQTT", "rights that were taken away")
@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_when_a_right_is_taken_away_is_not_sent(qos: int) -> None:
    """Messages that wait for a client, or were sent and not acknowledged, are dropped if it loses the right to their
    topic; those of other topics come in their order, and the window is as wide as ever."""
    world, gate = guarded("a", "b")
    gate.rules["v"] = Allowed(frozenset("ab"))
    client = connecting(world, "c", session_expiry=100, receive_maximum=1)
    client.received()
    client.subscribe("a", "b", qos=qos)
    gate.verdict = Admitted("v")
    sender = connecting(world, "sender")
    for number in range(6):
        sender.publish("ab"[number % 2], b"%d" % number, qos)
    assert [message.payload for message in client.messages()] == [b"0"]  # the window is full
    gate.rules["u"] = Allowed(frozenset("b"))
    world.broker.review(world.now)
    assert client.is_ended
    gate.verdict = Admitted("u")
    client = connecting(world, "c", session_expiry=100, clean_start=False, receive_maximum=3)
    assert [message.payload for message in client.messages()] == [b"1", b"3", b"5"]
    assert world.broker.counters.dropped_forbidden == world.broker.counters.dropped == 3
    assert audit(world.broker) == ()


@pytest.mark.attack("MQTT", "a will, a session, or a subscription of a user that was removed")
def test_users_that_are_gone() -> None:
    """Users that were removed are disconnected; neither their sessions nor their wills stay. Others do not notice."""
    gate = Gate(Admitted("u"))
    world = World(gatekeeper=gate)
    will = Will("w", b"of u", properties=WillProperties(will_delay=5))
    here = connecting(world, "here", session_expiry=100, will=will)
    away = connecting(world, "away", session_expiry=100, will=will)
    for client in (here, away):
        client.received()
    away.subscribe("t")
    away.lose()
    gate.verdict = Admitted("v")
    other = connecting(world, "other", session_expiry=100, will=Will("w", b"of v"))
    observer = connecting(world, "observer")
    observer.received()
    observer.subscribe("w")
    world.broker.review(world.now, gone={"u"})
    assert here.one(Disconnect).reason_code == ADMINISTRATIVE
    assert not other.is_ended
    world.sleep(10)
    other.lose()
    assert [message.payload for message in observer.messages()] == [b"of v"]
    gate.verdict = Admitted("v")
    for client_id in ("here", "away"):
        connack = connecting(world, client_id, clean_start=False).one(Connack)
        assert (connack.reason_code, connack.session_present) == (0, False)
