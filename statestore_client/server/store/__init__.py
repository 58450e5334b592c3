"""The state store: a keyspace with versions, fencing, expiry and notifications. Pure."""

from __future__ import annotations

from statestore_client.server.store.durability import KEEP_ALL, Persistence
from statestore_client.server.store.keyspace import Change, Outcome, RequestContext, StoreLimits, StoreUsage
from statestore_client.server.store.store import SiteStore, StateStore, StoreObserver

__all__ = [
    "KEEP_ALL",
    "Change",
    "Outcome",
    "Persistence",
    "RequestContext",
    "SiteStore",
    "StateStore",
    "StoreLimits",
    "StoreObserver",
    "StoreUsage",
]
