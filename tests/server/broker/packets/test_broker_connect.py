"""CONNECT, sessions, take-over, keep-alive, DISCONNECT."""

from __future__ import annotations

import pytest
from support.broker_driver import Client, World

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    AuthProperties,
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    DisconnectProperties,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Unsuback,
    Will,
)


def test_connack_announces_the_limits() -> None:
    """CONNACK names what differs from the defaults of the protocol, and nothing else."""
    connack = World(receive_maximum=7, packet_bytes=5000, topic_alias_maximum=3).client().connack
    assert connack.reason_code == 0
    assert not connack.session_present
    properties = connack.properties
    assert (properties.receive_maximum, properties.maximum_packet_size, properties.topic_alias_maximum) == (7, 5000, 3)
    assert properties.assigned_client_id is None
    assert properties.server_keep_alive is None
    assert properties.session_expiry is None


def test_anonymous_clients_get_different_names() -> None:
    """An empty client identifier is answered with an assigned one (MQTT 5.0, 3.1.3.1)."""
    world = World()
    names = {world.client("").connack.properties.assigned_client_id for _ in range(3)}
    assert len(names) == 3
    assert None not in names


def test_an_anonymous_session_is_refused_in_3_1_1() -> None:
    """An empty client identifier without clean session gets return code 2 in 3.1.1, as nobody could return to it
    (3.1.3.1)."""
    client = World().client("", version=MQTT_3_1_1, clean_start=False)
    assert client.connack.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    assert client.is_ended


