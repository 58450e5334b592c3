"""Every RPC: frames captured from real peers (facts §1.3 and §4), round trips, malformed input; chunks of snapshots."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hex_frames import frames
from hypothesis import given
from hypothesis import strategies as st

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.client_requests import (
    BroadcastStateUrl,
    BroadcastStateUrlReply,
    ClientDispatch,
    ConfigReply,
    ConfigUpdate,
    ConfigUpdateReply,
    LogInfoReply,
    Outcome,
    RequestConfig,
    RequestLogInfo,
    RequestUpdate,
    UpdateReply,
)
from raft_client.wire.configuration import Peer
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk, SnapshotProgress
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from raft_client.wire.request_id import RequestId
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries, StateBroadcast

#: An entry of the published document and a checkpoint of it.
ENTRY = "5956dc8826f27e10dcccab20002a000000000000666f6f"
CHECKPOINT = "000000000000000000000000022b000000000000c0"
STATE = LogEntry.of(b"foo", term=42, request_id=RequestId.parse("5956dc8826f27e10dcccab20"))
PEER = Peer("1", "tcp://127.0.0.1:8047")
PEERS = "9192a131b47463703a2f2f3132372e302e302e313a38303437"

#: Captured on the wire between Node peers and their client, or written by the Node library: (frames, value).
GOLDEN: list[tuple[str, Any]] = [
    ("3f|| 31|01|00|00", RequestVote(b"", "1", 1, 0, 0)),
    ("01|01", VoteReply(1, granted=True)),
    ("01|", VoteReply(1, granted=False)),
    ("2b||32|01|00|00|00", AppendEntries(b"", "2", 1, 0, 0, 0)),
    ("01|01", AppendReply(1, success=True)),
    ("5e|", RequestConfig(b"")),
    (f"01|a131|{PEERS}", ConfigReply(True, "1", (PEER,))),
    ("25|", RequestLogInfo(b"")),
    (
        "01|a133|1e|d107|830c|830c|830c|6cc302|00",
        LogInfoReply(True, "3", 30, 2001, 3203, 3203, 3203, 181100, 0),
    ),
    ("01", UpdateReply(Outcome.ACCEPTED)),
    ("01|cd012c", UpdateReply(Outcome.COMMITTED, 300)),
    ("|a133", UpdateReply(Outcome.NOT_LEADER, leader_id="3")),
    ("|c0", UpdateReply(Outcome.NOT_LEADER)),
    ("", UpdateReply(Outcome.EXPIRED)),
    (f"26||{PEERS}", ConfigUpdate(b"", (PEER,))),
    (
        "02|82a46e616d65a9547970654572726f72a76d657373616765b67065657273206d75737420626520616e206172726179",
        ConfigUpdateReply(
            Outcome.REFUSED, error_name="TypeError", error_message="peers must be an array"
        ),
    ),
    ("01|cd012c", ConfigUpdateReply(Outcome.COMMITTED, 300)),
    ("01", ConfigUpdateReply(Outcome.ACCEPTED)),
    ("03", ConfigUpdateReply(Outcome.BUSY)),
    ("04", ConfigUpdateReply(Outcome.EXPIRED)),
    ("00|a133", ConfigUpdateReply(Outcome.NOT_LEADER, leader_id="3")),
    ("3c|6964656e74|00", RequestEntries(b"ident", 0)),
    ("3c|6964656e74|05||64", RequestEntries(b"ident", 5, None, 100)),
    ("3c|6964656e74|05|00", RequestEntries(b"ident", 5, 0)),
    ("00|a133", EntriesReply(EntriesStatus.NOT_LEADER, leader_id="3")),
    ("01|c0|830c", EntriesReply(EntriesStatus.LAST, 3203)),
    ("01|c0", EntriesReply(EntriesStatus.LAST)),
    (
        f"03|93ce00010000ce0002c36c1e|d007|{'ab' * 65536}",
        EntriesReply(
            EntriesStatus.CHUNK, 2000, chunk=SnapshotChunk(2000, 30, 65536, 181100, b"\xab" * 65536)
        ),
    ),
    ("2a|", BroadcastStateUrl(b"")),
    ("7463703a2f2f3132372e302e302e313a38303438", BroadcastStateUrlReply("tcp://127.0.0.1:8048")),
    ("|01|08", StateBroadcast(b"", 1, 8)),
    (
        f"|01|08|{ENTRY}|{CHECKPOINT}",
        StateBroadcast(
            b"", 1, 8, [LogEntry(7, STATE.frame), LogEntry.of(b"\xc0", term=43, kind=EntryKind.CHECKPOINT, index=8)]
        ),
    ),
    (f"02|c0|2c01|{ENTRY}", EntriesReply(EntriesStatus.MORE, 300, [LogEntry(300, STATE.frame)])),
    (
        f"2b||32|01|01|01|01|{ENTRY}",
        AppendEntries(b"", "2", 1, 1, 1, 1, [LogEntry(2, STATE.frame)]),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), GOLDEN, ids=lambda value: type(value).__name__)
def test_captured_messages_are_read_and_written(text: str, message: Any) -> None:
    """Messages captured from real peers and their client are read, and written frame for frame."""
    wire = frames(text)
    assert type(message).from_frames(wire) == message
    assert message.to_frames() == wire


def test_an_explicit_null_count_is_read() -> None:
    """A count that is an empty frame, as the Node client writes it, means the same as a missing one."""
    assert RequestEntries.from_frames(frames("3c|6964656e74|05|")) == RequestEntries(b"ident", 5)


def test_an_update_is_sent_as_the_document_says() -> None:
    """In an update type, ident and data follow the request id."""
    update = RequestUpdate(b"ident", b"data")
    assert update.to_frames() == [b"\x3d", b"ident", b"data"]
    assert RequestUpdate.from_frames([b"\x3d", b"ident", b"data"]) == update


def test_an_index_beyond_31_bits_is_an_integer() -> None:
    """A Node 0.5.0 peer answers with a double from the index 2^31 on (facts §1.2)."""
    reply = UpdateReply.from_frames(frames("01|cb41e0000000000000"))
    assert reply == UpdateReply(Outcome.COMMITTED, 2**31)
    assert type(reply.index) is int


def test_the_index_of_a_conflict_comes_before_its_term() -> None:
    """In a conflict the index comes before the term, as the peers send it (facts §1.5), unlike in the document."""
    assert AppendReply.from_frames(frames("05||07|03")) == AppendReply(5, False, conflict_index=7, conflict_term=3)
    assert AppendReply(5, False, conflict_index=7).to_frames() == frames("05||07")


def test_entries_know_their_indexes() -> None:
    """Entries get their indexes from the last index of their message."""
    reply = EntriesReply.from_frames(frames(f"02|c0|2c01|{ENTRY}|{ENTRY}|{CHECKPOINT}"))
    assert [entry.index for entry in reply.entries] == [298, 299, 300]


def test_a_custom_message_has_a_long_type() -> None:
    """A custom message has a type of two bytes or more, because types of one byte are reserved for ØMQ Raft."""
    message = ClientDispatch(b"ab", b"ident", (b"x", b""))
    assert message.to_frames() == [b"ab", b"ident", b"x", b""]
    assert ClientDispatch.from_frames([b"ab", b"ident", b"x", b""]) == message
    for wrong in (b"", b"a"):
        with pytest.raises(InvalidArgumentError):
            ClientDispatch(wrong, b"")


def test_frames_behind_the_message_are_ignored() -> None:
    """Frames after the message, as a later release may add them, are ignored."""
    assert RequestConfig.from_frames(frames("5e||ff")) == RequestConfig(b"")
    assert VoteReply.from_frames(frames("01|01|ff")) == VoteReply(1, granted=True)
    assert UpdateReply.from_frames(frames("01|cd012c|ff")) == UpdateReply(Outcome.COMMITTED, 300)


def test_a_change_of_peers_is_refused_however_badly_it_is_explained() -> None:
    """A refusal without a readable reason is still a refusal."""
    assert ConfigUpdateReply.from_frames(frames("02")) == ConfigUpdateReply(Outcome.REFUSED)
    assert ConfigUpdateReply.from_frames(frames("02|01")) == ConfigUpdateReply(Outcome.REFUSED)


def test_peers_that_know_no_leader_answer_null_or_nothing() -> None:
    """A null leader, an empty id and a missing frame all mean that no leader is known."""
    for text in ("00|c0", "00|a0", "00"):
        assert EntriesReply.from_frames(frames(text)).leader_id is None
    assert ConfigReply.from_frames(frames("|c0")) == ConfigReply(False, None)
    assert BroadcastStateUrlReply.from_frames([]).url is None


# -- nothing malformed can be sent -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", bytes(10 * 1024 * 1024 + 1), "text", None], ids=["empty", "long", "text", "none"]
)
def test_data_that_peers_ignore_is_not_sent(data: bytes) -> None:
    """An empty update, and one over 10 MiB, which peers ignore silently and a Node client repeats for ever, is
    refused."""
    with pytest.raises(InvalidDataError):
        RequestUpdate(b"", data)


def test_ten_mebibytes_are_sent() -> None:
    """An update of exactly 10 MiB is sent."""
    assert RequestUpdate(b"", bytes(10 * 1024 * 1024)).data


@pytest.mark.parametrize(
    "make",
    [
        lambda: RequestConfig("text"),
        lambda: RequestEntries(b"", -1),
        lambda: RequestEntries(b"", 2**53),
        lambda: RequestEntries(b"", None),
        lambda: RequestEntries(b"", 1.0),
        lambda: RequestEntries(b"", True),
        lambda: RequestEntries(b"", 1, -1),
        lambda: RequestEntries(b"", 1, None, "x"),
        lambda: ConfigUpdate(b"", ()),
        lambda: ConfigUpdate(b"", [PEER]),
        lambda: ConfigUpdate(b"", (("1", "tcp:1"),)),
        lambda: ConfigUpdate(b"", (PEER, Peer("1", "tcp:2"))),
        lambda: ConfigUpdate(b"", (PEER, Peer("2", PEER.url))),
        lambda: RequestVote(b"", "", 1, 1, 1),
        lambda: RequestVote(b"", "1", None, 1, 1),
        lambda: RequestVote(b"", "\ud800", 1, 1, 1),
        lambda: AppendEntries(b"", "1", 1, 1, 1, 1, [LogEntry(2, bytes(20))]),
        lambda: AppendReply(1, False, conflict_term=1),
        lambda: SnapshotChunk(1, 1, 5, 6, b"ab"),
        lambda: SnapshotChunk(1, 1, 5, 6, "a"),
        lambda: EntriesReply(EntriesStatus.CHUNK, 1),
        lambda: EntriesReply(EntriesStatus.MORE),
        lambda: EntriesReply(EntriesStatus.LAST, None, [STATE]),
        lambda: EntriesReply(EntriesStatus.LAST, 1, [STATE, STATE]),
        lambda: EntriesReply(EntriesStatus.NOT_LEADER, 1, [STATE]),
        lambda: StateBroadcast(b"", 1, 0, [STATE]),
        lambda: UpdateReply(Outcome.BUSY),
        lambda: UpdateReply(Outcome.COMMITTED),
        lambda: UpdateReply(Outcome.COMMITTED, 0),
        lambda: UpdateReply(Outcome.ACCEPTED, 1),
        lambda: UpdateReply(Outcome.EXPIRED, leader_id="1"),
        lambda: ClientDispatch(b"ab", b"", ["x"]),
    ],
)  # fmt: skip
def test_what_would_harm_a_peer_cannot_be_made(make: Any) -> None:
    """A message that would end the process of a Node peer is refused by its constructor."""
    with pytest.raises(InvalidArgumentError):
        make()


# -- malformed input ---------------------------------------------------------------------------------------------------

CLASSES = [
    RequestConfig, ConfigReply, RequestLogInfo, LogInfoReply, RequestUpdate, UpdateReply, ConfigUpdate,
    ConfigUpdateReply, RequestEntries, EntriesReply, BroadcastStateUrl, BroadcastStateUrlReply,
    StateBroadcast, RequestVote, VoteReply, AppendEntries, AppendReply, InstallSnapshot, SnapshotReply,
    ClientDispatch,
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RequestConfig, "5e"),
        (RequestConfig, "5f|"),
        (RequestUpdate, "3d||"),
        (RequestUpdate, "3d|"),
        (ConfigUpdate, "26||c1"),
        (ConfigUpdate, "26||90"),
        (RequestEntries, "3c|"),
        (RequestEntries, "3c||"),
        (RequestEntries, "3c||0000000000000001"),
        (RequestVote, "3f||31||00|00"),
        (RequestVote, "3f|||01|00|00"),
        (ConfigReply, "01"),
        (ConfigReply, "01|01"),
        (ConfigReply, "01|c0|c0"),
        (LogInfoReply, "01|a133|1e|d107|830c|830c|830c|6cc302"),
        (UpdateReply, "01|a133"),
        (UpdateReply, "01|00"),
        (UpdateReply, "01|c3"),
        (UpdateReply, "01|c0"),
        (UpdateReply, "01|cb3fe0000000000000"),
        (UpdateReply, "|2a"),
        (ConfigUpdateReply, "05"),
        (ConfigUpdateReply, "01|a133"),
        (EntriesReply, "04|c0"),
        (EntriesReply, "02|c0"),
        (EntriesReply, "02|c0|"),
        (EntriesReply, f"02|c0|01|{ENTRY}|{ENTRY}"),
        (EntriesReply, "02|c0|01|00"),
        (EntriesReply, "03|c0|01|00"),
        (EntriesReply, "03|93010001|01"),
        (EntriesReply, "03|93c30101|01"),
        (EntriesReply, "03|93000101|01|0000"),
        (EntriesReply, "03|9300ff01|01|"),
        (StateBroadcast, "|01"),
        (StateBroadcast, f"|01|00|{ENTRY}"),
        (AppendEntries, f"2b||32|01|01|01|01|{'00' * 20}"),
        (ClientDispatch, "5e|"),
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(kind: Any, text: str) -> None:
    """A message that the protocol does not allow is a ProtocolError."""
    with pytest.raises(ProtocolError):
        kind.from_frames(frames(text))


def test_the_error_names_the_frame() -> None:
    """The error of a malformed message tells which frame is wrong."""
    with pytest.raises(ProtocolError) as caught:
        LogInfoReply.from_frames(frames("01|a133|1e|d107||830c|830c|6cc302|00"))
    assert caught.value.frame == 4


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_any_frames_are_a_message_or_a_protocol_error(kind: Any, data: st.DataObject) -> None:
    """No input makes a reader raise anything but ProtocolError, and what was read can be written."""
    piece = (
        st.binary(max_size=30)
        | st.integers(0, 2**54).map(lambda n: n.to_bytes(8, "little").rstrip(b"\0"))
        | st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\x03", kind.__dict__.get("TYPE", b"ab"), STATE.frame])
        | st.sampled_from([[0, 1, 1], None, "1", [["1", "tcp:1"]], {"name": "x"}, 2.0**31]).map(msgpack.packb)
    )
    received = data.draw(st.lists(piece, max_size=10))
    if data.draw(st.booleans()):
        received = [kind.__dict__.get("TYPE", b"ab"), *received]
    try:
        message = kind.from_frames(received)
    except ProtocolError:
        return
    assert kind.from_frames(message.to_frames()) == message


# -- round trips -------------------------------------------------------------------------------------------------------

UINT = st.integers(0, 2**53 - 1)
NAME = st.text(min_size=1, max_size=8)
IDENT = st.binary(max_size=8)
LEADER = st.none() | NAME
PEER_LISTS = st.dictionaries(NAME, st.integers(1, 65535), max_size=4).map(
    lambda urls: tuple(Peer(name, f"tcp://10.0.0.{n}:{port}") for n, (name, port) in enumerate(urls.items()))
)
CHUNKS = st.builds(
    lambda index, term, offset, rest, data: SnapshotChunk(index, term, offset, offset + len(data) + rest, data),
    UINT, UINT, st.integers(0, 2**40), st.integers(0, 2**40), st.binary(max_size=20),
)  # fmt: skip


@st.composite
def consecutive(draw: st.DrawFn) -> list[LogEntry]:
    """Entries with consecutive indexes, at least one byte of data each."""
    first = draw(st.integers(1, 2**50))
    made = draw(st.lists(st.tuples(st.binary(min_size=1, max_size=9), UINT, st.sampled_from(EntryKind)), max_size=5))
    return [LogEntry.of(data, term=term, kind=kind, index=first + n) for n, (data, term, kind) in enumerate(made)]


ENTRY_LISTS = consecutive()
MESSAGES = st.one_of(
    st.builds(RequestConfig, IDENT),
    st.builds(ConfigReply, st.booleans(), LEADER, st.none() | PEER_LISTS),
    st.builds(RequestLogInfo, IDENT),
    st.builds(LogInfoReply, st.booleans(), LEADER, UINT, UINT, UINT, UINT, UINT, UINT, UINT),
    st.builds(RequestUpdate, IDENT, st.binary(min_size=1)),
    st.builds(UpdateReply, st.just(Outcome.COMMITTED), st.integers(1, 2**53 - 1)),
    st.builds(UpdateReply, st.just(Outcome.NOT_LEADER), st.none(), LEADER),
    st.builds(ConfigUpdate, IDENT, PEER_LISTS.filter(bool)),
    st.builds(ConfigUpdateReply, st.just(Outcome.NOT_LEADER), st.none(), LEADER),
    st.builds(ConfigUpdateReply, st.just(Outcome.REFUSED), st.none(), st.none(), st.text(), st.text()),
    st.builds(RequestEntries, IDENT, UINT, st.none() | UINT, st.none() | UINT),
    ENTRY_LISTS.filter(bool).map(lambda es: EntriesReply(EntriesStatus.MORE, es[-1].index, es)),
    CHUNKS.map(lambda chunk: EntriesReply(EntriesStatus.CHUNK, chunk.index, chunk=chunk)),
    ENTRY_LISTS.filter(bool).map(lambda es: StateBroadcast(b"i", 3, es[-1].index, es)),
    st.builds(RequestVote, IDENT, NAME, UINT, UINT, UINT),
    ENTRY_LISTS.filter(bool).map(lambda es: AppendEntries(b"i", "1", 2, es[0].index - 1, 1, 0, es)),
    st.builds(AppendReply, UINT, st.booleans(), UINT, st.none() | UINT),
    st.builds(InstallSnapshot, IDENT, NAME, UINT, CHUNKS),
    st.builds(SnapshotReply, UINT, st.none() | UINT),
)


@given(MESSAGES)
def test_messages_are_read_as_they_were_written(message: Any) -> None:
    """Every message survives the wire, and cannot be changed afterwards."""
    assert type(message).from_frames(message.to_frames()) == message
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        message.ident = b""


# -- the book-keeping of snapshot chunks -------------------------------------------------------------------------------


def chunk(offset: int, data: bytes, *, size: int = 10, index: int = 7) -> SnapshotChunk:
    """A piece of the snapshot of ten bytes at index 7."""
    return SnapshotChunk(index, 3, offset, size, data)


def test_chunks_in_order_complete_a_snapshot() -> None:
    """Each chunk moves the position; the last one completes."""
    progress = SnapshotProgress()
    assert not progress.complete
    assert progress.take(chunk(0, b"01234")) == chunk(0, b"01234")
    assert (progress.position, progress.complete) == (5, False)
    assert progress.take(chunk(5, b"56789")) == chunk(5, b"56789")
    assert progress.complete


def test_repeated_bytes_are_dropped() -> None:
    """A chunk that came before is dropped, one that came in part is cut."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01234"))
    assert progress.take(chunk(0, b"01234")) is None
    assert progress.take(chunk(3, b"3456")) == chunk(5, b"56")


