"""A full sync, as the site that begins it goes through it: which ranges differ, which entries, what the peer lacks.

::

    COMPARING   -> CompareRanges   <- RangeSumsReply    only if both sides know ranges; ends here if all is equal
    ASKING      -> Sync            <- SyncReply    hashes of the ranges that differ, in parts, four under way
    ANSWERED                                       all that is newer at the other side is here: SYNC_RESP_RCVD
    FINALIZING  -> Finalize        <- SetResult    what the other side lacks, part by part
    DONE

Replies are matched by the ids of requests, which are never used twice: a late reply of an older sync fits nothing here.

Source: facts §3.1; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore.range_sums import LOWEST, level_below, positions_of
from statestore_client.server.kvstore.slices import PART_BYTES, packed_bytes
from statestore_client.wire.kvstore.messages import (
    MAX_POSITION,
    MAX_PREFIXES,
    CompareRanges,
    Finalize,
    RangeSumsReply,
    SetResult,
    Sync,
    SyncReply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore_client.server.kvstore.range_sums import RangeSums
    from statestore_client.server.kvstore.store import AreaStore
    from statestore_client.wire.kvstore.value import Value

__all__ = ["Phase", "SyncSession"]

#: Requests for hashes under way: several, so that a long line is not idle between two parts.
_WINDOW: Final = 4
#: So few entries in a range are sent at once: finer sums would take as many bytes.
_FEW: Final = 4
#: What the hash of an entry takes in a message beside its names, about.
_HASH_BYTES: Final = 24
#: Ranges in one request take 18 bytes each.
_MAX_RANGES: Final = 2048


class Phase(Enum):
    """How far it is."""

    COMPARING = "comparing ranges"
    ASKING = "asking for what is newer"
    FINALIZING = "sending what the other side lacks"
    DONE = "done"


@attrs.define(eq=False)
class _Waiting:
    request: CompareRanges | Sync | Finalize
    deadline: float


class SyncSession:
    """One sync of one area with one peer."""

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
        self._waiting: dict[int, _Waiting] = {}
        self._below: list[int] = []  # ranges of the next level that differ
        self._ranges: deque[tuple[int, int]] = deque()
        self._lacking: dict[str, None] = {}
        self._is_last_sent = False
        if not with_ranges:
            self._ranges.append((0, MAX_POSITION))

    def begin(self, now: float) -> list[CompareRanges | Sync | Finalize]:
        """The first requests."""
        if self.phase is Phase.COMPARING:
            return [self._ask(CompareRanges(self._next_id(), self._area, 0, (0,), self._sums.sum(0, 0)), now)]
        return self._go_on(now)

    @property
    def deadline(self) -> float | None:
        """When the oldest request has waited too long."""
        return min((waiting.deadline for waiting in self._waiting.values()), default=None)

    def waits_for(self, reply_id: int) -> bool:
        """Whether a reply belongs to this sync."""
        return reply_id in self._waiting

    def pend(self, keys: Iterable[str]) -> None:
        """These have changed while the sync runs: the other side gets what is stored by then when it is finalized."""
        self._lacking.update(dict.fromkeys(keys))

    def receive(
        self, reply: RangeSumsReply | SyncReply | SetResult, now: float
    ) -> list[CompareRanges | Sync | Finalize]:
        """The next requests. The entries of a SyncReply have been merged before. Raises RemoteProtocolError for a reply
        that does not answer the request with its id.
        """
        request = self._waiting.pop(reply.id).request
        if isinstance(request, CompareRanges) and isinstance(reply, RangeSumsReply):
            self._compared(request, reply)
        elif isinstance(request, Sync) and isinstance(reply, SyncReply):
            self._answered(request, reply)
        elif not (isinstance(request, Finalize) and isinstance(reply, SetResult)):
            raise RemoteProtocolError(f"a {type(reply).__name__} answers a {type(request).__name__}")
        return self._go_on(now)

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
        children = (child for prefix in request.prefixes for child in range(prefix << width, prefix + 1 << width))
        for child, theirs in zip(children, reply.sums, strict=True):
            mine = self._sums.sum(level, child)
            if mine == theirs:
                continue
            first, last = positions_of(level, child)
            if not theirs:
                self.pend(key for _, key in self._sums.keys_in(first, last))
            elif not mine or has_few or level == LOWEST:
                self._ranges.append((first, last))
            else:
                self._below.append(child)
        if not any(isinstance(waiting.request, CompareRanges) for waiting in self._waiting.values()):
            self._level = level

    def _compare_below(self, now: float) -> list[CompareRanges | Sync | Finalize]:
        below, self._below = sorted(self._below), []
        parts = [tuple(below[i : i + MAX_PREFIXES]) for i in range(0, len(below), MAX_PREFIXES)]
        return [self._ask(CompareRanges(self._next_id(), self._area, self._level, part), now) for part in parts]

    # -- hashes --------------------------------------------------------------------------------------------------------

    def _answered(self, request: Sync, reply: SyncReply) -> None:
        self.pend(reply.to_be_updated)
        if reply.next is None:
            return
        if reply.next <= request.ranges[0][0]:
            raise RemoteProtocolError("a part of a sync that does not go on")
        rest = [(max(first, reply.next), last) for first, last in request.ranges if last >= reply.next]
        self._ranges.extendleft(reversed(rest))

    def _next_part(self) -> Sync:
        """Ranges with the hashes of what is in them, until it is enough for a part."""
        ranges: list[tuple[int, int]] = []
        hashes: dict[str, Value] = {}
        size = 0
        while self._ranges and size < PART_BYTES and len(ranges) < _MAX_RANGES:
            if ranges and self._ranges[0][0] <= ranges[-1][1]:
                break  # a rest that another request left: ranges of one request ascend
            first, last = self._ranges.popleft()
            for at, key in self._sums.keys_in(first, last):
                if size >= PART_BYTES and at > first:
                    self._ranges.appendleft((at, last))
                    last = at - 1
                    break
                entry = self._store.get(key)
                if entry is not None:
                    hashes[key] = entry
                    size += _HASH_BYTES + len(key) + len(entry.originator)
            if ranges and ranges[-1][1] + 1 == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        return Sync(self._next_id(), self._area, tuple(ranges), hashes)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _go_on(self, now: float) -> list[CompareRanges | Sync | Finalize]:
        if self.phase is Phase.COMPARING and not self._waiting:
            if self._below:
                return self._compare_below(now)
            self._ranges = deque(sorted(self._ranges))
            self.phase = Phase.ASKING
        requests: list[CompareRanges | Sync | Finalize] = []
        if self.phase is Phase.ASKING:
            while self._ranges and len(self._waiting) < _WINDOW:
                requests.append(self._ask(self._next_part(), now))
            if not self._waiting:
                self.phase = Phase.FINALIZING
        return requests

    def finalize(self, now: float) -> list[CompareRanges | Sync | Finalize]:
        """The next part of what the other side lacks, once nothing is under way; the last one may be empty."""
        if self.phase is not Phase.FINALIZING or self._waiting:
            return []
        if self._is_last_sent and not self._lacking:
            self.phase = Phase.DONE
            return []
        part: list[str] = []
        size = 0
        for key in list(self._lacking):
            entry = self._store.get(key)
            cost = 0 if entry is None else packed_bytes(key, entry)
            if part and size + cost > PART_BYTES:
                break
            del self._lacking[key]
            if entry is not None:
                part.append(key)
                size += cost
        self._is_last_sent = not self._lacking
        entries = self._store.outgoing(part, now)
        return [self._ask(Finalize(self._next_id(), self._area, entries, self._is_last_sent), now)]

    def _ask(self, request: CompareRanges | Sync | Finalize, now: float) -> CompareRanges | Sync | Finalize:
        self._waiting[request.id] = _Waiting(request, now + self._timeout_s)
        return request