@pytest.mark.parametrize(
    ("connect", "limits", "code"),
    [
        ({"client_id": "x" * 50}, {"client_id_bytes": 23}, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ({"authentication_method": "K8S-SAT"}, {}, ReasonCode.BAD_AUTHENTICATION_METHOD),
        ({"will": Will("a/b/c/d")}, {"topic_levels": 3}, ReasonCode.TOPIC_NAME_INVALID),
        ({}, {"connections": 0}, ReasonCode.SERVER_BUSY),
        ({}, {"sessions": 0}, ReasonCode.QUOTA_EXCEEDED),
    ],
)
def test_refused_connects(connect: dict[str, object], limits: dict[str, int], code: ReasonCode) -> None:
    """A CONNECT that cannot be served gets a CONNACK with the reason and a close; no session is left."""
    world = World(**limits)
    client = world.client(**{"client_id": "c", **connect})
    assert client.connack.reason_code == code
    assert client.is_ended
    client.lose()
    assert world.broker.usage.sessions == 0
    assert world.broker.counters.refused_connects == 1


def test_the_first_packet_must_be_connect() -> None:
    """A first packet that is not CONNECT is a protocol error without an answer."""
    client = Client(World())
    client.send(Pingreq())
    assert client.received() == []
    assert client.is_ended


def test_a_second_connect_is_a_protocol_error() -> None:
    """A second CONNECT is a protocol error (MQTT-3.1.0-2)."""
    client = World().client()
    client.send(Connect("c"))
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("packet", [Connack(), Suback(1, (0,)), Unsuback(1, (0,)), Pingresp()])
def test_packets_of_servers_are_protocol_errors(packet: Packet) -> None:
    """A client that sends what only servers send is disconnected with 0x82; later packets are ignored."""
    client = World().client()
    client.send(packet, Pingreq())
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_auth_is_refused() -> None:
    """AUTH without an agreed method is a protocol error (MQTT-4.12.0-7)."""
    client = World().client()
    client.send(Auth(0x19, AuthProperties(authentication_method="x")))
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


def test_3_1_1_clients_get_a_close_instead_of_disconnect() -> None:
    """A 3.1.1 client gets a close, because that version has no DISCONNECT from the server."""
    client = World().client(version=MQTT_3_1_1)
    client.send(Connack())
    assert client.received() == []
    assert client.is_ended


def test_ping_is_answered() -> None:
    """PINGREQ gets PINGRESP."""
    client = World().client()
    client.send(Pingreq())
    client.one(Pingresp)


# -- malformed bytes --------------------------------------------------------------------------------------------------


def test_malformed_bytes_are_answered_by_version_and_state() -> None:
    """Malformed bytes get DISCONNECT after CONNECT, CONNACK during it, and no answer if they may not be MQTT."""
    world = World()
    connected, half, stranger, old = world.client("a"), Client(world), Client(world), Client(world, MQTT_3_1_1)
    broken = world.broker.receive_broken
    broken(connected.connection, 0x81, "bad", world.now, version=5)
    broken(half.connection, 0x81, "bad", world.now, version=5)
    broken(stranger.connection, 0x82, "bad", world.now, version=None)
    broken(old.connection, 0x84, "protocol version 3", world.now, version=None)
    assert connected.one(Disconnect).reason_code == 0x81
    assert half.one(Connack).reason_code == 0x81
    assert stranger.received() == []
    assert old.one(Connack).reason_code == 0x84
    assert all(client.is_ended for client in (connected, half, stranger, old))


def test_a_second_connect_of_an_unknown_version_is_a_protocol_error() -> None:
    """A second CONNECT of an unknown version is a protocol error, because DISCONNECT has no code for versions."""
    world = World()
    client = world.client()
    world.broker.receive_broken(client.connection, 0x84, "protocol version 9", world.now, version=5)
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_survives_its_connection() -> None:
    """With an expiry the session and its subscriptions survive, and messages sent meanwhile arrive."""
    world = World()
    client = world.client("c", session_expiry=60)
    client.subscribe("t", qos=1)
    client.lose()
    world.client("p").publish("t", b"meanwhile", 1)
    again = Client(world)
    again.send(Connect("c", clean_start=False, properties=ConnectProperties(session_expiry=60)))
    connack, message = again.received()
    assert isinstance(connack, Connack)
    assert connack.session_present
    assert isinstance(message, Publish)
    assert (message.payload, message.dup) == (b"meanwhile", False)


def test_clean_start_forgets_the_session() -> None:
    """After a clean start nothing of the old session is left, and session present is 0."""
    world = World()
    client = world.client("c", session_expiry=60)
    client.subscribe("t", qos=1)
    client.lose()
    client = world.client("c", session_expiry=60)
    assert not client.connack.session_present
    world.client("p").publish("t", b"x", 1)
    assert client.received() == []


@pytest.mark.parametrize(("away_s", "is_present"), [(9.9, True), (10.1, False)])
def test_a_session_expires(away_s: float, is_present: bool) -> None:
    """A session expires by the time since its connection was lost."""
    world = World()
    client = world.client("c", session_expiry=10)
    world.sleep(100)
    client.lose()
    world.sleep(away_s)
    assert world.broker.usage.sessions == is_present
    assert world.client("c", clean_start=False).connack.session_present is is_present


def test_expiry_0_ends_with_the_connection() -> None:
    """A session without expiry ends with its connection, subscriptions included."""
    world = World()
    client = world.client("c")
    client.subscribe("t/#")
    client.lose()
    assert world.broker.usage.sessions == 0
    assert world.broker.next_deadline() is None


def test_a_session_that_never_expires() -> None:
    """An expiry of 0xFFFFFFFF, and clean session 0 of 3.1.1, keep a session without a deadline."""
    world = World(session_expiry_s=0xFFFFFFFF)
    world.client("c5", session_expiry=0xFFFFFFFF).lose()
    world.client("c3", version=MQTT_3_1_1, clean_start=False).lose()
    world.sleep(1e9)
    assert world.broker.usage.sessions == 2
    assert world.client("c3", version=MQTT_3_1_1, clean_start=False).connack.session_present


def test_3_1_1_clean_session_ends_with_the_connection() -> None:
    """Clean session 1 of 3.1.1 is a clean start without expiry."""
    world = World()
    world.client("c", version=MQTT_3_1_1).lose()
    assert world.broker.usage.sessions == 0


def test_the_server_caps_the_expiry_and_says_so() -> None:
    """CONNACK tells the expiry if it is not the one that was asked for."""
    world = World(session_expiry_s=5)
    client = world.client("c", session_expiry=100)
    assert client.connack.properties.session_expiry == 5
    client.lose()
    world.sleep(5.1)
    assert world.broker.usage.sessions == 0


def test_disconnect_may_change_the_expiry() -> None:
    """Another expiry in DISCONNECT counts, and the SDKs end their sessions that way."""
    world = World()
    client = world.client("c", session_expiry=100)
    client.send(Disconnect(0, DisconnectProperties(session_expiry=0)))
    assert client.is_ended
    assert world.broker.usage.sessions == 0


def test_disconnect_cannot_prolong_a_session_that_was_to_end() -> None:
    """A DISCONNECT that gives an expiry to a session without one is a protocol error (MQTT 5.0, 3.14.2.2.2)."""
    client = World().client("c")
    client.send(Disconnect(0, DisconnectProperties(session_expiry=9)))
    assert client.one(Disconnect).reason_code == ReasonCode.PROTOCOL_ERROR


# -- take-over --------------------------------------------------------------------------------------------------------


def test_a_second_client_of_the_same_name_takes_over() -> None:
    """The old connection gets 0x8E, and session and unacknowledged messages go to the second client of the same
    name."""
    world = World()
    old = world.client("c", session_expiry=60)
    old.subscribe("t", qos=1)
    world.client("p").publish("t", b"1", 1)
    assert [m.dup for m in old.messages()] == [False]
    new = Client(world)
    new.send(Connect("c", clean_start=False, properties=ConnectProperties(session_expiry=60)))
    assert old.one(Disconnect).reason_code == ReasonCode.SESSION_TAKEN_OVER
    connack, message = new.received()
    assert connack == Connack(True, 0, world.client("x").connack.properties)
    assert isinstance(message, Publish)
    assert message.dup
    old.lose()
    assert new.connection.session is not None
    new.send(Puback(message.packet_id), Pingreq())
    new.one(Pingresp)


def test_fifty_clients_of_the_same_name_leave_one() -> None:
    """Of fifty clients of the same name exactly one survives, whatever the order."""
    world = World()
    clients = [world.client("same") for _ in range(50)]
    assert [client.is_ended for client in clients] == [True] * 49 + [False]
    assert world.broker.counters.takeovers == 49
    for client in clients[:-1]:
        client.lose()
    clients[-1].send(Pingreq())
    clients[-1].one(Pingresp)


# -- keep alive -------------------------------------------------------------------------------------------------------


def test_silence_is_answered_with_disconnect() -> None:
    """After one and a half keep-alives of silence the client gets 0x8D (MQTT-3.1.2-22)."""
    world = World()
    client = world.client("c", keep_alive=10)
    world.sleep(14.9)
    assert not client.is_ended
    world.sleep(0.2)
    assert client.one(Disconnect).reason_code == ReasonCode.KEEP_ALIVE_TIMEOUT


def test_every_packet_keeps_a_client_alive() -> None:
    """Every packet keeps a client alive, so that one that publishes need not ping."""
    world = World()
    client = world.client("c", keep_alive=10)
    for _ in range(5):
        world.sleep(14)
        client.publish("t")
    assert not client.is_ended
    world.sleep(15)
    assert client.is_ended


def test_keep_alive_0_is_never_too_late() -> None:
    """With keep-alive 0, legal in both versions, a client is never too late."""
    world = World()
    clients = [world.client("a"), world.client("b", version=MQTT_3_1_1)]
    world.sleep(1e8)
    assert not any(client.is_ended for client in clients)


@pytest.mark.parametrize(("asked", "answer"), [(0, 30), (60, 30), (20, None), (30, None)])
def test_the_server_may_want_another_keep_alive(asked: int, answer: int | None) -> None:
    """The server's limit for the keep-alive is announced to those who ask for more, or for none, and counts."""
    world = World(keep_alive_s=30)
    client = world.client("c", keep_alive=asked)
    assert client.connack.properties.server_keep_alive == answer
    world.sleep((answer or asked) * 1.5 + 0.1)
    assert client.is_ended


def test_connect_must_come_in_time() -> None:
    """A connection without CONNECT in time is closed without an answer, even if bytes trickle in."""
    world = World(connect_timeout_s=5)
    client = Client(world)
    for _ in range(4):
        world.sleep(1)
        client.send()
    assert not client.is_ended
    world.sleep(1.1)
    assert client.is_ended
    assert client.received() == []


def test_shut_down_says_goodbye() -> None:
    """At shutdown clients get 0x8B, and wills are not sent."""
    world = World()
    watcher, client = world.client("w"), world.client("c", will=Will("will"))
    watcher.subscribe("will")
    world.broker.shut_down()
    assert client.one(Disconnect).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
    assert watcher.one(Disconnect).reason_code == ReasonCode.SERVER_SHUTTING_DOWN


def test_reason_strings_respect_the_maximum_packet_size() -> None:
    """A DISCONNECT that would be too large is sent without its reason string (MQTT-3.14.2-3)."""
    client = World().client("c", maximum_packet_size=20, version=MQTT_5_0, request_problem_information=1)
    client.send(Connack())
    disconnect = client.one(Disconnect)
    assert disconnect.reason_code == ReasonCode.PROTOCOL_ERROR
    assert disconnect.properties.reason_string is None
