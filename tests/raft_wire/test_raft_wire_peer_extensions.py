"""What our peers say beyond the document: bytes written by hand, and any frames that somebody may send."""

from __future__ import annotations

from typing import Any

import pytest
from hex_frames import frames
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.client_requests import (
    BroadcastStateUrl,
    ClientDispatch,
    ConfigProposal,
    HandOver,
    HandOverReply,
    LogInfoReply,
    Outcome,
    RequestConfig,
    RequestLogInfo,
    RequestUpdate,
    TakeSnapshot,
    TakeSnapshotReply,
    Trim,
    TrimReply,
)
from raft_client.wire.hello import Capability, Hello, hello_in_reply, is_hello
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import Position, SnapshotChunk
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
    decode_peer_reply,
    decode_request,
)
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries
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

GOLDEN: list[tuple[str, Any]] = [
    ("0050|63|32|07|d107|06", PreVote(b"c", "2", 7, 2001, 6)),
    ("06|01", PreVoteReply(6, granted=True)),
    ("06|", PreVoteReply(6, granted=False)),
    ("0054||31|07", TimeoutNow(b"", "1", 7)),
    ("08|01", TimeoutNowReply(8, started=True)),
    ("09|", TimeoutNowReply(9, started=False)),
    ("0052|63", ReadIndex(b"c")),
    ("a131|d107", ReadIndexReply("1", 2001)),
    ("c0", ReadIndexReply(None)),
    ("0048|63|a132", HandOver(b"c", "2")),
    ("0048||c0", HandOver(b"")),
    ("00|a132|", HandOverReply(Outcome.NOT_LEADER, "2")),
    ("00|c0|", HandOverReply(Outcome.NOT_LEADER)),
    ("02|c0|6e6f", HandOverReply(Outcome.REFUSED, reason="no")),
    ("03|c0|", HandOverReply(Outcome.BUSY)),
    ("004c|63||d107", Trim(b"c", "", 2001)),
    ("004c||32|07", Trim(b"", "2", 7)),
    ("01|a131|d107|", TrimReply(Outcome.COMMITTED, "1", 2001)),
    ("00|a132|00|", TrimReply(Outcome.NOT_LEADER, "2")),
    ("02|c0|00|6e6f", TrimReply(Outcome.REFUSED, reason="no")),
    ("0053|63", TakeSnapshot(b"c")),
    ("01|d107|1e|", TakeSnapshotReply(Outcome.COMMITTED, 2001, 30)),
    ("02|00|00|6e6f", TakeSnapshotReply(Outcome.REFUSED, reason="no")),
    ("3f||31|01|00|00|01", RequestVote(b"", "1", 1, 0, 0, leader_agrees=True)),
]

#: ``[1, "2", 5, ["pre-vote", "transfer"]]`` in MessagePack, by hand.
HELLO_FRAME = bytes.fromhex("94 01 a132 05 92 a8 7072652d766f7465 a8 7472616e73666572")
HELLO = Hello("2", 5, ("pre-vote", "transfer"))


@pytest.mark.parametrize(("text", "message"), GOLDEN, ids=lambda value: type(value).__name__)
def test_messages_between_our_peers_have_these_bytes(text: str, message: Any) -> None:
    """Each message between our peers is written as the table says, and read back."""
    assert message.to_frames() == frames(text)
    assert type(message).from_frames(frames(text)) == message


def test_a_hello_is_an_ordinary_question_with_a_long_request_id() -> None:
    """A hello is a Node peer's request but for its request id, which names the protocol and holds the hello."""
    assert HELLO.to_request_id() == b"\x00zmqraft\x00" + HELLO_FRAME
    assert is_hello(HELLO.to_request_id())
    assert Hello.from_frame(HELLO_FRAME) == HELLO
    assert len(Hello(None, 0).to_request_id()) > 12


def test_a_reply_without_the_tenth_frame_says_that_nothing_else_is_known() -> None:
    """A reply with the nine frames of a Node peer means that it knows nothing else; a tenth frame is our peer's
    hello."""
    reply = LogInfoReply(True, "2", 7, 1, 1, 1, 1, 0, 0)
    assert hello_in_reply(reply.to_frames()) is None
    answered = [*reply.to_frames(), HELLO_FRAME]
    assert hello_in_reply(answered) == HELLO
    assert LogInfoReply.from_frames(answered) == reply


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    """A hello of a later version is read as far as it is known: fields are only added, and unknown capabilities are
    kept."""
    later = bytes.fromhex("96 02 c0 05 92 a8 7072652d766f7465 a5 6c61746572 cc c8 c3")
    hello = Hello.from_frame(later)
    assert hello == Hello(None, 5, ("pre-vote", "later"), 200)
    assert hello.knows(Capability.PRE_VOTE)
    assert not hello.knows(Capability.TRIM)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xc0",
        bytes.fromhex("93 01 c0 05"),  # no capabilities
        bytes.fromhex("94 00 c0 05 90"),  # version 0
        bytes.fromhex("94 c3 c0 05 90"),  # version true
        bytes.fromhex("94 01 c0 c3 90"),  # incarnation true
        bytes.fromhex("94 01 c0 ff 90"),  # incarnation -1
        bytes.fromhex("94 01 a0 05 90"),  # a peer without a name
        bytes.fromhex("94 01 c0 05 91 05"),  # a capability that is a number
    ],
)
def test_a_hello_that_cannot_be_read_is_refused(frame: bytes) -> None:
    """A hello that cannot be read is a ProtocolError."""
    with pytest.raises(ProtocolError):
        Hello.from_frame(frame)


