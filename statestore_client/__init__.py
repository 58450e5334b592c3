"""A client for the Azure IoT Operations state store: keys, watches, locks with fencing tokens, over MQTT 5."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from statestore_client.errors import __all__ as _errors

if TYPE_CHECKING:
    from statestore_client.aio.acquisition import Acquisition
    from statestore_client.aio.client import AsyncStateStoreClient
    from statestore_client.aio.leases import AsyncGuardedStore, AsyncLease, AsyncLeaseStore
    from statestore_client.aio.locks import AsyncElection, AsyncLock, AsyncLockObservation
    from statestore_client.aio.watch import AsyncWatch
    from statestore_client.core.actions import ConnectionState, EventKind, WatchEvent
    from statestore_client.core.arguments import DEFAULT_TIMEOUT, SetItem
    from statestore_client.core.edits import KEEP
    from statestore_client.core.locks import LockState
    from statestore_client.core.request_table import ExchangeStats
    from statestore_client.core.results import DeleteResult, Item, SetResult
    from statestore_client.settings import ClientOptions, ConnectionOptions, ConnectionSettings, SharedOptions
    from statestore_client.sync.client import StateStoreClient
    from statestore_client.sync.leases import GuardedStore, Lease, LeaseStore
    from statestore_client.sync.locks import Election, Lock, LockObservation
    from statestore_client.sync.watch import Watch
    from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
    from statestore_client.wire.instant import Instant

__all__ = [
    "DEFAULT_TIMEOUT",
    "KEEP",
    "Acquisition",
    "AsyncElection",
    "AsyncGuardedStore",
    "AsyncLease",
    "AsyncLeaseStore",
    "AsyncLock",
    "AsyncLockObservation",
    "AsyncStateStoreClient",
    "AsyncWatch",
    "ClientOptions",
    "ConnectionOptions",
    "ConnectionSettings",
    "ConnectionState",
    "DeleteResult",
    "Election",
    "EventKind",
    "ExchangeStats",
    "GuardedStore",
    "HlcTimestamp",
    "HybridLogicalClock",
    "Instant",
    "Item",
    "Lease",
    "LeaseStore",
    "Lock",
    "LockObservation",
    "LockState",
    "SetItem",
    "SetResult",
    "SharedOptions",
    "StateStoreClient",
    "Watch",
    "WatchEvent",
]
__all__ += _errors

#: Everything but the errors loads when it is first used: Spark starts many short-lived processes that need very little.
_HOMES = {
    "DEFAULT_TIMEOUT": "core.arguments",
    "KEEP": "core.edits",
    "Acquisition": "aio.acquisition",
    "AsyncElection": "aio.locks",
    "AsyncGuardedStore": "aio.leases",
    "AsyncLease": "aio.leases",
    "AsyncLeaseStore": "aio.leases",
    "AsyncLock": "aio.locks",
    "AsyncLockObservation": "aio.locks",
    "AsyncStateStoreClient": "aio.client",
    "AsyncWatch": "aio.watch",
    "ClientOptions": "settings",
    "ConnectionOptions": "settings",
    "ConnectionSettings": "settings",
    "ConnectionState": "core.actions",
    "DeleteResult": "core.results",
    "Election": "sync.locks",
    "EventKind": "core.actions",
    "ExchangeStats": "core.request_table",
    "GuardedStore": "sync.leases",
    "HlcTimestamp": "wire.hlc",
    "HybridLogicalClock": "wire.hlc",
    "Instant": "wire.instant",
    "Item": "core.results",
    "Lease": "sync.leases",
    "LeaseStore": "sync.leases",
    "Lock": "sync.locks",
    "LockObservation": "sync.locks",
    "LockState": "core.locks",
    "SetItem": "core.arguments",
    "SetResult": "core.results",
    "SharedOptions": "settings",
    "StateStoreClient": "sync.client",
    "Watch": "sync.watch",
    "WatchEvent": "core.actions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
