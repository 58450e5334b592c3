"""Leases of keys: what entries say of them, and when the leader's clock says that one is over.

The state machine of each peer has a :class:`LeaseTable`, which only entries change. The peer that leads has a
:class:`LeaseClock` beside it, which proposes an entry for each lease whose owner has said nothing for too long. So all
peers agree about which keys there are, although no two clocks do, and a log that is applied again says the same.

Invariant: a lease ends no sooner than its ttl after the last entry with which it went on was applied at the peer that
led then, and no sooner than its ttl after the peer that ends it began to lead.
Invariant: an end that was decided before the owner was heard has no effect: an end names the entry that was seen last.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.wire.key_value_messages import TransactionStatus
from raft_client.wire.leases import (
    MOST_KEYS_OF_A_LEASE,
    MOST_LEASED_KEYS,
    MOST_LEASES,
    EndLease,
    HeldLease,
    LeasedKey,
)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

# -- what entries say --------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Lease:
    ttl_ms: int
    kept_at: int  # the index of the last entry with which it went on
    keys: set[bytes] = attrs.field(factory=set)


class LeaseTable:
    """Which leases there are, and which keys they have, as the entries up to now say."""

    __slots__ = ("_leases", "_of_key", "touched")

    def __init__(self) -> None:
        self._leases: dict[bytes, _Lease] = {}
        self._of_key: dict[bytes, bytes] = {}
        #: The leases that began, went on or ended since these were taken away.
        self.touched: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease: bytes) -> bool:
        return lease in self._leases

    @property
    def key_count(self) -> int:
        """How many keys belong to a lease."""
        return len(self._of_key)

    def look(self, lease: bytes) -> tuple[int | None, tuple[bytes, ...]]:
        """Return the ttl in milliseconds, None if there is no such lease; and its keys in order."""
        found = self._leases.get(lease)
        return (None, ()) if found is None else (found.ttl_ms, tuple(sorted(found.keys)))

    def ttl_s(self, lease: bytes) -> float:
        """Return the seconds that it lasts without a word from its owner; there must be such a lease."""
        return self._leases[lease].ttl_ms / 1000

    def kept_at(self, lease: bytes) -> int:
        """Return the index of the last entry with which it went on; there must be such a lease."""
        return self._leases[lease].kept_at

    def names(self) -> list[bytes]:
        """Return all leases, in the order in which they began."""
        return list(self._leases)

    # -- entries about leases ------------------------------------------------------------------------------------------

    def grant(self, lease: bytes, ttl_ms: int, index: int) -> TransactionStatus:
        """Let it begin, unless there are too many; one that is there goes on."""
        if lease in self._leases:
            return self.keep(lease, index)
        if len(self._leases) >= MOST_LEASES:
            return TransactionStatus.TOO_MANY
        self._leases[lease] = _Lease(ttl_ms, index)
        self.touched[lease] = None
        return TransactionStatus.DONE

    def keep(self, lease: bytes, index: int) -> TransactionStatus:
        """Let it go on, if it has not ended."""
        found = self._leases.get(lease)
        if found is None:
            return TransactionStatus.NO_LEASE
        found.kept_at = index
        self.touched[lease] = None
        return TransactionStatus.DONE

    def may_end(self, lease: bytes, seen: int | None) -> TransactionStatus:
        """Say whether an end that was decided when ``seen`` was the last word of the owner's has an effect."""
        found = self._leases.get(lease)
        if found is None:
            return TransactionStatus.NO_LEASE
        is_late = seen is not None and found.kept_at > seen
        return TransactionStatus.COMPARISON_FAILED if is_late else TransactionStatus.DONE

    def end(self, lease: bytes) -> list[bytes]:
        """Forget the lease, and return its keys in order, which are to be deleted; there must be such a lease."""
        keys = sorted(self._leases.pop(lease).keys)
        for key in keys:
            del self._of_key[key]
        self.touched[lease] = None
        return keys

    # -- keys ----------------------------------------------------------------------------------------------------------

    def may_have(self, lease: bytes, keys: AbstractSet[bytes]) -> TransactionStatus:
        """Say whether all of these may be keys of the lease, beside those that it has."""
        found = self._leases.get(lease)
        if found is None:
            return TransactionStatus.NO_LEASE
        own = len(found.keys) + sum([key not in found.keys for key in keys])
        of_all = len(self._of_key) + sum([key not in self._of_key for key in keys])
        is_full = own > MOST_KEYS_OF_A_LEASE or of_all > MOST_LEASED_KEYS
        return TransactionStatus.TOO_MANY if is_full else TransactionStatus.DONE

    def attach(self, lease: bytes, key: bytes) -> None:
        """Make the key, which belongs to no lease, one of this lease, which must be there."""
        self._leases[lease].keys.add(key)
        self._of_key[key] = lease

    def detach(self, key: bytes) -> None:
        """Let the key belong to no lease."""
        lease = self._of_key.pop(key, None)
        if lease is not None:
            self._leases[lease].keys.discard(key)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def copied(self) -> list[HeldLease | LeasedKey]:
        """Return what there is now, for a snapshot: each lease before its keys."""
        leases = [HeldLease(name, each.ttl_ms, each.kept_at) for name, each in self._leases.items()]
        return [*leases, *[LeasedKey(lease, key) for key, lease in self._of_key.items()]]

    def restore(self, held: HeldLease) -> None:
        """Take a lease of a snapshot."""
        self._leases[held.lease] = _Lease(held.ttl_ms, held.kept_at)


