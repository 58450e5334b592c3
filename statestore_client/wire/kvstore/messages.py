"""What sites say to each other, and clients to a site, as values. :mod:`.codec` has the bytes.

======================  ====  ======  =================================================================================
message                 code  kind    its fields
======================  ====  ======  =================================================================================
:class:`Hello`          1     alone   version, name, incarnation, areas, capabilities, is reply
:class:`HelloWanted`    2     alone   (none)
:class:`Heartbeat`      3     alone   incarnation, number of the last flood
:class:`Refusal`        4     alone   reason, text
:class:`Flood`          5     alone   number, area, path, entries
:class:`Leave`          6     alone   (none)
:class:`Get`            16    asks    id, area, keys
:class:`GetFiltered`    17    asks    id, area, patterns, originators, match all, omit values, start
:class:`GetHashes`      18    asks    id, area, patterns, start
:class:`Set`            19    asks    id, area, entries, path
:class:`CompareRanges`  20    asks    id, area, level, prefixes, sum or nil
:class:`Sync`           21    asks    id, area, ranges, hashes
:class:`Finalize`       22    asks    id, area, entries, is last
:class:`ChangeOwnKey`   23    asks    id, area, action, key, value or nil, version or nil, TTL in ms or nil
:class:`Follow`         24    asks    id, area, what is wanted, history, after or nil, hold
:class:`GetPeers`       25    asks    id, area, history, after or nil, hold
:class:`GetSummary`     26    asks    id
:class:`GetOwnKeys`     27    asks    id, area, start
:class:`ChangePeer`     28    asks    id, address, is wanted
:class:`Found`          32    reply   id, entries, next or nil
:class:`SetResult`      33    reply   id, reasons
:class:`RangeSumsReply`  34    reply   id, is equal, sums
:class:`SyncReply`      35    reply   id, entries, keys to be updated, next or nil
:class:`Failure`        36    reply   id, reason, text
:class:`Followed`       37    reply   id, history, last, is gap, publications
:class:`PeersReply`     38    reply   id, history, last, peers, dialled addresses
:class:`Summary`        39    reply   id, name of the site, incarnation, area -> counter -> number
:class:`OwnKeys`        40    reply   id, own keys, next or nil
======================  ====  ======  =================================================================================

*History*: what was published in an area since the site was started; its number is the site's incarnation. *Hold*: how
many ms a request may wait for something new, before it is answered that there is nothing.

*Position*: of a key, 0 to 2^64 - 1. ``start`` and ``next`` are positions: a reply that does not fit ends before the key
at ``next``, and the next request starts there. Times are in ms.

Source: KvStore, "KvStore Sync via Thrift"; facts §3, §4, §6.1; ``docs/decisions/sites.md``.

What only clients of a site ask, and what they are told (own keys, publications, peers, counters), stands first.
Source: facts §5.4, §6.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final, TypeAlias

import attrs

from statestore_client.wire.kvstore.value import Value

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
class GetLostKeys:
    """The keys that were set here, and that other sites have overridden since; if ``after`` is the number of the last
    such loss, after the next one.
    """

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


@attrs.frozen
class LostKey:
    """A key that was ``set`` at a site, and that ``originator`` has overridden with ``version`` since: the site says it
    no more, and keeps it alive no longer.
    """

    area: str
    key: str
    originator: str
    version: int


@attrs.frozen
class LostKeys:
    """Answers :class:`GetLostKeys`: key -> the site that has overridden it, and its version. ``last``: the number of
    the last loss that was looked at.
    """

    id: int
    history: int
    last: int
    keys: Mapping[str, tuple[str, int]]


PROTOCOL_VERSION: Final = 1

#: Bytes of one message, and so of one frame. A larger one is refused before it is read.
MAX_MESSAGE: Final = 1 << 20

MAX_POSITION: Final = (1 << 64) - 1

#: Entries, hashes, keys or ranges of one message: what it takes to carry them out keeps nobody waiting for long.
MAX_ITEMS: Final = 256
#: Bytes of the values in one message, if there are several.
MAX_VALUES_BYTES: Final = 128 * 1024

#: An update has come through at most this many sites, with names of this many UTF-8 bytes together: beside the greatest
#: value there is room for as much in a message. It is not sent on beyond that; a sync takes it further.
MAX_PATH: Final = 1024
MAX_PATH_BYTES: Final = 1 << 16

#: So many ranges are asked for at once: either side takes some 0.3 ms for the sums below them, 16 for each.
MAX_PREFIXES: Final = 32

Entries: TypeAlias = Mapping[str, Value]


def path_fits(path: tuple[str, ...]) -> bool:
    """Whether an update may have come through these sites."""
    return len(path) <= MAX_PATH and sum(len(name.encode()) for name in path) <= MAX_PATH_BYTES


class Capability(StrEnum):
    """What goes beyond version 1, one by one. What is not in this list is ignored."""

    #: Sums of ranges are compared before hashes of entries are sent.
    RANGES = "ranges"


class RefusalReason(IntEnum):
    """Why a hello is refused. A site tries again; what it is told is for its operator."""

    OWN_NAME = 1
    NAME_IN_USE = 2
    VERSION = 3
    TOO_MANY_CONNECTIONS = 4
    NO_COMMON_AREA = 5
    ANOTHER_KEY = 6


class FailureReason(IntEnum):
    """Why a request was not carried out."""

    UNKNOWN_REQUEST = 1
    UNKNOWN_AREA = 2
    BAD_REQUEST = 3
    TOO_MANY_HELD = 4


@attrs.frozen
class Hello:
    """One side of a connection. Each start of a site has its ``incarnation``, a random number of 64 bits."""

    version: int
    name: str
    incarnation: int
    areas: tuple[str, ...]
    capabilities: tuple[str, ...] = ()
    is_reply: bool = False


@attrs.frozen
class HelloWanted:
    """The connection has not said hello, or the other side was started again since."""


@attrs.frozen
class Leave:
    """The side that has dialled hangs up for good; a site that stops, or loses the line, says nothing."""


@attrs.frozen
class Heartbeat:
    """``floods`` is the number of the last flood that this side sent on this connection; 0 if it sent none."""

    incarnation: int
    floods: int


@attrs.frozen
class Refusal:
    """A hello is refused. ``reason`` is a :class:`RefusalReason`, or a number that this release does not know."""

    reason: int
    text: str


@attrs.frozen
class Flood:
    """An incremental update. ``path``: the sites that it came through, the last one is the sender."""

    number: int
    area: str
    path: tuple[str, ...]
    entries: Entries


@attrs.frozen
class Get:
    """The entries of these keys; those that do not exist are left out. With ``next`` in the reply: keys that
    stand there or after it were not looked at.
    """

    id: int
    area: str
    keys: tuple[str, ...]


@attrs.frozen
class GetFiltered:
    """Entries whose key begins with a match of a pattern, or that have one of the originators."""

    id: int
    area: str
    patterns: tuple[str, ...] = ()
    originators: tuple[str, ...] = ()
    match_all: bool = False
    omit_values: bool = False
    start: int = 0


@attrs.frozen
class GetHashes:
    """The same with hashes in place of values."""

    id: int
    area: str
    patterns: tuple[str, ...] = ()
    start: int = 0


@attrs.frozen
class Set:
    """Entries to merge. ``path`` is empty if a client sends them."""

    id: int
    area: str
    entries: Entries
    path: tuple[str, ...] = ()


@attrs.frozen
class CompareRanges:
    """Asks for the sums of the ranges below these. ``sum``, at level 0 only: one's own, to learn if all is equal."""

    id: int
    area: str
    level: int
    prefixes: tuple[int, ...]
    sum: int | None = None


