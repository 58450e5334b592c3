"""What the server answers, byte for byte: the cases are written by hand from MQTT 5.0 and 3.1.1.

Clients' own test suites compare bytes, so the answers have no property that nobody asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.server_clients import Wire

from statestore_client.server import EmbeddedServer

MQTT = "0004 4D515454"
#: CONNACK of MQTT 5.0: topic alias maximum 10, receive maximum 20, and nothing else.


WELCOME = "20 09 00 00 06 22 000A 21 0014"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


def answer(server: EmbeddedServer, sent: str, *, size: int) -> str:
    """The bytes that come back, at most ``size`` of them, until the server closes."""
    with Wire(server) as wire:
        wire.sock.sendall(bytes.fromhex(sent))
        found = b""
        while len(found) < size and (data := wire.sock.recv(size - len(found))):
            found += data
    return found.hex()


def both(server: EmbeddedServer, connect: str, packet: str) -> str:
    """What comes after the CONNACK, until the server closes."""
    with Wire(server) as wire:
        wire.sock.sendall(bytes.fromhex(connect))
        connack = wire.sock.recv(2)
        wire.sock.recv(connack[1])
        wire.sock.sendall(bytes.fromhex(packet))
        found = b""
        while data := wire.sock.recv(100):
            found += data
    return found.hex()


@pytest.mark.parametrize(
    ("connect", "connack"),
    [
        pytest.param(f"10 0E {MQTT} 05 02 000A 00 0001 70", WELCOME, id="5.0"),
        pytest.param(f"10 11 {MQTT} 05 02 000A 03 21 0014 0001 70", WELCOME, id="5.0, receive maximum 20"),
        pytest.param(
            f"10 11 {MQTT} 05 02 000A 03 21 0100 0001 70",
            "20 09 00 00 06 22 000A 21 0100",
            id="a client that takes 256 messages at a time may send as many",
        ),
        pytest.param(
            f"10 10 {MQTT} 05 02 000A 02 17 01 0001 70",
            "20 0E 00 00 0B 22 000A 27 01000000 21 0014",
            id="a client that asks for problem information is told our packet size",
        ),
        pytest.param(
            f"10 0E {MQTT} 05 02 003D 00 0001 70", "20 0C 00 00 09 13 003C 22 000A 21 0014", id="keep alive 61"
        ),
        pytest.param(
            f"10 13 {MQTT} 05 02 000A 05 11 00093A80 0001 71", WELCOME, id="a session expiry of a week is granted"
        ),
        pytest.param(
            f"10 A5C802 {MQTT} 05 02 000A 95C802" + "26 0001 6B 0001 76" * 6000 + "26 0000 0000 0001 70",
            WELCOME,
            id="thousands of user properties",
        ),
        pytest.param(f"10 F5FB03 {MQTT} 05 02 000A 00 FDE8" + "61" * 65000, WELCOME, id="a long client identifier"),
        pytest.param(f"10 0D {MQTT} 04 02 000A 0001 70", "20 02 00 00", id="3.1.1"),
        pytest.param("10 0F 0006 4D5149736470 03 02 000A 0001 70", "20 02 00 00", id="3.1"),
        pytest.param("14 0F 0006 4D5149736470 03 02 000A 0001 70", "20 02 00 00", id="3.1 with unused flags"),
        pytest.param(f"10 0E {MQTT} 04 02 000A 0002 7009", "20 02 00 02", id="3.1.1, a tab in the client identifier"),
        pytest.param(f"10 0F {MQTT} 05 02 000A 00 0002 7009", "20 03 00 85 00", id="a tab in the client identifier"),
        pytest.param(f"10 12 {MQTT} 04 82 000A 0001 70 0003 750A76", "20 02 00 04", id="3.1.1, a LF in the user name"),
        pytest.param(
            f"10 13 {MQTT} 05 82 000A 00 0001 70 0003 750A76", "20 03 00 86 00", id="a line feed in the user name"
        ),
        pytest.param(
            f"10 16 {MQTT} 05 06 000A 00 0001 70 00 0003 740A76 0000", "20 03 00 90 00", id="a LF in the will's topic"
        ),
        pytest.param(f"10 13 {MQTT} 05 06 000A 00 0001 70 00 0000 0000", "20 03 00 81 00", id="a will without a topic"),
        pytest.param("10 0E 0006 4D5149736470 03 02 000A 0000", "20 02 00 02", id="3.1, no client identifier"),
        pytest.param("10 0F 0006 4D5149736470 02 02 000A 0001 70", "20 02 00 01", id="before 3.1"),
    ],
)
def test_connack(server: EmbeddedServer, connect: str, connack: str) -> None:
    """CONNACK has what differs from the protocol's defaults and what the client asked for."""
    size = len(bytes.fromhex(connack))
    assert answer(server, connect, size=size) == bytes.fromhex(connack).hex()


