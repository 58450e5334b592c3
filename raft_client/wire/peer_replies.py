"""What a peer is answered by other peers: which reply a message is, by the type of its request.

Source: ØMQ Raft protocol; :mod:`raft_client.wire.peer_extensions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from raft_client.wire.cluster_queries import LogInfoReply, RequestLogInfo
from raft_client.wire.peer_extensions import (
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    TimeoutNow,
    TimeoutNowReply,
)
from raft_client.wire.peer_rpcs import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from raft_client.wire.request_entries import EntriesReply, RequestEntries

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PeerReply", "decode_peer_reply"]

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