def test_other_request_ids_do_not_say_hello() -> None:
    """The request ids of clients and peers, of at most 12 bytes and without the protocol's name, say no hello."""
    assert not any(map(is_hello, (b"", b"\x00", b"\x01\x02", bytes(12))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PreVote(b"", "", 1, 0, 0),
        lambda: PreVote(b"", "1", -1, 0, 0),
        lambda: TimeoutNow(b"", "1", 2**53),
        lambda: ReadIndexReply("", 1),
        lambda: HandOver(b"", ""),
        lambda: HandOver(b"", 2),  # type: ignore[arg-type]
        lambda: HandOverReply(Outcome.COMMITTED),
        lambda: Hello("", 1),
        lambda: Hello("1", -1),
        lambda: Seen(b"", 1, -1),
        lambda: Watching(2**53, Position(1, 1)),
        lambda: NoSession(-1),
    ],
)
def test_what_the_other_side_could_not_read_cannot_be_made(make: Any) -> None:
    """A value that the other side could not read is refused when it is made."""
    with pytest.raises(InvalidArgumentError):
        make()


# -- the door ----------------------------------------------------------------------------------------------------------

UPDATE_ID = bytes(range(12))

REQUESTS: list[tuple[bytes, str, Any]] = [
    (b"\x01", "5e|", RequestConfig(b"")),
    (b"any bytes at all", "5e|", RequestConfig(b"")),
    (HELLO.to_request_id(), "25|", RequestLogInfo(b"")),
    (b"\x07", "3c||00", RequestEntries(b"", 0)),
    (b"", "2a|", BroadcastStateUrl(b"")),
    (UPDATE_ID, "3d||61", RequestUpdate(b"", b"a")),
    (b"\x01", "3f|| 31|01|00|00", RequestVote(b"", "1", 1, 0, 0)),
    (UPDATE_ID, "26||9192a131a3746370", ConfigProposal(b"", [["1", "tcp"]])),
    (UPDATE_ID, "26||91a3746370", ConfigProposal(b"", ["tcp"])),
    (UPDATE_ID, "26||81a26964c0", ConfigProposal(b"", {"id": None})),
    (b"\xff\xff\xff", "2b||32|01|00|00|00", AppendEntries(b"", "2", 1, 0, 0, 0)),
    (b"\x01", "24||32|01|05|01|00|01|61", InstallSnapshot(b"", "2", 1, SnapshotChunk(5, 1, 0, 1, b"a"))),
    (b"\x01", "0050|63|32|07|d107|06", PreVote(b"c", "2", 7, 2001, 6)),
    (b"\x01", "0057|63|02|d107|07", Seen(b"c", 2001, 7)),
    (b"\x01", "6162|63|64|", ClientDispatch(b"ab", b"c", (b"d", b""))),
]


@pytest.mark.parametrize(("request_id", "text", "message"), REQUESTS, ids=lambda value: type(value).__name__)
def test_the_door_knows_each_request(request_id: bytes, text: str, message: Any) -> None:
    """A request is known by its type, and a longer type that is not ours belongs to the state machine."""
    assert decode_request(request_id, frames(text)) == message


@pytest.mark.parametrize(
    ("request_id", "text"),
    [
        (b"\x01", "3d||61"),  # an update without an id for the log
        (UPDATE_ID, "3f||31|01|00|00"),  # a vote with one
        (b"", "2b||32|01|00|00|00"),
        (b"\x01\x02\x03\x04", "2b||32|01|00|00|00"),
        (UPDATE_ID, "3d||"),  # an update without data
        (UPDATE_ID, "26||c1"),
        (b"\x01", "3c||"),
        (b"\x01", "3c|"),
        (b"\x01", "0057|63|05"),  # ours, and no question for the state machine
        (b"\x01", "78|"),  # a type that the document reserves
        (b"\x01", "5e"),
        (b"\x01", "|"),
    ],
)
def test_the_door_refuses_what_ends_a_node_peer(request_id: bytes, text: str) -> None:
    """A message that ends a Node peer is a ProtocolError, which our peer counts before it drops the message."""
    with pytest.raises(ProtocolError):
        decode_request(request_id, frames(text))


