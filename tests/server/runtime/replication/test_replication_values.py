"""What servers of one log are told, say to each other first, and put into requests: values, without a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client import SettingsError
from statestore_client.errors import RemoteProtocolError
from statestore_client.server import ReplicaSettings
from statestore_client.server.runtime.replication.internal_handshake import (
    ACCEPTED,
    SERVER_HELLO_BYTES,
    ClientHello,
    ServerHello,
    hello_size,
)
from statestore_client.server.runtime.replication.request_clock import RequestClock
from statestore_client.wire.instant import Instant


def in_cluster(nodes: object, **options: object) -> ReplicaSettings:
    """Of the server ``a``."""
    return ReplicaSettings.in_cluster(nodes, **{"id": "a", "data": "data", **options})  # type: ignore[arg-type]


def test_each_server_has_three_ports() -> None:
    """Of its peer, of what that broadcasts, and of the server itself."""
    settings = in_cluster("a=127.0.0.1, b=127.0.0.1:9000, c=[::1]:9100")
    assert settings.log == ("tcp://127.0.0.1:8047", "tcp://127.0.0.1:9000", "tcp://[::1]:9100")
    assert settings.peer is not None
    assert (settings.peer.host, settings.peer.publisher_port) == ("127.0.0.1", 8048)
    assert (settings.internal_host, settings.internal_port) == ("127.0.0.1", 8049)
    assert settings.internal_address == "127.0.0.1:8049"
    assert settings.peer.data == Path("data")


def test_it_may_listen_elsewhere_than_the_others_connect() -> None:
    """Behind a translation of addresses, for example."""
    settings = in_cluster({"a": "plant1.example", "b": "plant2.example", "c": "plant3.example"}, listen="::")
    assert settings.peer is not None
    assert settings.peer.host == "[::]"
    assert settings.internal_host == "::"
    assert settings.internal_address == "plant1.example:8049"


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("a=1.1.1.1,b=1.1.1.2", "3 to 9 servers, not 2"),
        (",".join(f"n{i}=1.1.1.{i}" for i in range(1, 11)), "3 to 9 servers, not 10"),
        ("a=1.1.1.1,a=1.1.1.2,c=1.1.1.3", "the same id"),
        ("b=1.1.1.1,c=1.1.1.2,d=1.1.1.3", "'a' is none of the servers of the cluster: b, c, d"),
        ("a=1.1.1.1,b=1.1.1.1:8049,c=1.1.1.3", "a and b would share ports of 1.1.1.1"),
        ("a=127.0.0.1,b=1.1.1.2,c=1.1.1.3", "this machine only"),
        ("a,b=1.1.1.2,c=1.1.1.3", "a= is not ID=HOST"),
        ("a=tcp://1.1.1.1:8047,b=1.1.1.2,c=1.1.1.3", "is not ID=HOST"),
        ("a=1.1.1.1:65534,b=1.1.1.2,c=1.1.1.3", "from 1 to 65533"),
        ("a=1.1.1.1:0,b=1.1.1.2,c=1.1.1.3", "from 1 to 65533"),
        ("a/b=1.1.1.1,b=1.1.1.2,c=1.1.1.3", "letters, digits"),
        ("", "is not ID=HOST"),
        ({"a": 1}, "is not ID=HOST"),
    ],
)
def test_what_is_no_cluster(nodes: object, reason: str) -> None:
    """The error says what is wrong."""
    with pytest.raises(SettingsError, match=reason):
        in_cluster(nodes)


def test_a_name_that_others_would_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems know their own name as 127.0.1.1. Listening there would help nobody; so would no address at all."""
    nodes = "a=plant1,b=plant2,c=plant3"
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 8047))])
    with pytest.raises(SettingsError, match=r"plant1 is 127\.0\.1\.1 on this machine"):
        in_cluster(nodes)

    def fails(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", fails)
    with pytest.raises(SettingsError, match="the own host plant1 has no address: Name or service not known"):
        in_cluster(nodes)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"log": "tcp://"}, "tcp://host:port"),
        ({"log": ""}, "at least one peer"),
        ({"id": ""}, "id of a server"),
        ({"id": "x" * 65}, "id of a server"),
        ({"internal_port": 70_000}, "internal_port"),
        ({"internal_address": "10.0.0.1"}, "host:port"),
        ({"internal_host": "0.0.0.0"}, "all addresses"),
        ({"internal_address": "10.0.0.1:0"}, "host:port"),
        ({"key": b"short"}, "at least 16 bytes"),
    ],
)
def test_settings_that_cannot_work(options: dict[str, object], why: str) -> None:
    """A typed error says which."""
    with pytest.raises(SettingsError, match=why):
        ReplicaSettings(**({"log": "tcp://127.0.0.1:1", "id": "a"} | options))  # type: ignore[arg-type]


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    """The error says so; a file that is there is read."""
    with pytest.raises(SettingsError, match="cannot be read"):
        ReplicaSettings.key_in(tmp_path / "none")
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert ReplicaSettings.key_in(tmp_path / "key") == b"0123456789abcdef"


# -- what servers of one log say to each other first, with bytes and codes from outside our encoder --------------------

