"""What peers ask each other, and which request or reply a message to a peer is: frames <-> values.

A peer sends its requests through a DEALER with a ``uint`` request id of its own. Peers never pipeline AppendEntries:
each one, even an empty one, cuts the receiver's log after ``prev_index`` (facts §1.4). PreVote, TimeoutNow and
ReadIndex are not in the document, and are sent only to a peer that said hello with the capability
(:mod:`raft_client.wire.hello`). Their types have two bytes, the first one ``00``: the document leaves types of one byte
to itself and longer ones to state machines, and ours take none of these.

A peer that knows ``transfer`` takes TimeoutNow from the leader, and HandOver from clients.

Anybody can send a peer anything. A Node peer ends when a known type does not decode (facts §1.4); ours drops it.

Source: ØMQ Raft protocol, "RequestVote RPC", "AppendEntries RPC", "InstallSnapshot RPC"; facts §1.1 for the lengths of
request ids. Where the document puts the conflict's term first, the peers send the index first (facts §1.5), and so do
we. Ours: ``docs/decisions/raft-wire.md``; Ongaro, *Consensus: Bridging Theory and Practice*, §9.6
(pre-vote), §3.10 (transfer of leadership), §6.4 (reads).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.client_requests import (
    BroadcastStateUrl,
    ClientDispatch,
    ConfigProposal,
    HandOver,
    LogInfoReply,
    RequestConfig,
    RequestLogInfo,
    RequestUpdate,
    TakeSnapshot,
    Trim,
)
from raft_client.wire.fields import (
    FLAG,
    LEADER,
    NAME,
    RAW,
    TEXT,
    UINT,
    FieldMessage,
    FrameReader,
    build,
    check_bytes,
    check_name,
    check_uint,
    frame,
    group,
    reply,
    request,
)
from raft_client.wire.frames import encode_string, encode_uint
from raft_client.wire.log_entry import (
    ENTRY_HEADER_BYTES,
    LogEntry,
    SnapshotChunk,
    as_entries,
    decode_entries,
    show_count,
)
from raft_client.wire.request_id import REQUEST_ID_BYTES
from raft_client.wire.streams import EntriesReply, RequestEntries
from raft_client.wire.watch_messages import WATCH_TYPE, WatchRequest, decode_watch_request

if TYPE_CHECKING:
    from collections.abc import Sequence


@request(b"\x3f")
class RequestVote(FieldMessage):
    """Type 3f. Elect me for ``term``; my log ends at ``last_index``, in ``last_term``.

    ``leader_agrees``: the leader asked for this election (TimeoutNow), so those who hear it may vote all the same. It
    is a frame more than the document has, for those who know the capability *transfer*; Node peers would ignore it.
    """

    ident: bytes = frame(RAW)
    candidate_id: str = frame(NAME)
    term: int = frame(UINT)
    last_index: int = frame(UINT)
    last_term: int = frame(UINT)
    leader_agrees: bool = frame(FLAG, default=False, optional=True)


@reply(RequestVote.TYPE)
class VoteReply(FieldMessage):
    """``term`` is that of the peer that answers; a candidate with a lower one steps down."""

    term: int = frame(UINT)
    granted: bool = frame(FLAG)


@attrs.frozen
class AppendEntries:
    """Type 2b. ``entries`` follow ``prev_index``; none is a heartbeat. Each has at least one byte of data."""

    TYPE: ClassVar[bytes] = b"\x2b"

    ident: bytes = attrs.field(validator=check_bytes)
    leader_id: str = attrs.field(validator=check_name)
    term: int = attrs.field(validator=check_uint)
    prev_index: int = attrs.field(validator=check_uint)
    prev_term: int = attrs.field(validator=check_uint)
    commit_index: int = attrs.field(validator=check_uint)
    entries: tuple[LogEntry, ...] = attrs.field(default=(), repr=show_count, converter=as_entries)

    def __attrs_post_init__(self) -> None:
        for entry in self.entries:
            if len(entry.frame) <= ENTRY_HEADER_BYTES:
                raise InvalidArgumentError("an entry to append without data")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = map(encode_uint, (self.term, self.prev_index, self.prev_term, self.commit_index))
        frames = [self.TYPE, self.ident, encode_string(self.leader_id), *numbers]
        return frames + [entry.frame for entry in self.entries]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> AppendEntries:
        """Raises ProtocolError. The entries know their indexes."""
        reader = FrameReader.of_request(frames, cls.TYPE)
        ident, leader_id, term, prev_index = reader.raw(), reader.read(TEXT), reader.uint(), reader.uint()
        prev_term, commit_index = reader.uint(), reader.uint()
        entries = decode_entries(reader.rest(), prev_index + 1)
        return build(cls, ident, leader_id, term, prev_index, prev_term, commit_index, entries)


@reply(AppendEntries.TYPE)
class AppendReply(FieldMessage):
    """``conflict_index`` is where the leader should go on, when the follower's log is shorter than it believed."""

    term: int = frame(UINT)
    success: bool = frame(FLAG)
    conflict_index: int | None = frame(UINT, default=None, optional=True)
    conflict_term: int | None = frame(UINT, default=None, optional=True)

    def __attrs_post_init__(self) -> None:
        if self.conflict_index is None and self.conflict_term is not None:
            raise InvalidArgumentError("the term of a conflict without its index")


