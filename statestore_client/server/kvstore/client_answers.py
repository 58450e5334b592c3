"""What a site answers to those that read and set keys: get, get filtered, get hashes, set.

Nothing is remembered between two requests. A reply that would be too large, or take too long, ends before the key at
its ``next``; the same request from that position on goes on there.

Source: facts §6.1, §6.2; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.key_filter import KeyFilter
from statestore_client.server.kvstore.range_sums import position
from statestore_client.server.kvstore.slices import PART_BYTES, packed_bytes, page
from statestore_client.wire.kvstore.messages import (
    MAX_POSITION,
    Failure,
    FailureReason,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    Set,
    SetResult,
)
from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from statestore_client.server.kvstore.replica import Replica

__all__ = ["ClientRequest", "answer_client"]

ClientRequest: TypeAlias = Get | GetFiltered | GetHashes | Set


def answer_client(
    replica: Replica | None, site: str, request: ClientRequest, now: float
) -> Found | SetResult | Failure:
    """The reply. ``replica``: of the request's area; None if there is no such area."""
    if replica is None:
        return Failure(request.id, FailureReason.UNKNOWN_AREA, f"this site has no area {request.area[:80]!r}")
    if isinstance(request, Set):
        return _set(replica, site, request, now)
    if isinstance(request, Get):
        return _get(replica, request, now)
    try:
        return _dump(replica, request, now)
    except InvalidArgumentError as error:
        return Failure(request.id, FailureReason.BAD_REQUEST, str(error))


def _set(replica: Replica, site: str, request: Set, now: float) -> SetResult:
    if site in request.path:
        replica.counters.looped_publications += 1
        return SetResult(request.id, dict.fromkeys(request.entries, int(NoMergeReason.LOOP_DETECTED)))
    if request.path:
        result = replica.contents.merge(request.entries, request.path[-1], now)
        replica.publish(result.accepted, request.path, now)
    else:
        result = replica.contents.set(request.entries, now)
    return SetResult(request.id, {key: int(reason) for key, reason in result.reasons.items()})


def _get(replica: Replica, request: Get, now: float) -> Found:
    """In the order of positions, so that a client can tell which of its keys were looked at."""
    keys: list[str] = []
    size = 0
    for at, key in sorted((position(key), key) for key in set(request.keys)):
        entry = replica.contents.get(key)
        if entry is None:
            continue
        size += packed_bytes(key, entry)
        if keys and size > PART_BYTES:
            return Found(request.id, replica.contents.store.read(keys, now), at)
        keys.append(key)
    return Found(request.id, replica.contents.store.read(keys, now))


def _dump(replica: Replica, request: GetFiltered | GetHashes, now: float) -> Found:
    if isinstance(request, GetHashes):
        key_filter, omit_values = KeyFilter(request.patterns), True
    else:
        key_filter = KeyFilter(request.patterns, request.originators, match_all=request.match_all)
        omit_values = request.omit_values
    keys = (key for _, key in replica.sums.keys_in(request.start, MAX_POSITION))
    found = page(replica.contents.store, keys, key_filter, now, omit_values=omit_values)
    following = None if found.next_key is None else position(found.next_key)
    return Found(request.id, found.entries, following)
