"""Clients of the KvStore: state that spreads between sites, by way of the site that a client talks to.

A site is a server that runs with ``statestore serve --site NAME``. What it keeps alive for its clients comes to all
other sites that it can reach. The KvStore is for dissemination, and never for locks: nobody decides who comes first.

Source: KvStore, "KvStore Client"; ``docs/reference/kvstore.md``.
"""

from statestore_client.curve_keys import ClientKeys
from statestore_client.kvstore.aio.client import AsyncSiteClient, AsyncSiteStream
from statestore_client.kvstore.calls import Differences, KeyChange
from statestore_client.kvstore.sync.client import SiteClient, SiteStream
from statestore_client.wire.kvstore.messages import LostKey, OwnKeyState, PeerInfo, PeersReply, Summary
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, NoMergeReason, Value

__all__ = [
    "INFINITE_TTL_MS", "AsyncSiteClient", "AsyncSiteStream", "ClientKeys", "Differences", "KeyChange", "LostKey",
    "NoMergeReason", "OwnKeyState", "PeerInfo", "PeersReply", "SiteClient", "SiteStream", "Summary", "Value",
]  # fmt: skip
