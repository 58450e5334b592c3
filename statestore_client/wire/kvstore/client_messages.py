"""What only clients of a site ask, and what they are told: own keys, publications, peers, counters.

The table of all messages is in :mod:`.messages`. Source: facts §5.4, §6; decision 0045.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import attrs

from statestore_client.wire.kvstore.value import Value

__all__ = [
    "MAX_HOLD_MS", "ChangeOwnKey", "ChangePeer", "Follow", "Followed", "GetOwnKeys", "GetPeers", "GetSummary",
    "OwnKeyAction", "OwnKeyState", "OwnKeys", "PeerInfo", "PeersReply", "Piece", "Summary", "Wanted",
]  # fmt: skip

#: A request that waits is answered after this time at the latest, whatever it asks for.
MAX_HOLD_MS: Final = 20_000


class OwnKeyAction(IntEnum):
    """What a site is to do with a key that it keeps alive for its clients. (facts §5.4)"""

    SET = 1
    PERSIST = 2
    REFRESH = 3
    UNSET = 4
    CLEAR = 5
    ERASE = 6


@attrs.frozen
class ChangeOwnKey:
    """``action`` is an :class:`OwnKeyAction`, or a number that this release does not know.

    SET, PERSIST and UNSET have a value. SET can have a version; without, it is one above that of what is stored. SET
    can have a TTL, without it is the site's; REFRESH must have one. A ``SetResult`` answers.
    """

    id: int
    area: str
    action: int
    key: str
    value: bytes | None = None
    version: int | None = None
    ttl_ms: int | None = None


@attrs.frozen
class Wanted:
    """Which publications a client wants, and what of them. The filter is that of ``GetFiltered``."""

    patterns: tuple[str, ...] = ()
    originators: tuple[str, ...] = ()
    match_all: bool = False
    #: Leave out entries without a value, which are about TTLs only.
    ignore_ttl: bool = True
    omit_values: bool = False


@attrs.frozen
class Follow:
    """What was published in an area after number ``after`` of a history. Without ``after``: the number of the last one,
    at once. The reply comes when there is something, or after ``hold_ms``. Nothing is remembered between two requests.
    """

    id: int
    area: str
    wanted: Wanted
    history: int = 0
    after: int | None = None
    hold_ms: int = 0


@attrs.frozen
class GetPeers:
    """The peers of an area; if ``after`` is the number of the last change of any of them, after the next change."""

    id: int
    area: str
    history: int = 0
    after: int | None = None
    hold_ms: int = 0


@attrs.frozen
class GetSummary:
    """How much there is in each area, and what has happened there since the site was started."""

    id: int


@attrs.frozen
class GetOwnKeys:
    """The keys that the site keeps alive."""

    id: int
    area: str
    start: int = 0


@attrs.frozen
class ChangePeer:
    """Dial an address, or hang up. A ``SetResult`` without reasons answers."""

    id: int
    url: str
    is_wanted: bool


@attrs.frozen
class Piece:
    """A publication, or a part of a large one, as far as it was wanted. ``sender``: None if it began at this site."""

    number: int
    sender: str | None
    entries: Mapping[str, Value]
    expired_keys: tuple[str, ...]


@attrs.frozen
class Followed:
    """``last``: all up to this number was looked at. ``is_gap``: what came after the number that was asked for is not
    there any more, or was never; get a snapshot, and go on after ``last``.
    """

    id: int
    history: int
    last: int
    is_gap: bool
    pieces: tuple[Piece, ...] = ()


@attrs.frozen
class PeerInfo:
    """A peer of an area. ``state``: 0 idle, 1 syncing, 2 initialized, since ``since_ms``. ``flaps``: how often it was
    won or lost after the first time. ``urls``: where this site dials it; none if it dials this site.
    """

    state: int
    since_ms: int
    flaps: int
    is_connected: bool
    urls: tuple[str, ...]


@attrs.frozen
class PeersReply:
    """``last``: the number of the last change. ``unreached``: addresses that are dialled, where no site has answered
    yet.
    """

    id: int
    history: int
    last: int
    peers: Mapping[str, PeerInfo]
    unreached: tuple[str, ...]


@attrs.frozen
class Summary:
    """How a site is. ``areas``: area, name of a number, number."""

    id: int
    name: str
    incarnation: int
    areas: Mapping[str, Mapping[str, int]]


@attrs.frozen
class OwnKeyState:
    """What a site says under a key. ``is_contested``: another site persists it, too."""

    entry: Value
    is_persisted: bool
    is_contested: bool


@attrs.frozen
class OwnKeys:
    """Answers :class:`GetOwnKeys`."""

    id: int
    keys: Mapping[str, OwnKeyState]
    next: int | None = None
