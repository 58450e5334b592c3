"""The state store: a keyspace with versions, fencing, expiry and notifications. Pure."""

from __future__ import annotations

from statestore_client.server.store.persistence import KEEP_ALL, Persistence
from statestore_client.server.store.site_store import SiteStore
from statestore_client.server.store.store import StateStore, StoreObserver
from statestore_client.server.store.values import Change, Outcome, RequestContext, StoreLimits, StoreUsage

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
