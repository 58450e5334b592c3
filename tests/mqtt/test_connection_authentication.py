"""Enhanced authentication: challenge and response before CONNACK and on a standing connection (MQTT 5.0, 4.12)."""

from __future__ import annotations

import pytest

from statestore_client.mqtt.client_connection import ClientConnection
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Connected


class Counting:
    """Answers each challenge with itself and a number; fails when it is told "bad"."""

    method = "M"

    def __init__(self) -> None:
        self.challenges: list[bytes | None] = []

    def data(self, challenge: bytes | None) -> bytes:
        self.challenges.append(challenge)
        if challenge == b"bad":
            raise ValueError("the broker proved nothing")
        return (challenge or b"first") + b"!"


#: AUTH 0x18, continue, method M, data "a"; as it comes and as it is answered.
CHALLENGE = bytes.fromhex("f0 0a 18 08 15 0001 4d 16 0001 61")
ANSWER = bytes.fromhex("f0 0b 18 09 15 0001 4d 16 0002 6121")
CONNACK = bytes.fromhex("20 0b 00 00 08 15 0001 4d 16 0001 7a")
RENEWAL = bytes.fromhex("f0 0f 19 0d 15 0001 4d 16 0006 666972737421")
SUCCESS = bytes.fromhex("f0 06 00 04 15 0001 4d")


def started() -> tuple[ClientConnection, Counting]:
    authenticator = Counting()
    connection = ClientConnection(ConnectionSettings(host="h"), "c", authenticator=authenticator)
    connection.connect(100.0, clean_start=True, password=None)
    return connection, authenticator


def opened() -> tuple[ClientConnection, Counting]:
    connection, authenticator = started()
    connection.receive(CONNACK, 100.0)
    connection.take_events()
    connection.outbox.clear()
    return connection, authenticator


def end_of(connection: ClientConnection) -> Closed:
    (event,) = connection.take_events()
    assert isinstance(event, Closed)
    return event


def test_connect_names_the_method_and_its_first_data() -> None:
    """CONNECT has Authentication Method and Data (3.1.2.11.9 and .10)."""
    connection, _ = started()
    assert bytes.fromhex("15 0001 4d 16 0006 666972737421") in connection.outbox[0]


def test_challenges_are_answered_until_connack() -> None:
    """Each AUTH 0x18 gets its answer, and the data of CONNACK reaches the authenticator, which may check it."""
    connection, authenticator = started()
    connection.outbox.clear()
    connection.receive(CHALLENGE + CHALLENGE, 100.0)
    assert connection.outbox == [ANSWER, ANSWER]
    connection.receive(CONNACK, 100.0)
    assert connection.take_events() == [Connected(session_present=False)]
    assert authenticator.challenges == [None, b"a", b"a", b"z"]


def test_a_new_conversation_on_a_standing_connection() -> None:
    """AUTH 0x19 begins a new conversation and AUTH 0x00 ends it; messages go on in between, and another one waits its
    turn."""
    connection, authenticator = opened()
    connection.reauthenticate()
    connection.reauthenticate()
    assert connection.outbox == [RENEWAL]
    connection.receive(CHALLENGE + bytes.fromhex("30 05 0001 61 00 7a") + SUCCESS, 101.0)
    assert connection.outbox == [RENEWAL, ANSWER]
    assert len(connection.take_events()) == 1
    connection.reauthenticate()
    assert connection.outbox[-1] == RENEWAL
    assert authenticator.challenges == [None, b"z", None, b"a", None]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("another method", bytes.fromhex("f0 0a 18 08 15 0001 4e 16 0001 61")),
        ("a renewal from the broker", bytes.fromhex("f0 06 19 04 15 0001 4d")),
        ("success without a conversation", SUCCESS),
        ("a challenge without a conversation", CHALLENGE),
    ],
)
def test_what_a_broker_must_not_say(name: str, data: bytes) -> None:
    """An AUTH that a broker must not send ends the connection with DISCONNECT 0x82."""
    connection, _ = opened()
    if "conversation" not in name:
        connection.reauthenticate()
        connection.outbox.clear()
    connection.receive(data, 101.0)
    assert connection.outbox == [bytes.fromhex("e0 01 82")], name
    end_of(connection)


@pytest.mark.parametrize(
    ("data", "text"),
    [(SUCCESS, "AUTH"), (bytes.fromhex("20 03 00 00 00"), "authentication method")],
    ids=["AUTH 0x00", "CONNACK"],
)
def test_only_a_connack_with_the_method_ends_the_first_conversation(data: bytes, text: str) -> None:
    """AUTH 0x00 before CONNACK and a CONNACK without the method end the connection; nothing is said to a peer that does
    not know the protocol."""
    connection, _ = started()
    connection.outbox.clear()
    connection.receive(data, 100.0)
    assert text in str(end_of(connection).error)
    assert connection.outbox == []


def test_an_authenticator_that_fails_ends_it() -> None:
    """An exception of the authenticator, before CONNACK or later, is the reason of the end, and calls do not raise
    it."""
    bad = CHALLENGE.replace(b"\x00\x01a", b"\x00\x03bad").replace(b"\xf0\x0a\x18\x08", b"\xf0\x0c\x18\x0a")
    connection, _ = started()
    connection.outbox.clear()
    connection.receive(bad, 100.0)
    assert "the broker proved nothing" in str(end_of(connection).error)
    assert connection.outbox == []
    later, _ = opened()
    later.reauthenticate()
    later.outbox.clear()
    later.receive(bad, 100.0)
    assert later.outbox == [bytes.fromhex("e0 01 80")]
    end_of(later)


def test_without_an_authenticator_there_is_nothing_to_renew() -> None:
    """Without an authenticator reauthenticate() does nothing."""
    connection = ClientConnection(ConnectionSettings(host="h"), "c")
    connection.connect(100.0, clean_start=True, password=None)
    connection.receive(bytes.fromhex("20 03 00 00 00"), 100.0)
    connection.outbox.clear()
    connection.reauthenticate()
    assert connection.outbox == []
