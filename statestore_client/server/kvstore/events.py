"""What a site tells the program that runs it. Only PeerWanted has to be acted upon."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from statestore_client.server.kvstore.admission import AreaLimits
from statestore_client.server.kvstore.links import LinkId
from statestore_client.server.kvstore.peer_states import PeerState
from statestore_client.server.kvstore.store import AreaSummary

__all__ = [
    "AreaFull", "HelloRefused", "MalformedMessage", "NameInUse", "PeerChanged", "PeerWanted", "SiteEvent", "Synced",
]  # fmt: skip


@attrs.frozen
class PeerChanged:
    """A peer of an area went from state to state; None: it was not there before, or is gone."""

    area: str
    peer: str
    before: PeerState | None
    after: PeerState | None


@attrs.frozen
class HelloRefused:
    """A connection with this name was refused, by this side or by the other one. ``reason``: see ``RefusalReason``."""

    link: object
    name: str
    reason: int
    text: str


@attrs.frozen
class NameInUse:
    """Two living sites have one name: WARNING. One of them must be given another."""

    name: str


@attrs.frozen
class AreaFull:
    """An area has no room for what a peer has sent: WARNING. Told again after some minutes without such a case."""

    area: str
    holds: AreaSummary
    limits: AreaLimits


@attrs.frozen
class MalformedMessage:
    """What came on a connection is not of this protocol; it changed nothing."""

    link: object
    error: str


@attrs.frozen
class Synced:
    """Every peer that was known at the start has been synced with, or failed once; sent once."""


@attrs.frozen
class PeerWanted:
    """A client asks the site to dial an address, or to hang up: do it, and answer request ``id`` on ``link``."""

    link: LinkId
    id: int
    url: str
    is_wanted: bool


SiteEvent: TypeAlias = PeerChanged | HelloRefused | NameInUse | AreaFull | MalformedMessage | Synced | PeerWanted
