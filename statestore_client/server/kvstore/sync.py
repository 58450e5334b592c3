"""A full sync, as the site that begins it goes through it: which ranges differ, which entries, what the peer lacks.

::

    COMPARING   -> CompareRanges   <- RangeSumsReply    only if both sides know ranges; ends here if all is equal
    ASKING      -> Sync            <- SyncReply    hashes of the ranges that differ, in parts, many under way
    ANSWERED                                       all that is newer at the other side is here: SYNC_RESP_RCVD
    FINALIZING  -> Finalize        <- SetResult    what the other side lacks, in parts, many under way
    DONE

Each request is a piece of work that takes less than a millisecond, and is made when the one before has been sent: see
:meth:`SyncSession.next_request`. What changes meanwhile is sent as it is stored when its part is made; changes of what
was compared already are pended.

Replies are matched by the ids of requests, which are never used twice: a late reply of an older sync fits nothing here.

Source: facts §3.1; ``docs/decisions/sites.md``.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from hashlib import blake2b
from heapq import heappop, heappush, merge
from typing import TYPE_CHECKING, Final

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore.area_store import SYNC_BYTES, SYNC_KEYS, packed_bytes
from statestore_client.wire.kvstore.messages import (
    MAX_POSITION,
    CompareRanges,
    Finalize,
    RangeSumsReply,
    SetResult,
    Sync,
    SyncReply,
)
from statestore_client.wire.kvstore.value import Comparison, compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from statestore_client.server.kvstore.area_store import AreaStore
    from statestore_client.wire.kvstore.value import Value

# -- range sums --------------------------------------------------------------------------------------------------------
#
# Sums over the hashes of a store's entries, for the whole and for ranges of positions, kept as entries change.
#
# ======  ==============  ===========================================================================================
# level   ranges          how their sums are had
# ======  ==============  ===========================================================================================
# 0       1               kept
# 8       256             added up, from 16 of the next level: positions that begin with the same 8 bits
# 12      4,096           kept
# 16      65,536          added up, from the hashes of the entries in each range, which are kept
# ======  ==============  ===========================================================================================
#
# Two stores with equal sums have equal entries, but for one chance in 2^64. A change costs two additions. What is added
# up is asked for rarely, and little of it at once: with a million keys that takes half a millisecond. Zero is the sum
# of an empty range.
#
# Source: ``docs/decisions/sites.md``.


#: Bits of each level, the whole first. Part of the protocol.
LEVELS: Final = (0, 8, 12, 16)
LOWEST: Final = LEVELS[-1]
_BUCKETS: Final = 16
#: The level whose sums are kept.
_KEPT_LEVEL: Final = 12
#: Numbers of buckets that differ in these bits only have one integer that notes which of them are there.
_GROUP: Final = 8
_IN_GROUP: Final = (1 << _GROUP) - 1

# Odd constants, so that each multiplication is a permutation of the 64-bit numbers. Part of the protocol.
_MIX_HASH: Final = 0x9E3779B97F4A7C15
_MIX_TTL_VERSION: Final = 0xC2B2AE3D27D4EB4F
_MIX_END: Final = 0xFF51AFD7ED558CCD


def position(key: str) -> int:
    """Where a key stands, 0 to 2^64 - 1; the same at every site."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


def entry_hash(at: int, entry: Value) -> int:
    """A number of 64 bits that differs if the position, version, originator, value or TTL version does.

    Raises ValueError for an entry that was never stored: the store gives each one its hash.
    """
    if entry.hash is None:
        raise ValueError("an entry without a hash is not in any store")
    mixed = at ^ (entry.hash * _MIX_HASH & MAX_POSITION) ^ (entry.ttl_version * _MIX_TTL_VERSION & MAX_POSITION)
    mixed = (mixed ^ mixed >> 33) * _MIX_END & MAX_POSITION
    return mixed ^ mixed >> 29


def level_below(level: int) -> int:
    """The next finer level. Raises ValueError for the finest and for what is not a level."""
    if level not in LEVELS[:-1]:
        raise ValueError(f"there are no ranges below level {level}")
    return LEVELS[LEVELS.index(level) + 1]


