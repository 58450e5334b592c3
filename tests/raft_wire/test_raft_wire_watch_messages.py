"""Watches that a peer serves: bytes written by hand, and any frames that somebody may send."""

from __future__ import annotations

from typing import Any

import pytest
from hex_frames import frames
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.positions import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    NoSession,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
    decode_watch_reply,
    decode_watch_request,
)

REQUESTS: list[tuple[str, Any]] = [
    ("0057|63|00||6b||00", BeginWatch(b"c", b"k")),
    ("0057||00|01||00|00", BeginWatch(b"", b"", True, Position(0))),
    ("0057||00|01|6b|d107|05", BeginWatch(b"", b"k", True, Position(2001, 5))),
    ("0057|63|01", CancelWatch(b"c")),
    ("0057|63|02|d107|07", Seen(b"c", 2001, 7)),
]
REPLIES: list[tuple[str, Any]] = [
    ("00|07|d107|03", Watching(7, Position(2001, 3))),
    ("01|05|03|92c4016bc40176", Events(Position(5, 3), (Change(ChangeKind.SET, b"k", b"v"),))),
    (
        "01|05|03|94c4016bc400c4016cc0",
        Events(Position(5, 3), (Change(ChangeKind.SET, b"k", b""), Change(ChangeKind.DELETE, b"l"))),
    ),
    ("02|07|05|03|01", WatchProgress(7, Position(5, 3), leads=True)),
    ("02|07|05|03|", WatchProgress(7, Position(5, 3), leads=False)),
    ("03|00|01|05|03", WatchEnded(EndReason.CANCELLED, 1, Position(5, 3))),
    ("03|01|09|0a|03", WatchEnded(EndReason.HISTORY_OUTRUN, 9, Position(10, 3))),
    ("03|02|09|0a|03", WatchEnded(EndReason.TOO_SLOW, 9, Position(10, 3))),
    ("03|03|01|05|03", WatchEnded(EndReason.TOO_MANY, 1, Position(5, 3))),
    ("03|04|01|05|03", WatchEnded(EndReason.OTHER_LOG, 1, Position(5, 3))),
    ("04|07", NoSession(7)),
]


@pytest.mark.parametrize(("text", "message"), REQUESTS)
def test_requests_about_watches_have_these_bytes(text: str, message: Any) -> None:
    """Each request about watches is written as the table says, and read back."""
    assert message.to_frames() == frames(text)
    assert decode_watch_request(frames(text)) == message


@pytest.mark.parametrize(("text", "message"), REPLIES)
def test_replies_about_watches_have_these_bytes(text: str, message: Any) -> None:
    """Each reply about watches is written as the table says, and an empty value is not a key that is gone."""
    assert message.to_frames() == frames(text)
    assert decode_watch_reply(frames(text)) == message


def test_a_watch_without_its_last_frame_begins_now() -> None:
    """A request for a watch without its last frames, an optional position as in RequestEntries, begins now; without
    the term alone it is not compared."""
    assert decode_watch_request(frames("0057||00|01|6b")) == BeginWatch(b"", b"k", True)
    assert decode_watch_request(frames("0057||00|01|6b|05")) == BeginWatch(b"", b"k", True, Position(5))


@pytest.mark.parametrize(
    "text", ["0057", "0057|", "0057||03", "0057||", "0057||00", "0057||00|", "0057||02", "0057||02|01", "5e||00||6b"]
)
def test_a_malformed_request_is_refused(text: str) -> None:
    """A malformed request is a ProtocolError, which the peer counts before it drops the message."""
    with pytest.raises(ProtocolError):
        decode_watch_request(frames(text))


@pytest.mark.parametrize(
    "text",
    [
        *("", "05", "04", "00", "00|", "00|07", "00|07|01", "01|05", "01|05|03", "01|05|03|", "02", "02|07|05|03"),
        *("03|00|01|05", "03|05|01|05|03"),
    ],
)
def test_a_malformed_reply_is_refused(text: str) -> None:
    """A malformed reply is a ProtocolError, which ends the watch at the client."""
    with pytest.raises(ProtocolError):
        decode_watch_reply(frames(text))


@pytest.mark.parametrize(
    "changes",
    [b"", b"\xc1", b"\xc0", b"\x90", b"\x91\xc4\x01k", b"\x92\xa1k\xc0", b"\x92\xc4\x01k\xa1v", b"\x92\xc4\x01k\x01"],
)
def test_malformed_changes_are_refused(changes: bytes) -> None:
    """Changes that are not keys and values in turn, as MessagePack's bin and nil, are a ProtocolError."""
    with pytest.raises(ProtocolError):
        decode_watch_reply([b"\x01", b"\x05", b"\x03", changes])


@pytest.mark.parametrize(
    "make", [lambda: Seen(b"", 1, -1), lambda: Watching(2**53, Position(1, 1)), lambda: NoSession(-1)]
)
def test_what_the_other_side_could_not_read_cannot_be_made(make: Any) -> None:
    """A value that the other side could not read is refused when it is made."""
    with pytest.raises(InvalidArgumentError):
        make()


@given(st.lists(st.binary(max_size=9), max_size=8), st.binary(min_size=1, max_size=1))
def test_any_frames_are_a_message_or_a_protocol_error(rest: list[bytes], first: bytes) -> None:
    """Any frames are read as a message that can be written and read again, or refused with a ProtocolError."""
    for decode, read in (
        (decode_watch_request, [b"\x00\x57", b"", first, *rest]),
        (decode_watch_reply, [first, *rest]),
    ):
        try:
            message = decode(read)
        except ProtocolError:
            continue
        assert decode(message.to_frames()) == message
