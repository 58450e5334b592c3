"""The entries of one area: merge, get, expire, and the TTL that is left when they leave.

Each entry of a request is decided about for itself; a bad one changes nothing for the others. Large requests are cut
into :func:`~statestore_client.server.kvstore.area_store.slices` first, with other things done in between.
What was taken is in :class:`MergeResult`: ``area`` tells subscribers, and ``replica`` floods it to other sites.

Invariant: what is stored under a key is the greatest entry, by version, originator and value, of all that were taken
since the key was there; its TTL is that of the highest TTL version of this entry.

Source: KvStore, "Implementation Details"; facts §2, §5.1, §5.2.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

from statestore_client.server.timer_heap import TimerHeap
from statestore_client.wire.kvstore.messages import MAX_VALUES_BYTES
from statestore_client.wire.kvstore.value import (
    INFINITE_TTL_MS,
    MAX_KEY_BYTES,
    MAX_ORIGINATOR_BYTES,
    MAX_TTL_MS,
    MAX_VALUE_BYTES,
    MAX_VERSION,
    NoMergeReason,
    Value,
    hash_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from statestore_client.server.kvstore.patterns import KeyFilter

# -- merge -------------------------------------------------------------------------------------------------------------
#
# What becomes of an entry that arrives: the two decision tables. (facts §2.2)
#
# The first line that holds decides; *current* is what is stored under the key.
#
# A. The entry carries a value
#
# ==  =====================================  ===================
# A1  version <= 0                           OLD_VERSION
# A2  version < current                      OLD_VERSION
# A3  version > current, or none is stored   REPLACE
# A4  originator > current                   REPLACE
# A5  originator < current                   NO_NEED_TO_UPDATE
# A6  value > current                        REPLACE, even with a lower TTL version
# A7  value < current                        NO_NEED_TO_UPDATE, even with a higher TTL version
# A8  TTL version > current                  UPDATE_TTL
# A9  otherwise                              NO_NEED_TO_UPDATE
# ==  =====================================  ===================
#
# B. It carries none, and refreshes the TTL
#
# ==  =====================================  ==================================================
# B1  none is stored                         INCONSISTENCY_DETECTED from its originator itself,
# B2  version differs                        else NO_NEED_TO_UPDATE
# B3  originator differs
# B4  TTL version > current                  UPDATE_TTL
# B5  otherwise                              NO_NEED_TO_UPDATE
# ==  =====================================  ==================================================
#
# REPLACE takes the whole entry. UPDATE_TTL takes TTL and TTL version only; the value and its hash stay.


class Update(Enum):
    """What of an entry is taken."""

    REPLACE = "replace"
    UPDATE_TTL = "update TTL"


Decision: TypeAlias = Update | NoMergeReason

# Looking a member up in its class takes longer than a comparison of the tables.
_REPLACE: Final = Update.REPLACE
_UPDATE_TTL: Final = Update.UPDATE_TTL
_OLD_VERSION: Final = NoMergeReason.OLD_VERSION
_NO_NEED: Final = NoMergeReason.NO_NEED_TO_UPDATE
_INCONSISTENCY: Final = NoMergeReason.INCONSISTENCY_DETECTED


def decide(entry: Value, current: Value | None, sender: str | None) -> Decision:
    """``sender``: the site that ``entry`` came from directly; None if a client of this site sent it."""
    value = entry.value
    if value is None:
        return _without_value(entry, current, sender)
    version = entry.version
    if version <= 0:
        return _OLD_VERSION
    if current is None or version > current.version:
        return _REPLACE
    if version < current.version:
        return _OLD_VERSION
    if entry.originator != current.originator:
        return _REPLACE if entry.originator > current.originator else _NO_NEED
    stored = current.value
    if value != stored:
        # What is stored has a value.
        return _REPLACE if stored is None or value > stored else _NO_NEED
    return _UPDATE_TTL if entry.ttl_version > current.ttl_version else _NO_NEED


def _without_value(entry: Value, current: Value | None, sender: str | None) -> Decision:
    if current is None or entry.version != current.version or entry.originator != current.originator:
        return _INCONSISTENCY if sender == entry.originator else _NO_NEED
    return _UPDATE_TTL if entry.ttl_version > current.ttl_version else _NO_NEED


# -- admission ---------------------------------------------------------------------------------------------------------
#
# What a store does not take, whatever it has already: sizes, numbers and room.
#
# A refused entry has a reason of its own, and says nothing about the other ones of its request.


#: Originators whose names are kept to be shared. There are as many as sites.
_NAMES: Final = 4096


@attrs.frozen
class AreaLimits:
    """What one area may hold. ``max_bytes``: of keys, originators and values; besides, a key takes some 600 bytes."""

    max_keys: int = 1_000_000
    max_bytes: int = 1 << 30


DEFAULT_LIMITS: Final = AreaLimits()


class OriginatorNames:
    """The same text for the same originator, checked once: entries share it."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def shared(self, name: str) -> str | None:
        """None for what cannot be the name of a site."""
        found = self._names.get(name)
        if found is None and _is_text(name, MAX_ORIGINATOR_BYTES):
            if len(self._names) >= _NAMES:
                self._names.clear()
            found = self._names[name] = name
        return found


