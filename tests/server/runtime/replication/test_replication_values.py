"""What servers of one log are told, say to each other first, and put into requests: values, without a network."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client import SettingsError
from statestore_client.errors import RemoteProtocolError
from statestore_client.server import ReplicaSettings
from statestore_client.server.runtime.replication.internal import (
    PULSE_BYTES,
    Answer,
    ClusterSecret,
    Hello,
    Session,
    check_magic,
    length_of,
)
from statestore_client.server.runtime.replication.log_link import RequestClock
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


def test_a_peer_of_ours_is_left_sooner_than_one_that_may_be_a_node_peer() -> None:
    """It says soon that it has accepted an append, whatever its disk does."""
    alone = ReplicaSettings(log="tcp://127.0.0.1:8047", id="a")
    assert in_cluster("a=127.0.0.1,b=127.0.0.1:9000,c=127.0.0.1:9100").raft.response_timeout == 0.25
    assert alone.raft.response_timeout == 0.5


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
    (tmp_path / "key").chmod(0o640)
    assert ReplicaSettings.key_in(tmp_path / "key") == b"0123456789abcdef"


@pytest.mark.skipif(os.name != "posix", reason="files have no such modes here")
def test_a_key_that_everybody_may_read(tmp_path: Path) -> None:
    """It is no secret; the error says what to do."""
    (tmp_path / "key").write_text("0123456789abcdef\n")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(SettingsError, match="chmod 600"):
        ReplicaSettings.key_in(tmp_path / "key")


# -- what servers of one log say to each other first, with bytes and codes from outside our encoder --------------------

KEY = b"0123456789abcdef"
RECEIVER_NONCE, DIALLER_NONCE = bytes(range(32)), bytes(range(32, 64))
#: ["splice", "b", "a.example:8049", "mqtts", "10.0.0.7", 5000], as the MessagePack specification has it.
HELLO = b"\x96\xa6splice\xa1b\xaea.example:8049\xa5mqtts\xa810.0.0.7\xcd\x13\x88"
#: [true, "a"]
ANSWER = b"\x92\xc3\xa1a"


def _hmac_sha256(key: bytes, data: bytes) -> bytes:
    """RFC 2104, for keys of at most 64 bytes."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block) + data).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in block) + inner).digest()


#: HKDF of RFC 5869: the secret is extracted with the salt, and expanded for "codes" to one block.
CODES = _hmac_sha256(_hmac_sha256(b"statestore internal 2", KEY), b"codes\1")
SESSION = Session(CODES, RECEIVER_NONCE, DIALLER_NONCE)


def code_of(role: bytes, said: bytes) -> bytes:
    """Over who says it, both nonces, and what is said."""
    return _hmac_sha256(CODES, role + RECEIVER_NONCE + DIALLER_NONCE + said)


def test_the_secret_makes_the_key_of_the_codes() -> None:
    """And an empty one is none."""
    assert ClusterSecret(KEY).key == CODES
    assert ClusterSecret(KEY)
    assert not ClusterSecret(b"")


def test_a_hello_is_these_bytes() -> None:
    """Length, array, nonce, code."""
    hello = Hello("splice", "b", "a.example:8049", "mqtts", "10.0.0.7", 5000)
    code = code_of(b"dialler\0", HELLO)
    assert hello.encode(SESSION) == len(HELLO).to_bytes(2, "big") + HELLO + DIALLER_NONCE + code
    assert length_of(hello.encode(SESSION)[:2]) == len(HELLO)
    assert Hello.decode(HELLO, code, SESSION) == hello


def test_an_answer_is_these_bytes() -> None:
    """Length, array, code."""
    code = code_of(b"receiver\0", ANSWER)
    assert Answer(True, "a").encode(SESSION) == len(ANSWER).to_bytes(2, "big") + ANSWER + code
    assert Answer.decode(ANSWER, code, SESSION) == Answer(True, "a")


def test_a_sign_of_life_is_these_bytes() -> None:
    """Epoch, number, code. It is good once, in its place, on its connection."""
    said = (7).to_bytes(8, "big") + (2).to_bytes(8, "big")
    pulse = said + code_of(b"pulse\0", said)
    assert len(pulse) == PULSE_BYTES
    assert SESSION.pulse(7, 2) == pulse
    assert SESSION.epoch_of(pulse, 2) == 7
    others = [attrs.evolve(SESSION, receiver_nonce=bytes(32)), attrs.evolve(SESSION, key=bytes(32))]
    for session, count, bytes_ in [
        (SESSION, 3, pulse), (SESSION, 2, pulse[:7] + b"\x08" + pulse[8:]), *((other, 2, pulse) for other in others),
    ]:  # fmt: skip
        with pytest.raises(RemoteProtocolError, match="sign of life"):
            session.epoch_of(bytes_, count)


@pytest.mark.parametrize(
    "session",
    [
        Session(CODES, bytes(32), DIALLER_NONCE),
        Session(CODES, RECEIVER_NONCE, bytes(32)),
        Session(ClusterSecret(b"another key of 24 bytes.").key, RECEIVER_NONCE, DIALLER_NONCE),
    ],
    ids=["replayed to the receiver", "replayed to the dialler", "other key"],
)
def test_another_nonce_or_key_is_refused(session: Session) -> None:
    """What somebody has heard is of no use, nor is what the other side says sent back to it."""
    with pytest.raises(RemoteProtocolError, match="--cluster-key-file"):
        Hello.decode(HELLO, code_of(b"dialler\0", HELLO), session)
    with pytest.raises(RemoteProtocolError, match="--cluster-key-file"):
        Answer.decode(ANSWER, code_of(b"receiver\0", ANSWER), session)
    with pytest.raises(RemoteProtocolError, match="--cluster-key-file"):
        Answer.decode(ANSWER, code_of(b"dialler\0", ANSWER), SESSION)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x90",
        b"\xc1",
        b"\x96\xa5other\xa1b\xa1a\xa0\xa0\x00",
        b"\x96\xa6splice\x01\xa1a\xa0\xa0\x00",
        HELLO[:-3] + b"\xc3",
    ],
)
def test_a_hello_of_something_else_is_refused(packed: bytes) -> None:
    """Although its code is right."""
    with pytest.raises(RemoteProtocolError):
        Hello.decode(packed, code_of(b"dialler\0", packed), SESSION)


@given(st.binary(max_size=40))
def test_an_answer_of_something_else_is_refused(packed: bytes) -> None:
    """Although its code is right."""
    try:
        answer = Answer.decode(packed, code_of(b"receiver\0", packed), SESSION)
    except RemoteProtocolError:
        return
    assert (type(answer.is_accepted), type(answer.text)) == (bool, str)


def test_a_hello_that_is_too_long_is_refused_at_once() -> None:
    """Nothing of it is kept."""
    with pytest.raises(RemoteProtocolError):
        length_of(b"\xff\xff")


@pytest.mark.parametrize(
    ("magic", "why"), [(b"statestore internal 1\n", "older release"), (b"HTTP/1.1 400 Bad Request"[:22], "no server")]
)
def test_whatever_listens_there(magic: bytes, why: str) -> None:
    """It is no server of this log, or one of another release."""
    with pytest.raises(RemoteProtocolError, match=why):
        check_magic(magic)
    check_magic(b"statestore internal 2\n")


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