@pytest.mark.parametrize(
    ("connect", "code", "reason"),
    [
        pytest.param("10 0D 0004 6D717474 04 02 000A 0001 70", 0x81, "protocol b'mqtt'", id="another protocol"),
        pytest.param(
            f"10 13 {MQTT} 05 02 000A 05 27 00000002 0001 70",
            0x95,
            "CONNACK is larger than the maximum packet size",
            id="no room for a CONNACK",
        ),
        pytest.param("C0 00", 0x82, "the first packet is not a CONNECT", id="no CONNECT"),
        pytest.param(
            f"10 1B {MQTT} 04 06 000A 0001 70 000A 24434F4E54524F4C2F78 0000",
            0x87,
            "a will for $CONTROL",
            id="3.1.1, a will for $CONTROL",
        ),
        pytest.param(
            f"10 1D {MQTT} 05 06 000A 00 0001 70 00 000A 24434F4E54524F4C2F78 0000",
            0x87,
            "a will for $CONTROL",
            id="a will for $CONTROL",
        ),
    ],
)
def test_silence(caplog: pytest.LogCaptureFixture, connect: str, code: int, reason: str) -> None:
    """Bytes that are not MQTT, or allow no answer, get a close alone, and the log has the reason without calling it a
    defect."""
    caplog.set_level(logging.INFO, "statestore_client.server")
    with EmbeddedServer() as server:
        assert answer(server, connect, size=1) == ""
    # A connection of the test before may still be ending, in the thread of the server that others share.
    told = f"code='{code:#04x}' reason={reason!r} by='server'"
    [ended] = [record for record in caplog.records if told in record.getMessage()]
    assert ended.levelno < logging.ERROR
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        pytest.param("F1 00", "82", id="AUTH without a method in CONNECT, with flags"),
        pytest.param("20 01 00", "82", id="CONNACK, too short"),
        pytest.param("90 05 0001 03 1F00 00", "82", id="SUBACK, with nonsense in it"),
        pytest.param("40 06 0001 00 02 01 00", "82", id="payload format in PUBACK"),
        pytest.param("40 05 0001 00 01 01", "81", id="payload format in PUBACK, without its value"),
        pytest.param("40 08 0001 00 04 230001 70", "81", id="a property that does not exist behind a wrong one"),
        pytest.param("E0 04 82 02 0000", "81", id="DISCONNECT, too long"),
    ],
)
def test_disconnect(server: EmbeddedServer, packet: str, code: str) -> None:
    """An error is answered with DISCONNECT with a code and nothing else, and a close."""
    assert both(server, f"10 0E {MQTT} 05 02 000A 00 0001 70", packet) == f"e001{code}"


def test_a_pubrel_of_3_1_may_be_a_duplicate(server: EmbeddedServer) -> None:
    """DUP in a PUBREL is accepted from a 3.1 client, which sets it when repeating, and closes a 3.1.1 one
    (MQTT-3.6.1-1)."""
    again = "34 06 0001 74 0001 78 6A 02 0001"
    assert answer(server, f"10 0F 0006 4D5149736470 03 02 000A 0001 70 {again}", size=12) == (
        "20020000" + "50020001" + "70020001"
    )
    assert answer(server, f"10 0D {MQTT} 04 02 000A 0001 70 {again}", size=12) == "20020000" + "50020001"


@pytest.mark.parametrize(
    ("topic", "puback"),
    [
        pytest.param(b"$SYS/broker/connection/me/state", "40 03 0001 10", id="nobody is subscribed"),
        pytest.param(b"$SYS/broker/connection/me", "40 03 0001 87", id="not authorized"),
        pytest.param(b"$SYS/broker/connection/me/state/x", "40 03 0001 87", id="below it"),
        pytest.param(b"$SYS/broker/uptime", "40 03 0001 87", id="ours"),
    ],
)
def test_bridges_tell_their_state(server: EmbeddedServer, topic: bytes, puback: str) -> None:
    """Clients may publish below $SYS only where bridges of other brokers tell their state."""
    size = len(topic)
    publish = f"32 {size + 5:02X} {size:04X} {topic.hex()} 0001 00"
    size = len(bytes.fromhex(WELCOME + puback))
    found = answer(server, f"10 0E {MQTT} 05 02 000A 00 0001 70 {publish}", size=size)
    assert found == bytes.fromhex(WELCOME + puback).hex()


def test_who_left_and_is_back_at_once_was_not_taken_over(server: EmbeddedServer) -> None:
    """A client whose DISCONNECT comes right before its next CONNECT was not taken over, and its session has ended if it
    was to."""
    found = set()
    for _ in range(150):
        with Wire(server) as wire:
            wire.sock.sendall(bytes.fromhex(f"10 13 {MQTT} 05 00 000A 05 11 00000064 0001 62"))
            found.add(wire.sock.recv(11).hex())
            wire.sock.sendall(bytes.fromhex("E0 07 00 05 11 00000000"))
    assert found == {bytes.fromhex(WELCOME).hex()}
