"""The entries of one area: merge, get, expire, and the TTL that is left when they leave.

Each entry of a request is decided about for itself; a bad one changes nothing for the others. Large requests are cut
into :func:`~statestore_client.server.kvstore.slices.slices` first, with other things done in between.

Invariant: what is stored under a key is the greatest entry, by version, originator and value, of all that were taken
since the key was there; its TTL is that of the highest TTL version of this entry.

Source: KvStore, "Implementation Details"; facts §2, §5.1, §5.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import attrs

from statestore_client.server.kvstore.admission import DEFAULT_LIMITS, AreaLimits, OriginatorNames, entry_bytes, refusal
from statestore_client.server.kvstore.key_deadlines import KeyDeadlines
from statestore_client.server.kvstore.merge import Update, decide
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, NoMergeReason, Value, hash_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["EXPIRY_SLICE", "LEAST_TTL_MS", "AreaStore", "AreaSummary", "MergeResult", "StoreCounters"]

#: What is sent to a peer, or dumped, has at least so much left: with less it would hardly arrive.
LEAST_TTL_MS: Final = 500
#: Taken off the TTL each time that an entry leaves a store, so that no entry lives for ever by going in circles.
_DECREMENT_MS: Final = 1
#: The same for who asked for just this: what is left after the millisecond is a TTL still.
_READ_TTL_MS: Final = _DECREMENT_MS + 1
#: Keys that expire at once, at most: below a millisecond.
EXPIRY_SLICE: Final = 128

_MS: Final = 1000

_REPLACE: Final = Update.REPLACE


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