def refusal(key: str, entry: Value) -> NoMergeReason | None:
    """Why an entry is refused before any table decides; None if it is not. The originator is checked elsewhere."""
    ttl_ms = entry.ttl_ms
    if not 0 < ttl_ms <= MAX_TTL_MS and ttl_ms != INFINITE_TTL_MS:
        return NoMergeReason.INVALID_TTL
    # A version of 0 or less is an old one: the tables say so.
    if entry.version > MAX_VERSION or not 0 <= entry.ttl_version <= MAX_VERSION:
        return NoMergeReason.INVALID_VERSION
    if not (key and len(key) <= MAX_KEY_BYTES if key.isascii() else _is_text(key, MAX_KEY_BYTES)):
        return NoMergeReason.INVALID_KEY
    if entry.value is not None and len(entry.value) > MAX_VALUE_BYTES:
        return NoMergeReason.VALUE_TOO_LARGE
    return None


def bytes_of(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def entry_bytes(key: str, entry: Value) -> int:
    """Bytes of key, originator and value. (facts §1.1, KvStoreAreaSummary)"""
    return bytes_of(key) + bytes_of(entry.originator) + len(entry.value or b"")


def _is_text(text: str, most: int) -> bool:
    if not text or len(text) > most:
        return False
    try:
        return bytes_of(text) <= most
    except UnicodeEncodeError:  # half a surrogate pair, which no message can carry
        return False


# -- key deadlines -----------------------------------------------------------------------------------------------------
#
# One moment for each of some keys: when it expires, when it is refreshed, when it is advertised.
#
# A key that is refreshed has its moment put off again and again. Its item in the heap stays where it is; only when that
# one comes up, the key is queued anew. So putting off costs next to nothing, and the heap has one item for each key.


#: Items that were put off and come up in search for the next moment: some dozen microseconds.
_LOOKS: Final = 16


class KeyDeadlines:
    """Moments are monotonic seconds. A key has one at most.

    Invariant: each key has one item in the heap that counts. It is for the key's moment, or, if the key was put off,
    for the earlier one in ``_queued``.
    """

    __slots__ = ("_at", "_heap", "_queued")

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._heap: TimerHeap[tuple[float, str]] = TimerHeap(self._counts)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def at(self, key: str) -> float | None:
        """The moment of a key."""
        return self._at.get(key)

    def put(self, key: str, at: float) -> None:
        """In place of the moment that the key has."""
        before = self._at.get(key)
        self._at[key] = at
        if before is not None:
            queued = self._queued.get(key)
            if queued is None and before < at:
                self._queued[key] = before
            if at >= (before if queued is None else queued):
                return
            self._queued.pop(key, None)
            self._heap.forget_one()
        self._heap.add((at, key))

    def drop(self, key: str) -> None:
        """The key has none any more."""
        if self._at.pop(key, None) is not None:
            self._queued.pop(key, None)
            self._heap.forget_one()

    def pop_due(self, now: float, limit: int) -> list[str]:
        """Keys whose moment has come, in order; they have none any more. ``limit`` bounds the work."""
        found = []
        for _ in range(limit):
            due = self._heap.pop_due(now)
            if due is None:
                break
            (_, key), holds = due
            if holds and not self._was_put_off(key):
                del self._at[key]
                found.append(key)
        return found

    def next(self) -> float | None:
        """The earliest moment. After many keys that were put off, an earlier one. None if there is none."""
        if not self._at:
            return None
        for _ in range(_LOOKS):
            first = self._heap.first()
            if first is None:
                return None
            at, key = first
            if key not in self._queued:
                return at
            self._heap.pop_due(at)
            self._was_put_off(key)
        return self._heap.next_deadline()

    def _was_put_off(self, key: str) -> bool:
        """The item of a key has come up: queue the key anew if its moment is later. Returns whether it is."""
        if self._queued.pop(key, None) is None:
            return False
        self._heap.add((self._at[key], key))
        return True

    def _counts(self, item: tuple[float, str]) -> bool:
        queued, key = item
        return self._queued.get(key, self._at.get(key)) == queued


# -- store -------------------------------------------------------------------------------------------------------------


#: What is sent to a peer, or dumped, has at least so much left: with less it would hardly arrive.
LEAST_TTL_MS: Final = 500
#: Taken off the TTL each time that an entry leaves a store, so that no entry lives for ever by going in circles.
_DECREMENT_MS: Final = 1
#: The same for who asked for just this: what is left after the millisecond is a TTL still.
_READ_TTL_MS: Final = _DECREMENT_MS + 1
#: Keys that expire at once, at most: below a millisecond.
EXPIRY_SLICE: Final = 128

_MS: Final = 1000


@attrs.frozen
class MergeResult:
    """What became of the entries of a request."""

    #: Taken, in order; without a value where they came without.
    accepted: dict[str, Value]
    #: Why the others were not.
    reasons: dict[str, NoMergeReason]

    @property
    def is_inconsistent(self) -> bool:
        """The sender refreshes what this store does not have: time for a full sync with it."""
        return NoMergeReason.INCONSISTENCY_DETECTED in self.reasons.values()


@attrs.define
class StoreCounters:
    """Since the start; each counts entries."""

    received: int = 0
    replaced: int = 0
    refreshed: int = 0
    refused: int = 0
    #: Of the same version as what is stored, from another originator or with another value.
    conflicts: int = 0
    expired: int = 0
    #: Of the refused ones, those for which the area had no room.
    without_room: int = 0


@attrs.frozen
class AreaSummary:
    """What an area holds."""

    area: str
    keys: int
    expiring_keys: int
    #: Of keys, originators and values.
    bytes: int


class KeyGuard(Protocol):
    """What looks after the keys that this site keeps alive."""

    def guards(self, key: str) -> bool:
        """Whether it is one of them. It is never removed here."""

    def minds(self, key: str) -> bool:
        """Whether :meth:`changed` is to be called for it."""

    def changed(self, key: str, entry: Value, now: float) -> None:
        """Something was stored under such a key; ``entry`` is all of it."""


class _NoGuard:
    def guards(self, key: str) -> bool:
        del key
        return False

    minds = guards

    def changed(self, key: str, entry: Value, now: float) -> None:
        """Never called."""


class AreaStore:
    """``on_change(key, entry)`` hears of each change, None if the key is gone. Moments are monotonic seconds."""

    def __init__(
        self,
        area: str,
        limits: AreaLimits = DEFAULT_LIMITS,
        *,
        on_change: Callable[[str, Value | None], None] | None = None,
    ) -> None:
        self.area = area
        self.limits = limits
        self.counters: StoreCounters = StoreCounters()
        self.guard: KeyGuard = _NoGuard()
        self.on_change = on_change
        self._entries: dict[str, Value] = {}
        #: When the TTL of what is stored is over. The TTL in a stored entry is never counted down.
        self._ends = KeyDeadlines()
        self._names = OriginatorNames()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Value | None:
        """What is stored, with the TTL that it came with."""
        return self._entries.get(key)

    def __iter__(self) -> Iterator[str]:
        """All keys. Do not change the store while iterating."""
        return iter(self._entries)

    def summary(self) -> AreaSummary:
        """How much there is."""
        return AreaSummary(self.area, len(self._entries), len(self._ends), self._bytes)

    def outgoing(self, keys: Iterable[str], now: float) -> dict[str, Value]:
        """The entries of these keys for a peer or a dump: :meth:`leaving`."""
        entries = self._entries
        return self.leaving({key: entries[key] for key in keys if key in entries}, now)

    def read(self, keys: Iterable[str], now: float) -> dict[str, Value]:
        """The entries of these keys for who asked for just these: also those that have less than LEAST_TTL_MS left."""
        entries = self._entries
        return self.leaving({key: entries[key] for key in keys if key in entries}, now, least_ms=_READ_TTL_MS)

    def leaving(
        self, entries: Mapping[str, Value], now: float, *, least_ms: int | None = LEAST_TTL_MS
    ) -> dict[str, Value]:
        """These with the TTL that is left of them, less a millisecond; without those that have less than ``least_ms``.
        None: all of them, as what has happened is told however short it lasts; the TTL is then 1 ms at least.

        What is not in the store any more in this version and TTL version goes as it is. (facts §5.2)
        """
        found = {}
        for key, entry in entries.items():
            stored = self._entries.get(key)
            if entry.ttl_ms == INFINITE_TTL_MS or stored is None or not _is_same(stored, entry):
                found[key] = entry
                continue
            left_ms = self._left_ms(key, now)
            if least_ms is None or left_ms >= least_ms:
                ttl_ms = max(1, left_ms - _DECREMENT_MS)
                found[key] = Value(entry.version, entry.originator, entry.value, ttl_ms, entry.ttl_version, entry.hash)
        return found

    def has_left(self, key: str, ttl_ms: int, now: float) -> bool:
        """Whether a stored key lives longer than that."""
        entry = self._entries.get(key)
        return entry is not None and (entry.ttl_ms == INFINITE_TTL_MS or self._left_ms(key, now) > ttl_ms)

    def _left_ms(self, key: str, now: float) -> int:
        """Of a finite TTL, to the nearest millisecond."""
        end = self._ends.at(key)
        return 0 if end is None else round((end - now) * _MS)  # None: a guarded key whose time is over

    # -- changing ------------------------------------------------------------------------------------------------------

    def refusal(self, key: str, entry: Value) -> NoMergeReason | None:
        """Why an entry would be refused whatever the tables say; None if it would not."""
        if self._names.shared(entry.originator) is None:
            return NoMergeReason.INVALID_ORIGINATOR
        refused = refusal(key, entry)
        if refused is not None or entry.value is None:
            return refused
        current = self._entries.get(key)
        more = entry_bytes(key, entry) - (0 if current is None else entry_bytes(key, current))
        return None if self._has_room(more, is_new=current is None) else NoMergeReason.NO_ROOM

    def _has_room(self, more: int, *, is_new: bool) -> bool:
        if is_new and len(self._entries) >= self.limits.max_keys:
            return False
        return self._bytes + more <= self.limits.max_bytes

    def merge(self, entries: Mapping[str, Value], sender: str | None, now: float) -> MergeResult:
        """Take what is better than what is stored. ``sender``: the site that sent it; None for a client."""
        accepted: dict[str, Value] = {}
        reasons: dict[str, NoMergeReason] = {}
        stored, minds = self._entries, self.guard.minds
        for key, entry in entries.items():
            taken = self._merge_one(key, entry, sender, now)
            if isinstance(taken, NoMergeReason):
                reasons[key] = taken
                continue
            accepted[key] = taken
            if minds(key):
                self.guard.changed(key, stored[key], now)
        self.counters.received += len(entries)
        self.counters.refused += len(reasons)
        return MergeResult(accepted, reasons)

    def _merge_one(self, key: str, entry: Value, sender: str | None, now: float) -> Value | NoMergeReason:
        """What was taken, or why it was not."""
        originator = self._names.shared(entry.originator)
        if originator is None:
            return NoMergeReason.INVALID_ORIGINATOR
        refused = refusal(key, entry)
        if refused is not None:
            return refused
        current = self._entries.get(key)
        decision = decide(entry, current, sender)
        if decision is _REPLACE:
            return self._replace(key, entry, originator, current, now)
        if isinstance(decision, NoMergeReason):
            return decision
        self._update_ttl(key, entry, now)
        return entry

    def _replace(
        self, key: str, entry: Value, originator: str, current: Value | None, now: float
    ) -> Value | NoMergeReason:
        counters, version, value, ttl_ms, hash_ = self.counters, entry.version, entry.value, entry.ttl_ms, entry.hash
        more = entry_bytes(key, entry)
        if current is not None:
            more -= entry_bytes(key, current)
            counters.conflicts += version == current.version
        if not self._has_room(more, is_new=current is None):
            counters.without_room += 1
            return NoMergeReason.NO_ROOM
        if hash_ is None and value is not None:
            hash_ = hash_of(version, originator, value)
        new = Value(version, originator, value, ttl_ms, entry.ttl_version, hash_)
        self._entries[key] = new
        self._bytes += more
        if ttl_ms == INFINITE_TTL_MS:
            self._ends.drop(key)
        else:
            self._ends.put(key, now + ttl_ms / _MS)
        counters.replaced += 1
        if self.on_change is not None:
            self.on_change(key, new)
        return new

    def _update_ttl(self, key: str, entry: Value, now: float) -> None:
        current = self._entries[key]
        new = Value(current.version, current.originator, current.value, entry.ttl_ms, entry.ttl_version, current.hash)
        self._entries[key] = new
        if entry.ttl_ms == INFINITE_TTL_MS:
            self._ends.drop(key)
        else:
            self._ends.put(key, now + entry.ttl_ms / _MS)
        self.counters.refreshed += 1
        if self.on_change is not None:
            self.on_change(key, new)

    # -- expiring ------------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> list[str]:
        """Remove keys whose time is over, EXPIRY_SLICE at most: call it again while :meth:`next_deadline` is not later.

        A guarded key stays: its guard refreshes it.
        """
        ended = [key for key in self._ends.pop_due(now, EXPIRY_SLICE) if not self.guard.guards(key)]
        for key in ended:
            self._bytes -= entry_bytes(key, self._entries.pop(key))
            if self.on_change is not None:
                self.on_change(key, None)
        self.counters.expired += len(ended)
        return ended

    def released(self, key: str, now: float) -> None:
        """A key is guarded no longer. If its time was over meanwhile, it expires next."""
        entry = self._entries.get(key)
        if entry is not None and entry.ttl_ms != INFINITE_TTL_MS and key not in self._ends:
            self._ends.put(key, now)

    def next_deadline(self) -> float | None:
        """When to call :meth:`expire`; None if nothing ever expires."""
        return self._ends.next()


def _is_same(one: Value, other: Value) -> bool:
    """The same entry with the same TTL version, the values aside."""
    return one.version == other.version and one.ttl_version == other.ttl_version and one.originator == other.originator


# -- slices ------------------------------------------------------------------------------------------------------------
#
# Large work in pieces, so that something else can be done in between: entries to merge or to send, and dumps.


#: What is sent, or merged, at once has at most this many bytes. A larger entry goes alone. Far below MAX_MESSAGE.
PART_BYTES: Final = MAX_VALUES_BYTES
#: A part of a full sync: keys, and bytes. Either side takes some half a millisecond for it. Many parts are under way at
#: once, and must not hold up heartbeats on a slow line for long.
SYNC_KEYS: Final = 32
SYNC_BYTES: Final = 4 * 1024
#: Bytes of a packed entry besides its key, originator and value, at most.
_FRAME: Final = 64
#: Entries that are merged at once: half a millisecond.
_SLICE: Final = 128
#: Keys that a dump looks at before it takes a break, and entries in a page.
LOOKED_AT: Final = 256


def packed_bytes(key: str, entry: Value) -> int:
    """What an entry takes in a message, at most."""
    return entry_bytes(key, entry) + _FRAME


def slices(entries: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Pieces to merge one at a time. As each entry is decided about for itself, the results together are the same."""
    piece: dict[str, Value] = {}
    size = 0
    for key, entry in entries.items():
        more = packed_bytes(key, entry)
        if piece and (len(piece) >= _SLICE or size + more > PART_BYTES):
            yield piece
            piece, size = {}, 0
        piece[key] = entry
        size += more
    if piece:
        yield piece


@attrs.frozen
class Page:
    """A piece of a dump. ``next_key``: what to go on with; None at the end."""

    entries: dict[str, Value]
    next_key: str | None


def page(
    store: AreaStore,
    keys: Iterable[str],
    key_filter: KeyFilter,
    now: float,
    *,
    omit_values: bool = False,
) -> Page:
    """The entries that pass, from the beginning of ``keys``, as far as one message and half a millisecond go.

    Keys that are not in the store any more are left out. ``omit_values`` gives hashes in place of values. Entries have
    the TTL that is left of them; those with hardly any are left out.
    """
    found: dict[str, Value] = {}
    size = 0
    for number, key in enumerate(keys):
        if number >= LOOKED_AT:
            return Page(store.leaving(found, now), key)
        entry = store.get(key)
        if entry is None or not key_filter.matches(key, entry):
            continue
        if omit_values:
            entry = entry.without_value()
        more = packed_bytes(key, entry)
        if found and size + more > PART_BYTES:
            return Page(store.leaving(found, now), key)
        found[key] = entry
        size += more
    return Page(store.leaving(found, now), None)