def positions_of(level: int, prefix: int) -> tuple[int, int]:
    """First and last position of a range."""
    shift = 64 - level
    return prefix << shift, (prefix + 1 << shift) - 1


class RangeSums:
    """The sums of one area's store."""

    __slots__ = ("_buckets", "_count", "_groups", "_sums", "total")

    def __init__(self) -> None:
        #: Of all entries.
        self.total: int = 0
        self._sums = [0] * (1 << _KEPT_LEVEL)
        self._buckets: dict[int, dict[str, int]] = {}
        #: A bit for each bucket that is there: the next one is found without a look at each number in between.
        self._groups = [0] * (1 << _BUCKETS - _GROUP)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def change(self, key: str, entry: Value | None) -> None:
        """The store has this entry for the key from now on; None: it has none."""
        at = position(key)
        number = at >> 64 - _BUCKETS
        bucket = self._buckets.get(number)
        old = bucket.get(key) if bucket else None
        if entry is None:
            if bucket is None or old is None:
                return
            new = 0
            del bucket[key]
            self._count -= 1
            if not bucket:
                del self._buckets[number]
                self._groups[number >> _GROUP] ^= 1 << (number & _IN_GROUP)
        else:
            new = entry_hash(at, entry)
            if bucket is None:
                bucket = self._buckets[number] = {}
                self._groups[number >> _GROUP] ^= 1 << (number & _IN_GROUP)
            bucket[key] = new
            self._count += old is None
        difference = new - (old or 0)
        self.total = self.total + difference & MAX_POSITION
        kept = at >> 64 - _KEPT_LEVEL
        self._sums[kept] = self._sums[kept] + difference & MAX_POSITION

    def sums_below(self, level: int, prefixes: Iterable[int]) -> tuple[int, ...]:
        """For each range the sums of the ranges of the next level in it. Raises ValueError for what does not exist."""
        below = level_below(level)
        width = below - level
        found: list[int] = []
        for prefix in prefixes:
            if prefix >> level:
                raise ValueError(f"there is no range {prefix} at level {level}")
            found.extend(self._sums_of(below, prefix << width, prefix + 1 << width))
        return tuple(found)

    def _sums_of(self, level: int, first: int, end: int) -> Iterable[int]:
        """Of the ranges of a level from ``first`` on."""
        if level == _KEPT_LEVEL:
            return self._sums[first:end]
        if level < _KEPT_LEVEL:
            width = 1 << _KEPT_LEVEL - level
            parts = self._sums[first * width : end * width]
            return [sum(parts[at : at + width]) & MAX_POSITION for at in range(0, len(parts), width)]
        buckets = map(self._buckets.get, range(first, end))
        return [sum(bucket.values()) & MAX_POSITION if bucket else 0 for bucket in buckets]

    def keys_in(self, first: int, last: int) -> Iterator[tuple[int, str]]:
        """Position and key of all that stands from ``first`` to ``last``, both included, in the order of positions.

        Take what is needed of it before anything changes.
        """
        shift = 64 - _BUCKETS
        for number in self._buckets_in(first >> shift, last >> shift):
            placed = sorted((position(key), key) for key in self._buckets[number])
            yield from (pair for pair in placed if first <= pair[0] <= last)

    def _buckets_in(self, first: int, last: int) -> Iterator[int]:
        """Those that are there, in the order of their numbers."""
        skipped = first & _IN_GROUP
        for group in range(first >> _GROUP, (last >> _GROUP) + 1):
            bits = self._groups[group] >> skipped << skipped
            skipped = 0
            while bits:
                lowest = bits & -bits
                bits ^= lowest
                number = (group << _GROUP) + lowest.bit_length() - 1
                if number > last:
                    return
                yield number


# -- pending keys ------------------------------------------------------------------------------------------------------
#
# Keys that wait to be sent, each of them once.


#: A table that grows is copied, and a site that lacks everything has all keys pended: a single table of 50,000 keys
#: would take milliseconds for that. Positions are spread evenly, so each of these has a small share of the keys.
_TABLE_BITS: Final = 8


