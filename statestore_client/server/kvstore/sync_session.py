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

Source: facts §3.1; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.kvstore.pending_keys import PendingKeys
from statestore_client.server.kvstore.range_sums import LOWEST, level_below, positions_of
from statestore_client.server.kvstore.slices import SYNC_BYTES, SYNC_KEYS, packed_bytes
from statestore_client.wire.kvstore.messages import (
    MAX_POSITION,
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
