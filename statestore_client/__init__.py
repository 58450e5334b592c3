"""A client for the Azure IoT Operations state store: keys, watches, locks with fencing tokens, over MQTT 5."""

from typing import TYPE_CHECKING, Any

from statestore_client.core.actions import ConnectionState, EventKind, WatchEvent
from statestore_client.core.calls import SetItem
from statestore_client.core.results import DeleteResult, Item, SetResult
from statestore_client.errors import *  # noqa: F403 - the error tree; its __all__ is the public list
from statestore_client.errors import __all__ as _errors
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock

if TYPE_CHECKING:
    from statestore_client.aio.client import StateStoreClient as AsyncStateStoreClient
    from statestore_client.sync.client import StateStoreClient

__all__ = [
    "AsyncStateStoreClient",
    "ConnectionSettings",
    "ConnectionState",
    "DeleteResult",
    "EventKind",
    "HlcTimestamp",
    "HybridLogicalClock",
    "Item",
    "SetItem",
    "SetResult",
    "StateStoreClient",
    "WatchEvent",
]
__all__ += [name for name in _errors if name != "server_error"]


def __getattr__(name: str) -> Any:
    """The two clients load when first used: a Spark worker needs one of them, and asyncio alone takes 40 ms."""
    if name == "StateStoreClient":
        import statestore_client.sync.client

        return statestore_client.sync.client.StateStoreClient
    if name == "AsyncStateStoreClient":
        import statestore_client.aio.client

        return statestore_client.aio.client.StateStoreClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