class PendingKeys:
    """Empty at first. Keys that come later do not keep others waiting for ever."""

    __slots__ = ("_count", "_current", "_tables", "_taken")

    def __init__(self) -> None:
        self._tables: list[dict[str, None]] = [{} for _ in range(1 << _TABLE_BITS)]
        #: The table that keys are taken from; another one has its place, and the place after it is next.
        self._taken: dict[str, None] = {}
        self._current = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, keys: Iterable[str]) -> None:
        """Those that wait already do not wait twice."""
        for key in keys:
            table = self._tables[position(key) >> 64 - _TABLE_BITS]
            if key not in table and key not in self._taken:
                table[key] = None
                self._count += 1

    def take(self) -> str:
        """One that waits no more. Raises IndexError if there is none."""
        if not self._count:
            raise IndexError("no key waits")
        while not self._taken:
            self._taken, self._tables[self._current] = self._tables[self._current], self._taken
            self._current = (self._current + 1) % len(self._tables)
        self._count -= 1
        return self._taken.popitem()[0]


# -- sync answers ------------------------------------------------------------------------------------------------------
#
# What a site answers in a sync that the other side began. Nothing is remembered between two requests.
#
# Source: facts §3.1; ``docs/decisions/sites.md``.


def answer_comparison(sums: RangeSums, request: CompareRanges) -> RangeSumsReply:
    """Raises ValueError if the request names ranges that do not exist."""
    if request.level == 0 and request.sum == sums.total:
        return RangeSumsReply(request.id, True, ())
    return RangeSumsReply(request.id, False, sums.sums_below(request.level, request.prefixes))


def _keys(sums: RangeSums, request: Sync) -> Iterator[tuple[int, str]]:
    """Of both sides, in the order of positions, each once."""
    theirs = sorted((position(key), key) for key in request.hashes)
    last: tuple[int, str] | None = None
    at = 0
    for first, end in request.ranges:
        while at < len(theirs) and theirs[at][0] < first:
            at += 1
        begin = at
        while at < len(theirs) and theirs[at][0] <= end:
            at += 1
        for pair in merge(sums.keys_in(first, end), theirs[begin:at]):
            if pair != last:
                last = pair
                yield pair


def _differ(mine: Value | None, theirs: Value | None) -> tuple[bool, bool]:
    """Whether mine is sent, and whether theirs is wanted: the table of facts §3.1."""
    if mine is None or theirs is None:
        return mine is not None, theirs is not None
    outcome = compare(mine, theirs)
    unknown = outcome is Comparison.UNKNOWN
    return unknown or outcome is Comparison.FIRST, unknown or outcome is Comparison.SECOND


def answer_sync(store: AreaStore, sums: RangeSums, request: Sync, now: float) -> SyncReply:
    """As much as fits into a part, and where the next one begins."""
    better: list[str] = []
    wanted: list[str] = []
    size = 0
    following: int | None = None
    for number, (at, key) in enumerate(_keys(sums, request)):
        if number >= SYNC_KEYS:
            following = at
            break
        mine, theirs = store.get(key), request.hashes.get(key)
        sends, wants = _differ(mine, theirs)
        cost = (packed_bytes(key, mine) if mine is not None and sends else 0) + (len(key) + 5 if wants else 0)
        if size and size + cost > SYNC_BYTES:
            following = at
            break
        size += cost
        if mine is not None and sends:
            better.append(key)
        if wants:
            wanted.append(key)
    return SyncReply(request.id, store.outgoing(better, now), tuple(wanted), following)


# -- sync session ------------------------------------------------------------------------------------------------------


#: Requests under way: enough for a long line not to be idle between two parts. Their values have a bound together, as
#: heartbeats wait behind them. A single value may have nearly a megabyte; four of those are under way all the same.
_WINDOW: Final = 128
_WINDOW_BYTES: Final = 512 * 1024
_LEAST_WINDOW: Final = 4
#: Ranges that are asked about at once: at either side a quarter of a millisecond. A message may have more of them.
_PREFIXES: Final = 8
#: So few entries in a range are sent at once: finer sums would take as many bytes.
_FEW: Final = 4
#: What the hash of an entry takes in a message beside its names, about.
_HASH_BYTES: Final = 24


class Phase(Enum):
    """How far it is."""

    COMPARING = "comparing ranges"
    ASKING = "asking for what is newer"
    FINALIZING = "sending what the other side lacks"
    DONE = "done"


