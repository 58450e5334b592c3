"""A client for ØMQ Raft clusters: a replicated log with idempotent appends, streams, subscriptions and watches.

The peers of such a cluster are in :mod:`raft_client.server`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raft_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from raft_client.errors import __all__ as _errors

if TYPE_CHECKING:
    from raft_client.aio.client import AsyncRaftClient
    from raft_client.aio.key_values import AsyncKeyRange, AsyncKeyValues
    from raft_client.aio.lease import AsyncKeyLease
    from raft_client.aio.mirror import AsyncKeyMirror, AsyncMirrorChanges
    from raft_client.aio.readers import AsyncEntries, AsyncSubscriber
    from raft_client.aio.watch import AsyncWatch
    from raft_client.codecs import Compare, KeyValueCodec, Transaction
    from raft_client.core.arguments import DEFAULT_TIMEOUT, AppendItem
    from raft_client.core.calls import ClusterConfig, LogInfo, PeerConfig, TakenSnapshot
    from raft_client.core.entries_stream import SnapshotPolicy
    from raft_client.core.key_value_calls import KeyState, LeaseInfo, WriteOutcome
    from raft_client.core.mirrors import MirrorEvent
    from raft_client.core.requests import ConnectionState, RequestStats
    from raft_client.core.selectors import Key, Prefix, Tree, Where
    from raft_client.core.stream_actions import Freshness, SubscriptionState
    from raft_client.core.watch_events import (
        Progress,
        Resumed,
        SnapshotEvent,
        Suspended,
        WatchCounts,
        WatchEvent,
        WatchItem,
    )
    from raft_client.request_id_factory import new_request_id
    from raft_client.settings import RaftOptions, RaftSettings
    from raft_client.sync.client import RaftClient
    from raft_client.sync.key_values import KeyRange, KeyValues
    from raft_client.sync.lease import KeyLease
    from raft_client.sync.mirror import KeyMirror, MirrorChanges
    from raft_client.sync.readers import Entries, Subscriber
    from raft_client.sync.watch import Watch
    from raft_client.wire.configuration import ConfigChange, Peer, decode_config
    from raft_client.wire.key_changes import Change, ChangeKind, EntryCodec, Previous
    from raft_client.wire.log_entry import EntryKind, LogEntry, Position, SnapshotChunk
    from raft_client.wire.request_id import IdFreshness, RequestId

__all__ = [
    "DEFAULT_TIMEOUT",
    "AppendItem",
    "AsyncEntries",
    "AsyncKeyLease",
    "AsyncKeyMirror",
    "AsyncKeyRange",
    "AsyncKeyValues",
    "AsyncMirrorChanges",
    "AsyncRaftClient",
    "AsyncSubscriber",
    "AsyncWatch",
    "Change",
    "ChangeKind",
    "ClusterConfig",
    "Compare",
    "ConfigChange",
    "ConnectionState",
    "Entries",
    "EntryCodec",
    "EntryKind",
    "Freshness",
    "IdFreshness",
    "Key",
    "KeyLease",
    "KeyMirror",
    "KeyRange",
    "KeyState",
    "KeyValueCodec",
    "KeyValues",
    "LeaseInfo",
    "LogEntry",
    "LogInfo",
    "MirrorChanges",
    "MirrorEvent",
    "Peer",
    "PeerConfig",
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
    "TakenSnapshot",
    "Transaction",
    "Tree",
    "Watch",
    "WatchCounts",
    "WatchEvent",
    "WatchItem",
    "Where",
    "WriteOutcome",
    "decode_config",
    "new_request_id",
]
__all__ += _errors

#: Everything but the errors loads when it is first used: Spark starts many short-lived processes that need very little.
_HOMES = {
    "DEFAULT_TIMEOUT": "core.arguments",
    "AppendItem": "core.arguments",
    "AsyncEntries": "aio.readers",
    "AsyncKeyLease": "aio.lease",
    "AsyncKeyMirror": "aio.mirror",
    "AsyncKeyRange": "aio.key_values",
    "AsyncKeyValues": "aio.key_values",
    "AsyncMirrorChanges": "aio.mirror",
    "AsyncRaftClient": "aio.client",
    "AsyncSubscriber": "aio.readers",
    "AsyncWatch": "aio.watch",
    "Change": "wire.key_changes",
    "ChangeKind": "wire.key_changes",
    "ClusterConfig": "core.calls",
    "Compare": "codecs",
    "ConfigChange": "wire.configuration",
    "ConnectionState": "core.requests",
    "Entries": "sync.readers",
    "EntryCodec": "wire.key_changes",
    "EntryKind": "wire.log_entry",
    "Freshness": "core.stream_actions",
    "IdFreshness": "wire.request_id",
    "Key": "core.selectors",
    "KeyLease": "sync.lease",
    "KeyMirror": "sync.mirror",
    "KeyRange": "sync.key_values",
    "KeyState": "core.key_value_calls",
    "KeyValueCodec": "codecs",
    "KeyValues": "sync.key_values",
    "LeaseInfo": "core.key_value_calls",
    "LogEntry": "wire.log_entry",
    "LogInfo": "core.calls",
    "MirrorChanges": "sync.mirror",
    "MirrorEvent": "core.mirrors",
    "Peer": "wire.configuration",
    "PeerConfig": "core.calls",
    "Position": "wire.log_entry",
    "Prefix": "core.selectors",
    "Previous": "wire.key_changes",
    "Progress": "core.watch_events",
    "RaftClient": "sync.client",
    "RaftOptions": "settings",
    "RaftSettings": "settings",
    "RequestId": "wire.request_id",
    "RequestStats": "core.requests",
    "Resumed": "core.watch_events",
    "SnapshotChunk": "wire.log_entry",
    "SnapshotEvent": "core.watch_events",
    "SnapshotPolicy": "core.entries_stream",
    "Subscriber": "sync.readers",
    "SubscriptionState": "core.stream_actions",
    "TakenSnapshot": "core.calls",
    "Suspended": "core.watch_events",
    "Transaction": "codecs",
    "Tree": "core.selectors",
    "Watch": "sync.watch",
    "WatchCounts": "core.watch_events",
    "WatchEvent": "core.watch_events",
    "WatchItem": "core.watch_events",
    "Where": "core.selectors",
    "WriteOutcome": "core.key_value_calls",
    "decode_config": "wire.configuration",
    "new_request_id": "request_id_factory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