@request(b"\x24")
class InstallSnapshot(FieldMessage):
    """Type 24. One chunk; the next one is sent when this one is answered."""

    ident: bytes = frame(RAW)
    leader_id: str = frame(NAME)
    term: int = frame(UINT)
    chunk: SnapshotChunk = group(SnapshotChunk, index=UINT, term=UINT, offset=UINT, size=UINT, data=RAW)


@reply(InstallSnapshot.TYPE)
class SnapshotReply(FieldMessage):
    """``position`` is the offset that the follower wants next; without it, go on after the chunk."""

    term: int = frame(UINT)
    position: int | None = frame(UINT, default=None, optional=True)


# -- PreVote, TimeoutNow and ReadIndex ---------------------------------------------------------------------------------


@request(b"\x00\x50")
class PreVote(FieldMessage):
    """Would you vote for me in ``term``, which I am not yet in? It changes nothing at the receiver."""

    ident: bytes = frame(RAW)
    candidate_id: str = frame(NAME)
    term: int = frame(UINT)
    last_index: int = frame(UINT)
    last_term: int = frame(UINT)


@reply(PreVote.TYPE)
class PreVoteReply(FieldMessage):
    """``term`` is that of the one who answers."""

    term: int = frame(UINT)
    granted: bool = frame(FLAG)


@request(b"\x00\x54")
class TimeoutNow(FieldMessage):
    """Your log is as long as mine: stand for election at once. Only the leader of ``term`` says so."""

    ident: bytes = frame(RAW)
    leader_id: str = frame(NAME)
    term: int = frame(UINT)


@reply(TimeoutNow.TYPE)
class TimeoutNowReply(FieldMessage):
    """``started``: the election has begun, in ``term``."""

    term: int = frame(UINT)
    started: bool = frame(FLAG)


@request(b"\x00\x52")
class ReadIndex(FieldMessage):
    """Which index must be applied by who wants to read what is newest now? Clients and peers ask the leader."""

    ident: bytes = frame(RAW)


@reply(ReadIndex.TYPE)
class ReadIndexReply(FieldMessage):
    """``index`` if the peer leads; otherwise whom to ask, if it is known."""

    leader_id: str | None = frame(LEADER)
    index: int | None = frame(UINT, default=None, optional=True)


# -- Which reply a message is ------------------------------------------------------------------------------------------


PeerReply: TypeAlias = (
    VoteReply
    | AppendReply
    | SnapshotReply
    | EntriesReply
    | LogInfoReply
    | PreVoteReply
    | TimeoutNowReply
    | ReadIndexReply
)