# -- what the clock of the leader says ---------------------------------------------------------------------------------


#: An end that was not appended, or is not applied for so long, is proposed again; a second one has no effect.
_AGAIN_S: Final = 1.0
#: Ends that one turn proposes: each of them may delete many keys.
_MOST_ENDS: Final = 16


class LeaseClock:
    """When leases are over. It only counts while its peer leads; ``now`` is monotonic seconds.

    Call :meth:`applied` after all that is applied, at every peer.
    """

    def __init__(self, table: LeaseTable) -> None:
        self._table = table
        self._leads = False
        #: When each lease is over. The heap has each of them once, with that moment or an earlier one.
        self._over_at: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []

    def lead(self, now: float) -> None:
        """Begin each lease anew: this peer leads now, and the former leader told no peer what is left of them."""
        self._leads = True
        self._begin_anew(now)

    def follow(self) -> None:
        """Stop counting: this peer leads no longer."""
        self._leads = False
        self._over_at.clear()
        self._heap.clear()

    def applied(self, now: float) -> None:
        """Entries were applied."""
        touched, self._table.touched = self._table.touched, {}
        if self._leads:
            for lease in touched:
                self._begin(lease, now)

    def restored(self, table: LeaseTable, now: float) -> None:
        """A snapshot took the place of what there was: this table does now."""
        self._table = table
        if self._leads:
            self._begin_anew(now)

    def due(self, now: float) -> list[EndLease]:
        """Return the ends that are to be appended to the log now."""
        ends: list[EndLease] = []
        while self._heap and self._heap[0][0] <= now and len(ends) < _MOST_ENDS:
            lease = self._heap[0][1]
            over_at = self._over_at.get(lease)
            if over_at is None:
                heappop(self._heap)
                continue
            if over_at <= now:
                ends.append(EndLease(lease, self._table.kept_at(lease)))
                over_at = self._over_at[lease] = now + _AGAIN_S
            heapreplace(self._heap, (over_at, lease))
        return ends

    def next_deadline(self) -> float | None:
        """Return when to call :meth:`due`; None if never."""
        return self._heap[0][0] if self._heap else None

    def _begin_anew(self, now: float) -> None:
        self._over_at = {lease: now + self._table.ttl_s(lease) for lease in self._table.names()}
        self._heap = [(over_at, lease) for lease, over_at in self._over_at.items()]
        heapify(self._heap)

    def _begin(self, lease: bytes, now: float) -> None:
        if lease not in self._table:
            self._over_at.pop(lease, None)
            return
        is_new = lease not in self._over_at
        over_at = self._over_at[lease] = now + self._table.ttl_s(lease)
        if is_new:
            heappush(self._heap, (over_at, lease))