CHALLENGE = bytes(range(32))
KEY = b"0123456789abcdef"
#: ["splice", "b", "mqtts", "10.0.0.7", 5000], as the MessagePack specification has it.
PACKED = b"\x95\xa6splice\xa1b\xa5mqtts\xa810.0.0.7\xcd\x13\x88"


def _hmac_sha256(key: bytes, data: bytes) -> bytes:
    """RFC 2104, for keys of at most 64 bytes."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + data).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


WIRE = len(PACKED).to_bytes(2, "big") + PACKED + _hmac_sha256(KEY, CHALLENGE + PACKED)


def test_a_hello_is_these_bytes() -> None:
    """Length, array, code."""
    hello = ClientHello("splice", "b", "mqtts", "10.0.0.7", 5000)
    assert hello.encode(CHALLENGE, KEY) == WIRE
    assert hello_size(WIRE[:2]) == len(WIRE)
    assert hello_size(WIRE[:1]) is None
    assert ClientHello.decode(WIRE, CHALLENGE, KEY) == hello


@pytest.mark.parametrize(
    ("challenge", "key"), [(bytes(32), KEY), (CHALLENGE, b"another key of 24 bytes.")], ids=["replayed", "other key"]
)
def test_another_challenge_or_key_is_refused(challenge: bytes, key: bytes) -> None:
    """A hello that somebody has heard is of no use."""
    with pytest.raises(RemoteProtocolError, match="--cluster-key-file"):
        ClientHello.decode(WIRE, challenge, key)


def _sealed(packed: bytes) -> bytes:
    return len(packed).to_bytes(2, "big") + packed + _hmac_sha256(KEY, CHALLENGE + packed)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x90",
        b"\xc1",
        b"\x95\xa5other\xa1b\xa0\xa0\x00",
        b"\x95\xa6splice\x01\xa0\xa0\x00",
        PACKED[:-3] + b"\xc3",
    ],
)
def test_a_hello_of_something_else_is_refused(packed: bytes) -> None:
    """Although its code is right."""
    with pytest.raises(RemoteProtocolError):
        ClientHello.decode(_sealed(packed), CHALLENGE, KEY)


def test_a_hello_that_is_too_long_is_refused_at_once() -> None:
    """Nothing of it is kept."""
    with pytest.raises(RemoteProtocolError):
        hello_size(b"\xff\xff")


@given(st.binary(max_size=80))
def test_whatever_listens_there(data: bytes) -> None:
    """It is no server of a log, or says not enough yet."""
    try:
        assert ServerHello.decode(data) is None
    except RemoteProtocolError:
        assert not data.startswith(b"statestore internal 1\n")


def test_the_active_server_accepts() -> None:
    """What comes right after that is the client's."""
    data = b"statestore internal 1\n" + CHALLENGE
    assert len(data) == SERVER_HELLO_BYTES
    assert ServerHello(CHALLENGE).encode() == data
    assert ServerHello.decode(data) == ServerHello(CHALLENGE)
    assert ServerHello.decode(data + ACCEPTED + b"rest") == ServerHello(CHALLENGE, True, b"rest")
    with pytest.raises(RemoteProtocolError, match="newer"):
        ServerHello.decode(data + b"?")


# -- request ids of a server whose wall clock is wrong -----------------------------------------------------------------

MADE_S = 1_700_000_000


def at(monotonic: float, *, off_s: int = 0) -> Instant:
    """A moment, by a wall clock that is ahead by this much."""
    return Instant(monotonic, (MADE_S + off_s) * 1000 + int(monotonic * 1000))


def test_the_wall_clock_is_good_until_it_is_refused() -> None:
    """Ids are the client's own; afterwards they have the time of the newest entry, and what has passed since."""
    clock = RequestClock()
    clock.observe(MADE_S - 500, at(-500.0))
    clock.observe(MADE_S, at(0.0))
    assert clock.new_id(1, at(5.0)) is None
    clock.refused(at(5.0))
    first, second = clock.new_id(1, at(5.0)), clock.new_id(2, at(65.5))
    assert first is not None
    assert second is not None
    assert (first.seconds, second.seconds) == (MADE_S + 5, MADE_S + 65)
    assert first != clock.new_id(2, at(5.0))
    other = RequestClock()
    other.observe(MADE_S, at(0.0))
    other.refused(at(5.0))
    assert first != other.new_id(1, at(5.0)), "two lives never have the same id"


@pytest.mark.parametrize(("off_s", "text"), [(3600, "3600 s ahead of"), (-3600, "3600 s behind")])
def test_people_are_told_once(off_s: int, text: str) -> None:
    """By how much the clock is wrong, and in which direction."""
    clock = RequestClock()
    clock.observe(MADE_S, at(0.0))
    assert text in clock.refused(at(10.0, off_s=off_s))
    assert clock.refused(at(11.0, off_s=off_s)) == ""


def test_an_empty_log_has_no_time_to_go_by() -> None:
    """The clock has to be set right; as soon as an entry of another server comes there is one."""
    clock = RequestClock()
    assert "nothing in the log to go by" in clock.refused(at(0.0))
    assert clock.new_id(1, at(0.0)) is None
    clock.observe(MADE_S, at(1.0))
    assert clock.new_id(2, at(1.0)) is not None