_BY_REQUEST: Final[dict[bytes, type[PeerReply]]] = {
    RequestVote.TYPE: VoteReply,
    AppendEntries.TYPE: AppendReply,
    InstallSnapshot.TYPE: SnapshotReply,
    RequestEntries.TYPE: EntriesReply,
    RequestLogInfo.TYPE: LogInfoReply,
    PreVote.TYPE: PreVoteReply,
    TimeoutNow.TYPE: TimeoutNowReply,
    ReadIndex.TYPE: ReadIndexReply,
}


def decode_peer_reply(request_type: bytes, frames: Sequence[bytes]) -> PeerReply:
    """Read the ``frames`` after the request id. Raises ProtocolError."""
    return _BY_REQUEST[request_type].from_frames(frames)


# -- Which request a message is ----------------------------------------------------------------------------------------


AnyRequest: TypeAlias = (
    AppendEntries
    | BroadcastStateUrl
    | ClientDispatch
    | ConfigProposal
    | HandOver
    | InstallSnapshot
    | PreVote
    | ReadIndex
    | RequestConfig
    | RequestEntries
    | RequestLogInfo
    | RequestUpdate
    | RequestVote
    | TakeSnapshot
    | TimeoutNow
    | Trim
    | WatchRequest
)

#: Their request ids are those of entries, written into the log.
_OF_ENTRIES: Final[dict[bytes, type[RequestUpdate | ConfigProposal]]] = {
    kind.TYPE: kind for kind in (RequestUpdate, ConfigProposal)
}
#: Their request ids count the requests of one peer, modulo 2^24.
_OF_PEERS: Final[dict[bytes, type[RequestVote | AppendEntries | InstallSnapshot]]] = {
    kind.TYPE: kind for kind in (RequestVote, AppendEntries, InstallSnapshot)
}
#: Their request ids are returned as they came.
_OTHERS: Final = {
    kind.TYPE: kind
    for kind in (
        RequestConfig,
        RequestLogInfo,
        RequestEntries,
        BroadcastStateUrl,
        PreVote,
        TimeoutNow,
        ReadIndex,
        HandOver,
        TakeSnapshot,
        Trim,
    )
}
_PEER_ID_BYTES: Final = 3
#: A request id comes back with each answer: a longer one would fill the queues of those who do not read theirs. A hello
#: is the longest that there is.
_MAX_ID_BYTES: Final = 1024


def decode_request(request_id: bytes, frames: Sequence[bytes]) -> AnyRequest:
    """Read ``frames``, those after the request id.

    What has a longer type than one byte and is not ours is a :class:`~raft_client.wire.client_requests.ClientDispatch`.
    Raises ProtocolError for everything else: too few frames, an unknown type of one byte, a request id of a length that
    the type does not have, or a frame that cannot be read. Whether the ident is the cluster's own is not looked at.
    """
    if len(frames) < 2:
        raise ProtocolError("a message without type or cluster ident")
    if len(request_id) > _MAX_ID_BYTES:
        raise ProtocolError(f"a request id of {len(request_id)} bytes; the longest has {_MAX_ID_BYTES}")
    message_type = frames[0]
    if kind := _OTHERS.get(message_type):
        return kind.from_frames(frames)
    if peer_kind := _OF_PEERS.get(message_type):
        if not 1 <= len(request_id) <= _PEER_ID_BYTES:
            raise ProtocolError(f"a request id of {len(request_id)} bytes; those of peers have 1 to {_PEER_ID_BYTES}")
        return peer_kind.from_frames(frames)
    if entry_kind := _OF_ENTRIES.get(message_type):
        if len(request_id) != REQUEST_ID_BYTES:
            raise ProtocolError(f"a request id of {len(request_id)} bytes; an update's has {REQUEST_ID_BYTES}")
        return entry_kind.from_frames(frames)
    if message_type == WATCH_TYPE:
        return decode_watch_request(frames)
    return ClientDispatch.from_frames(frames)
