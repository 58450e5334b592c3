"""The door of a peer: which request a message is.

Anybody can send a peer anything. A Node peer ends when a known type does not decode (facts §1.4); ours drops it.

Source: ØMQ Raft protocol; facts §1.1 for the lengths of request ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from raft_client.errors import ProtocolError
from raft_client.wire.client_dispatch import ClientDispatch
from raft_client.wire.cluster_queries import BroadcastStateUrl, RequestConfig, RequestLogInfo
from raft_client.wire.compaction_requests import TakeSnapshot, Trim
from raft_client.wire.peer_extensions import HandOver, PreVote, ReadIndex, TimeoutNow
from raft_client.wire.peer_rpcs import AppendEntries, InstallSnapshot, RequestVote
from raft_client.wire.request_entries import RequestEntries
from raft_client.wire.request_id import REQUEST_ID_BYTES
from raft_client.wire.update_requests import ConfigProposal, RequestUpdate
from raft_client.wire.watch_messages import WATCH_TYPE, WatchRequest, decode_watch_request

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AnyRequest", "decode_request"]

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

    What has a longer type than one byte and is not ours is a :class:`~raft_client.wire.cluster_queries.ClientDispatch`.
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
