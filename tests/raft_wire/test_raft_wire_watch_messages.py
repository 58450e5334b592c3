"""Watches that a peer serves: bytes written by hand, and any frames that somebody may send."""

from __future__ import annotations

from typing import Any

import pytest
from hex_frames import frames
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
    decode_watch_reply,
    decode_watch_request,
)

REQUESTS: list[tuple[str, Any]] = [
    ("0057|63|00||6b|", BeginWatch(b"c", b"k")),
    ("0057||00|01||00", BeginWatch(b"", b"", True, 0)),
    ("0057||00|01|6b|d107", BeginWatch(b"", b"k", True, 2001)),
    ("0057|63|01", CancelWatch(b"c")),
    ("0057|63|02|07", Seen(b"c", 7)),
]
REPLIES: list[tuple[str, Any]] = [
    ("00|d107", Watching(2001)),
    ("01|05|6b|01|76", Events(5, (Change(ChangeKind.SET, b"k", b"v"),))),
    ("01|05|6b|01||6c||", Events(5, (Change(ChangeKind.SET, b"k", b""), Change(ChangeKind.DELETE, b"l")))),
    ("02|05", WatchProgress(5)),
    ("03|00|05|01", WatchEnded(EndReason.CANCELLED, 5, 1)),
    ("03|01|05|09", WatchEnded(EndReason.HISTORY_OUTRUN, 5, 9)),
    ("03|02|05|09", WatchEnded(EndReason.TOO_SLOW, 5, 9)),
    ("03|03|05|01", WatchEnded(EndReason.TOO_MANY, 5, 1)),
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
    """A request for a watch without its last frame, an optional index as in RequestEntries, begins now."""
    assert decode_watch_request(frames("0057||00|01|6b")) == BeginWatch(b"", b"k", True)


@pytest.mark.parametrize(
    "text", ["0057", "0057|", "0057||03", "0057||", "0057||00", "0057||00|", "0057||02", "5e||00||6b"]
)
def test_a_malformed_request_is_refused(text: str) -> None:
    """A malformed request is a ProtocolError, which the peer counts before it drops the message."""
    with pytest.raises(ProtocolError):
        decode_watch_request(frames(text))


@pytest.mark.parametrize("text", ["", "04", "00", "00|", "01|05|6b", "01|05|6b|01", "02", "03|00|05", "03|04|05|01"])
def test_a_malformed_reply_is_refused(text: str) -> None:
    """A malformed reply is a ProtocolError, which ends the watch at the client."""
    with pytest.raises(ProtocolError):
        decode_watch_reply(frames(text))


@pytest.mark.parametrize(
    "make", [lambda: BeginWatch(b"", b"k", False, -1), lambda: Seen(b"", -1), lambda: Watching(2**53)]
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