def test_the_door_refuses_what_costs_more_to_read_than_to_send() -> None:
    """A list of peers in which every byte is a value, and a request id that would come back in each answer."""
    with pytest.raises(ProtocolError, match="a list of peers of 20005 bytes"):
        decode_request(UPDATE_ID, [b"\x26", b"", b"\xdd" + (20_000).to_bytes(4, "big") + b"\x90" * 20_000])
    with pytest.raises(ProtocolError, match="a request id of 1025 bytes"):
        decode_request(bytes(1025), [b"\x25", b""])
    assert decode_request(bytes(1024), [b"\x25", b""]) == RequestLogInfo(b"")


TYPES = frames("5e|25|3c|2a|3d|26|3f|2b|24|0050|0054|0052|57|6162")


@given(st.binary(max_size=14), st.sampled_from(TYPES), st.lists(st.binary(max_size=24), max_size=9))
def test_any_frames_are_a_request_or_a_protocol_error(request_id: bytes, kind: bytes, rest: list[bytes]) -> None:
    """Any frames are read as a request that can be written and read again, or refused with a ProtocolError."""
    try:
        message = decode_request(request_id, [kind, *rest])
    except ProtocolError:
        return
    assert decode_request(request_id, message.to_frames()) == message


# -- which reply a message is ------------------------------------------------------------------------------------------


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


# -- watches that a peer serves ----------------------------------------------------------------------------------------

WATCH_REQUESTS: list[tuple[str, Any]] = [
    ("0057|63|00||6b||00", BeginWatch(b"c", b"k")),
    ("0057||00|01||00|00", BeginWatch(b"", b"", True, Position(0))),
    ("0057||00|01|6b|d107|05", BeginWatch(b"", b"k", True, Position(2001, 5))),
    ("0057|63|01", CancelWatch(b"c")),
    ("0057|63|02|d107|07", Seen(b"c", 2001, 7)),
]
WATCH_REPLIES: list[tuple[str, Any]] = [
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


@pytest.mark.parametrize(
    ("decode", "text", "message"),
    [
        *((decode_watch_request, *each) for each in WATCH_REQUESTS),
        *((decode_watch_reply, *each) for each in WATCH_REPLIES),
    ],
)
def test_messages_about_watches_have_these_bytes(decode: Any, text: str, message: Any) -> None:
    """Each message about watches is written as the table says, and read back; an empty value is not a key that is
    gone."""
    assert message.to_frames() == frames(text)
    assert decode(frames(text)) == message


def test_a_watch_without_its_last_frame_begins_now() -> None:
    """A request for a watch without its last frames, an optional position as in RequestEntries, begins now; without
    the term alone it is not compared."""
    assert decode_watch_request(frames("0057||00|01|6b")) == BeginWatch(b"", b"k", True)
    assert decode_watch_request(frames("0057||00|01|6b|05")) == BeginWatch(b"", b"k", True, Position(5))


MALFORMED_REQUESTS = (
    *("0057", "0057|", "0057||03", "0057||", "0057||00", "0057||00|", "0057||02", "0057||02|01", "5e||00||6b"),
)
MALFORMED_REPLIES = (
    *("", "05", "04", "00", "00|", "00|07", "00|07|01", "01|05", "01|05|03", "01|05|03|", "02", "02|07|05|03"),
    *("03|00|01|05", "03|05|01|05|03"),
    # changes that are not keys and values in turn, as MessagePack's bin and nil
    *("01|05|03|c1", "01|05|03|c0", "01|05|03|90", "01|05|03|91c4016b", "01|05|03|92a16bc0"),
    *("01|05|03|92c4016ba176", "01|05|03|92c4016b01"),
)


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        *((decode_watch_request, text) for text in MALFORMED_REQUESTS),
        *((decode_watch_reply, text) for text in MALFORMED_REPLIES),
    ],
)
def test_a_malformed_message_about_watches_is_refused(decode: Any, text: str) -> None:
    """A malformed request is a ProtocolError, which the peer counts before it drops the message; a malformed reply
    ends the watch at the client."""
    with pytest.raises(ProtocolError):
        decode(frames(text))


@given(st.lists(st.binary(max_size=9), max_size=8), st.binary(min_size=1, max_size=1))
def test_any_frames_are_a_message_about_watches_or_a_protocol_error(rest: list[bytes], first: bytes) -> None:
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


def test_a_list_of_peers_that_is_too_long_names_its_frame() -> None:
    """A proposal whose list of peers is larger than any cluster's is refused, with the frame that is to blame."""
    with pytest.raises(ProtocolError, match="the longest has 16384") as refused:
        ConfigProposal.from_frames([ConfigProposal.TYPE, b"", bytes(16 * 1024 + 1)])
    assert refused.value.frame == 2
