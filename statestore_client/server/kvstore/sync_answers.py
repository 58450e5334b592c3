"""What a site answers in a sync that the other side began. Nothing is remembered between two requests.

Source: facts §3.1; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING

from statestore_client.server.kvstore.range_sums import position
from statestore_client.server.kvstore.slices import SYNC_BYTES, SYNC_KEYS, packed_bytes
from statestore_client.wire.kvstore.comparison import Comparison, compare
from statestore_client.wire.kvstore.messages import CompareRanges, RangeSumsReply, Sync, SyncReply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.kvstore.range_sums import RangeSums
    from statestore_client.server.kvstore.store import AreaStore
    from statestore_client.wire.kvstore.value import Value

__all__ = ["answer_comparison", "answer_sync"]


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
