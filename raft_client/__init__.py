"""A client for ØMQ Raft clusters: a replicated log with idempotent appends, streams, subscriptions and watches."""

from typing import TYPE_CHECKING, Any

from raft_client.codecs import Change, ChangeKind, EntryCodec, KeyValueCodec
from raft_client.core.arguments import AppendItem
from raft_client.core.entries import SnapshotPolicy
from raft_client.core.results import ClusterConfig, LogInfo
from raft_client.core.selectors import Key, Prefix, Tree, Where
from raft_client.core.subscription import Freshness, SubscriptionState
from raft_client.core.watch import Progress, SnapshotEvent, WatchEvent
from raft_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from raft_client.errors import __all__ as _errors
from raft_client.request_id import RequestId, new_request_id
from raft_client.settings import RaftSettings
from raft_client.wire.entries import EntryKind, LogEntry, Peer
from raft_client.wire.messages import SnapshotChunk

if TYPE_CHECKING:
    from raft_client.aio.client import RaftClient as AsyncRaftClient
    from raft_client.sync.client import RaftClient

__all__ = [
    "AppendItem",
    "AsyncRaftClient",
    "Change",
    "ChangeKind",
    "ClusterConfig",
    "EntryCodec",
    "EntryKind",
    "Freshness",
    "Key",
    "KeyValueCodec",
    "LogEntry",
    "LogInfo",
    "Peer",
    "Prefix",
    "Progress",
    "RaftClient",
    "RaftSettings",
    "RequestId",
    "SnapshotChunk",
    "SnapshotEvent",
    "SnapshotPolicy",
    "SubscriptionState",
    "Tree",
    "WatchEvent",
    "Where",
    "new_request_id",
]
__all__ += _errors


def __getattr__(name: str) -> Any:
    """The two clients load when first used: a Spark worker needs one of them, and asyncio alone takes 40 ms."""
    if name == "RaftClient":
        import raft_client.sync.client

        return raft_client.sync.client.RaftClient
    if name == "AsyncRaftClient":
        import raft_client.aio.client

        return raft_client.aio.client.RaftClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
