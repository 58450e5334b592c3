"""What servers of one log say to each other first, with bytes and codes from outside our encoder."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.replication.internal_handshake import (
    ACCEPTED,
    SERVER_HELLO_BYTES,
    ClientHello,
    ServerHello,
    hello_size,
)

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