@attrs.frozen
class Sync:
    """All that the sender has in these ranges, without values. ``ranges``: first and last position, ascending."""

    id: int
    area: str
    ranges: tuple[tuple[int, int], ...]
    hashes: Entries


@attrs.frozen
class Finalize:
    """What the other side had not, or older, in a sync that it did not begin. A :class:`SetResult` answers."""

    id: int
    area: str
    entries: Entries
    is_last: bool


@attrs.frozen
class Found:
    """Answers :class:`Get`, :class:`GetFiltered` and :class:`GetHashes`."""

    id: int
    entries: Entries
    next: int | None = None


@attrs.frozen
class SetResult:
    """Keys that were not merged, with the number of the reason."""

    id: int
    reasons: Mapping[str, int]


@attrs.frozen
class RangeSumsReply:
    """Of each range that was asked for the sums of those below it, in order; none if all is equal."""

    id: int
    is_equal: bool
    sums: tuple[int, ...]


@attrs.frozen
class SyncReply:
    """What is newer here, and the keys that are newer at the other side or missing here."""

    id: int
    entries: Entries
    to_be_updated: tuple[str, ...]
    next: int | None = None


@attrs.frozen
class Failure:
    """The request was not carried out. ``reason``: a :class:`FailureReason`, or one that this release does not know."""

    id: int
    reason: int
    text: str


Request: TypeAlias = (
    Get
    | GetFiltered
    | GetHashes
    | Set
    | ChangeOwnKey
    | Follow
    | GetPeers
    | GetLostKeys
    | GetSummary
    | GetOwnKeys
    | ChangePeer
    | CompareRanges
    | Sync
    | Finalize
)
Reply: TypeAlias = (
    Found | SetResult | RangeSumsReply | SyncReply | Failure | Followed | PeersReply | Summary | OwnKeys | LostKeys
)
Message: TypeAlias = Hello | HelloWanted | Heartbeat | Refusal | Flood | Leave | Request | Reply
