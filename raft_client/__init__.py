"""A client for ØMQ Raft clusters: a replicated log with idempotent appends, streams, subscriptions and watches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raft_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from raft_client.errors import __all__ as _errors

if TYPE_CHECKING:
    from raft_client.aio.client import AsyncRaftClient
    from raft_client.aio.entries import AsyncEntries
    from raft_client.aio.subscriber import AsyncSubscriber
    from raft_client.aio.watch import AsyncWatch
    from raft_client.codecs import KeyValueCodec
    from raft_client.core.arguments import DEFAULT_TIMEOUT, AppendItem
    from raft_client.core.connection import ConnectionState
    from raft_client.core.entries import SnapshotPolicy
    from raft_client.core.request import RequestStats
    from raft_client.core.results import ClusterConfig, LogInfo
    from raft_client.core.selectors import Key, Prefix, Tree, Where
    from raft_client.core.streaming import Freshness, SubscriptionState
    from raft_client.core.watch import Progress, Resumed, SnapshotEvent, Suspended, WatchCounts, WatchEvent, WatchItem
    from raft_client.request_id import RequestId, new_request_id
    from raft_client.settings import RaftOptions, RaftSettings
    from raft_client.sync.client import RaftClient
    from raft_client.sync.entries import Entries
    from raft_client.sync.subscriber import Subscriber
    from raft_client.sync.watch import Watch
    from raft_client.wire.changes import Change, ChangeKind, EntryCodec, Previous
    from raft_client.wire.entries import ConfigChange, EntryKind, LogEntry, Peer, decode_config
    from raft_client.wire.positions import Position
    from raft_client.wire.snapshots import SnapshotChunk

__all__ = [
    "DEFAULT_TIMEOUT",
    "AppendItem",
    "AsyncEntries",
    "AsyncRaftClient",
    "AsyncSubscriber",
    "AsyncWatch",
    "Change",
    "ChangeKind",
    "ClusterConfig",
    "ConfigChange",
    "ConnectionState",
    "Entries",
    "EntryCodec",
    "EntryKind",
    "Freshness",
    "Key",
    "KeyValueCodec",
    "LogEntry",
    "LogInfo",
    "Peer",
    "Position",
    "Prefix",
    "Previous",
    "Progress",
    "RaftClient",
    "RaftOptions",
    "RaftSettings",
    "RequestId",
    "RequestStats",
    "Resumed",
    "SnapshotChunk",
    "SnapshotEvent",
    "SnapshotPolicy",
    "Subscriber",
    "SubscriptionState",
    "Suspended",
    "Tree",
    "Watch",
    "WatchCounts",
    "WatchEvent",
    "WatchItem",
    "Where",
    "decode_config",
    "new_request_id",
]
__all__ += _errors

#: Everything but the errors loads when it is first used: Spark starts many short-lived processes that need very little.
_HOMES = {
    "DEFAULT_TIMEOUT": "core.arguments",
    "AppendItem": "core.arguments",
    "AsyncEntries": "aio.entries",
    "AsyncRaftClient": "aio.client",
    "AsyncSubscriber": "aio.subscriber",
    "AsyncWatch": "aio.watch",
    "Change": "wire.changes",
    "ChangeKind": "wire.changes",
    "ClusterConfig": "core.results",
    "ConfigChange": "wire.entries",
    "ConnectionState": "core.connection",
    "Entries": "sync.entries",
    "EntryCodec": "wire.changes",
    "EntryKind": "wire.entries",
    "Freshness": "core.streaming",
    "Key": "core.selectors",
    "KeyValueCodec": "codecs",
    "LogEntry": "wire.entries",
    "LogInfo": "core.results",
    "Peer": "wire.entries",
    "Position": "wire.positions",
    "Prefix": "core.selectors",
    "Previous": "wire.changes",
    "Progress": "core.watch",
    "RaftClient": "sync.client",
    "RaftOptions": "settings",
    "RaftSettings": "settings",
    "RequestId": "request_id",
    "RequestStats": "core.request",
    "Resumed": "core.watch",
    "SnapshotChunk": "wire.snapshots",
    "SnapshotEvent": "core.watch",
    "SnapshotPolicy": "core.entries",
    "Subscriber": "sync.subscriber",
    "SubscriptionState": "core.streaming",
    "Suspended": "core.watch",
    "Tree": "core.selectors",
    "Watch": "sync.watch",
    "WatchCounts": "core.watch",
    "WatchEvent": "core.watch",
    "WatchItem": "core.watch",
    "Where": "core.selectors",
    "decode_config": "wire.entries",
    "new_request_id": "request_id",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