def test_missing_bytes_are_an_error() -> None:
    """A gap between chunks is an error."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01"))
    with pytest.raises(ProtocolError, match="at 5 instead of 2"):
        progress.take(chunk(5, b"5"))
    assert progress.position == 2


def test_another_snapshot_starts_anew() -> None:
    """After a change of leader another snapshot is accepted from its first byte only."""
    progress = SnapshotProgress()
    progress.take(chunk(0, b"01"))
    with pytest.raises(ProtocolError):
        progress.take(chunk(2, b"2", index=8))
    assert progress.position == 0
    assert progress.take(chunk(0, b"ab", index=8)) == chunk(0, b"ab", index=8)


def test_an_empty_snapshot_is_complete_at_once() -> None:
    """A snapshot of no bytes has one empty chunk, which is both the first and the last."""
    progress = SnapshotProgress()
    empty = chunk(0, b"", size=0)
    assert progress.take(empty) == empty
    assert progress.complete
    assert empty.is_first
    assert empty.is_last


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.booleans()), max_size=30))
def test_what_is_taken_is_always_the_start_of_one_snapshot(pieces: list[tuple[int, int, bool]]) -> None:
    """Whatever arrives in whatever order, the bytes taken since the last start are the first bytes of one snapshot."""
    content = {False: bytes(range(30)), True: bytes(range(100, 130))}
    progress, taken = SnapshotProgress(), b""
    for offset, length, other in pieces:
        data = content[other][offset : offset + length]
        try:
            new = progress.take(SnapshotChunk(8 if other else 7, 3, min(offset, 30), 30, data))
        except ProtocolError:
            continue
        if new is not None:
            taken = (b"" if new.is_first else taken) + new.data
        if progress.position:
            assert len(taken) == progress.position
            assert any(whole.startswith(taken) for whole in content.values())