class SyncSession:
    """One sync of one area with one peer. Ask for requests with :meth:`next_request` until it has none."""

    def __init__(
        self,
        area: str,
        store: AreaStore,
        sums: RangeSums,
        next_id: Callable[[], int],
        timeout_s: float,
        *,
        with_ranges: bool,
    ) -> None:
        self._area = area
        self._store = store
        self._sums = sums
        self._next_id = next_id
        self._timeout_s = timeout_s
        self.phase = Phase.COMPARING if with_ranges else Phase.ASKING
        self._waiting: dict[int, CompareRanges | Sync | Finalize] = {}
        self._window = _WINDOW
        #: When the other side has been silent for too long; None while nothing is asked.
        self.deadline: float | None = None
        #: Level and numbers of ranges that are to be compared.
        self._below: deque[tuple[int, tuple[int, ...]]] = deque()
        #: Those whose hashes are to be sent, a heap: they are found in any order, and asked for in that of positions.
        self._ranges: list[tuple[int, int]] = []
        #: Those that the other side has nothing in.
        self._not_there: deque[tuple[int, int]] = deque()
        self._lacking = PendingKeys()
        self._is_last_sent = False
        if with_ranges:
            self._below.append((0, (0,)))
        else:
            heappush(self._ranges, (0, MAX_POSITION))

    @property
    def has_request(self) -> bool:
        """Whether something can be asked or sent now."""
        if len(self._waiting) >= self._window:
            return False
        match self.phase:
            case Phase.COMPARING:
                return bool(self._below)
            case Phase.ASKING:
                return bool(self._ranges)
            case Phase.FINALIZING:
                return self._lacks_something or not self._is_last_sent
        return False

    @property
    def _lacks_something(self) -> bool:
        return bool(self._lacking or self._not_there)

    def next_request(self, now: float) -> CompareRanges | Sync | Finalize | None:
        """What is to be sent now; None if replies are waited for, or all is done."""
        if not self.has_request:
            return None
        request: CompareRanges | Sync | Finalize
        if self.phase is Phase.COMPARING:
            level, prefixes = self._below.popleft()
            total = self._sums.total if level == 0 else None
            request = CompareRanges(self._next_id(), self._area, level, prefixes, total)
        elif self.phase is Phase.ASKING:
            request = self._next_part()
        else:
            request = self._next_lacking(now)
        if not self._waiting:
            self.deadline = now + self._timeout_s
        self._waiting[request.id] = request
        return request

    def waits_for(self, reply_id: int) -> bool:
        """Whether a reply belongs to this sync."""
        return reply_id in self._waiting

    def pend(self, keys: Iterable[str]) -> None:
        """These have changed while the sync runs: the other side gets what is stored by then when it is finalized."""
        self._lacking.add(keys)

    def receive(self, reply: RangeSumsReply | SyncReply | SetResult, now: float) -> None:
        """The entries of a SyncReply have been merged before. Raises RemoteProtocolError for a reply that does not
        answer the request with its id.
        """
        request = self._waiting.pop(reply.id)
        self.deadline = now + self._timeout_s if self._waiting else None
        if isinstance(request, CompareRanges) and isinstance(reply, RangeSumsReply):
            self._compared(request, reply)
        elif isinstance(request, Sync) and isinstance(reply, SyncReply):
            self._answered(request, reply)
        elif not (isinstance(request, Finalize) and isinstance(reply, SetResult)):
            raise RemoteProtocolError(f"a {type(reply).__name__} answers a {type(request).__name__}")
        if not self._waiting:
            self._advance()

    def _advance(self) -> None:
        """What was asked is answered."""
        if self.phase is Phase.COMPARING and not self._below:
            self.phase = Phase.ASKING
        if self.phase is Phase.ASKING and not self._ranges:
            self.phase = Phase.FINALIZING
        if self.phase is Phase.FINALIZING and self._is_last_sent and not self._lacks_something:
            self.phase = Phase.DONE

    # -- ranges --------------------------------------------------------------------------------------------------------

    def _compared(self, request: CompareRanges, reply: RangeSumsReply) -> None:
        if reply.is_equal:
            # What has changed since the question was asked waits to be sent.
            self.phase = Phase.FINALIZING if self._lacking else Phase.DONE
            return
        level = level_below(request.level)
        width = level - request.level
        if len(reply.sums) != len(request.prefixes) << width:
            raise RemoteProtocolError(f"{len(reply.sums)} sums for {len(request.prefixes)} ranges of level {level}")
        has_few = len(self._sums) >> level <= _FEW
        below: list[int] = []
        differing: list[tuple[int, int]] = []
        children = (child for prefix in request.prefixes for child in range(prefix << width, prefix + 1 << width))
        ours = self._sums.sums_below(request.level, request.prefixes)
        for child, mine, theirs in zip(children, ours, reply.sums, strict=True):
            if mine == theirs:
                continue
            if not theirs:
                _add(self._not_there, *positions_of(level, child))
            elif not mine or has_few or level == LOWEST:
                _add(differing, *positions_of(level, child))
            else:
                below.append(child)
        for each in differing:
            heappush(self._ranges, each)
        self._below.extend((level, tuple(below[at : at + _PREFIXES])) for at in range(0, len(below), _PREFIXES))

    # -- hashes --------------------------------------------------------------------------------------------------------

    def _answered(self, request: Sync, reply: SyncReply) -> None:
        self.pend(reply.to_be_updated)
        self._fit_window(sum(len(entry.value or b"") for entry in reply.entries.values()))
        if reply.next is None:
            return
        if reply.next <= request.ranges[0][0]:
            raise RemoteProtocolError("a part of a sync that does not go on")
        for first, last in request.ranges:
            if last >= reply.next:
                heappush(self._ranges, (max(first, reply.next), last))

    def _fit_window(self, size: int) -> None:
        self._window = max(_LEAST_WINDOW, min(_WINDOW, _WINDOW_BYTES // max(1, size)))

    def _next_part(self) -> Sync:
        """Ranges with the hashes of what is in them, until it is enough for a part."""
        ranges: list[tuple[int, int]] = []
        hashes: dict[str, Value] = {}
        size = 0
        while self._ranges and size < SYNC_BYTES and len(hashes) < SYNC_KEYS and len(ranges) < SYNC_KEYS:
            first, last = heappop(self._ranges)
            for at, key in self._sums.keys_in(first, last):
                if (size >= SYNC_BYTES or len(hashes) >= SYNC_KEYS) and at > first:
                    heappush(self._ranges, (at, last))
                    last = at - 1
                    break
                entry = self._store.get(key)
                if entry is not None:
                    hashes[key] = entry
                    size += _HASH_BYTES + len(key) + len(entry.originator)
            _add(ranges, first, last)
        return Sync(self._next_id(), self._area, tuple(ranges), hashes)

    # -- what the other side lacks -------------------------------------------------------------------------------------

    def _next_lacking(self, now: float) -> Finalize:
        """The last one may be empty."""
        self._pend_what_is_not_there()
        part: list[str] = []
        size = 0
        for _ in range(min(SYNC_KEYS, len(self._lacking))):
            key = self._lacking.take()
            entry = self._store.get(key)
            if entry is None:
                continue
            cost = packed_bytes(key, entry)
            if part and size + cost > SYNC_BYTES:
                self._lacking.add((key,))
                break
            part.append(key)
            size += cost
        self._fit_window(size)
        self._is_last_sent = not self._lacks_something
        return Finalize(self._next_id(), self._area, self._store.outgoing(part, now), self._is_last_sent)

    def _pend_what_is_not_there(self) -> None:
        """As many keys as a part may have."""
        while self._not_there and len(self._lacking) < SYNC_KEYS:
            first, last = self._not_there.popleft()
            for at, key in self._sums.keys_in(first, last):
                if len(self._lacking) >= SYNC_KEYS:
                    self._not_there.appendleft((at, last))
                    break
                self._lacking.add((key,))


def _add(ranges: list[tuple[int, int]] | deque[tuple[int, int]], first: int, last: int) -> None:
    """At the end; ranges without a gap between them are one."""
    if ranges and ranges[-1][1] + 1 == first:
        first = ranges.pop()[0]
    ranges.append((first, last))
