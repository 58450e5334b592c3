"""Which reply a message is: the type of its request says it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import ProtocolError
from raft_client.wire.messages import AppendReply, EntriesReply, EntriesStatus, SnapshotReply, VoteReply
from raft_client.wire.peer_extensions import PreVoteReply, ReadIndexReply, TimeoutNowReply
from raft_client.wire.peer_replies import decode_peer_reply


@pytest.mark.parametrize(
    ("request_type", "frames", "reply"),
    [
        ("3f", [b"\x01", b"\x01"], VoteReply(1, True)),
        ("2b", [b"\x01", b"", b"\x05"], AppendReply(1, False, 5)),
        ("24", [b"\x01", b"\x09"], SnapshotReply(1, 9)),
        ("3c", [b"\x00", b"\xc0"], EntriesReply(EntriesStatus.NOT_LEADER)),
        ("0050", [b"\x01", b""], PreVoteReply(1, False)),
        ("0054", [b"\x01", b"\x01"], TimeoutNowReply(1, True)),
        ("0052", [b"\xa11", b"\x07"], ReadIndexReply("1", 7)),
    ],
)
def test_the_request_says_which_reply_it_is(request_type: str, frames: list[bytes], reply: object) -> None:
    """The request tells which reply it is, because a vote and a reply to AppendEntries look alike."""
    assert decode_peer_reply(bytes.fromhex(request_type), frames) == reply


@given(st.sampled_from(["3f", "2b", "24", "3c", "0050", "0054", "0052"]), st.lists(st.binary(max_size=24), max_size=6))
def test_any_frames_are_a_reply_or_a_protocol_error(request_type: str, frames: list[bytes]) -> None:
    """Any frames are read as a reply or refused with a ProtocolError."""
    try:
        reply = decode_peer_reply(bytes.fromhex(request_type), frames)
    except ProtocolError:
        return
    assert decode_peer_reply(bytes.fromhex(request_type), reply.to_frames()) == reply
