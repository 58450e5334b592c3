"""A client for the Azure IoT Operations state store: keys, watches, locks with fencing tokens, over MQTT 5."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statestore_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from statestore_client.errors import __all__ as _errors

if TYPE_CHECKING:
    from statestore_client.aio.client import AsyncStateStoreClient
    from statestore_client.core.actions import ConnectionState, EventKind, WatchEvent
    from statestore_client.core.calls import SetItem
    from statestore_client.core.edits import KEEP
    from statestore_client.core.holders import LockState
    from statestore_client.core.results import DeleteResult, Item, SetResult
    from statestore_client.settings import ConnectionSettings
    from statestore_client.sync.client import StateStoreClient
    from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock

__all__ = [
    "KEEP",
    "AsyncStateStoreClient",
    "ConnectionSettings",
    "ConnectionState",
    "DeleteResult",
    "EventKind",
    "HlcTimestamp",
    "HybridLogicalClock",
    "Item",
    "LockState",
    "SetItem",
    "SetResult",
    "StateStoreClient",
    "WatchEvent",
]
__all__ += [name for name in _errors if name != "server_error"]

#: Everything but the errors loads when it is first used: Spark starts many short-lived processes that need very little.
_HOMES = {
    "AsyncStateStoreClient": "aio.client",
    "ConnectionSettings": "settings",
    "ConnectionState": "core.actions",
    "DeleteResult": "core.results",
    "EventKind": "core.actions",
    "HlcTimestamp": "wire.hlc",
    "HybridLogicalClock": "wire.hlc",
    "Item": "core.results",
    "KEEP": "core.edits",
    "LockState": "core.holders",
    "SetItem": "core.calls",
    "SetResult": "core.results",
    "StateStoreClient": "sync.client",
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
