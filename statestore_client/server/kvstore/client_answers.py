"""What a site answers to its clients at once: keys are read and set, it keeps some alive, and tells how it is.

Nothing is remembered between two requests. A reply that would be too large, or take too long, ends before the key at
its ``next``; the same request from that position on goes on there.

Source: facts §6.1, §6.2; ``docs/decisions/0045-the-wire-between-sites.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.key_filter import KeyFilter
from statestore_client.server.kvstore.range_sums import position
from statestore_client.server.kvstore.slices import LOOKED_AT, PART_BYTES, packed_bytes, page
from statestore_client.wire.kvstore.client_messages import (
    ChangeOwnKey,
    GetOwnKeys,
    OwnKeyAction,
    OwnKeyState,
)
from statestore_client.wire.kvstore.client_messages import (
    OwnKeys as OwnKeysReply,
)
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
from statestore_client.wire.kvstore.value import RESERVED, NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.kvstore.own_keys import OwnKeys
    from statestore_client.server.kvstore.replica import Replica

__all__ = ["ClientRequest", "answer_client"]

ClientRequest: TypeAlias = Get | GetFiltered | GetHashes | Set | ChangeOwnKey | GetOwnKeys


def answer_client(
    replica: Replica | None, site: str, request: ClientRequest, now: float
) -> Found | SetResult | OwnKeysReply | Failure:
    """The reply. ``replica``: of the request's area; None if there is no such area."""
    if replica is None:
        return Failure(request.id, FailureReason.UNKNOWN_AREA, f"this site has no area {request.area[:80]!r}")
    reserved = _reserved_in(request) if replica.contents.is_bridged else None
    if reserved is not None:
        return Failure(
            request.id,
            FailureReason.BAD_REQUEST,
            f"{reserved[:80]!r} is written by the site that it is named after: set the key in that site's state store",
        )
    if isinstance(request, Set):
        return _set(replica, site, request, now)
    if isinstance(request, Get):
        return _get(replica, request, now)
    if isinstance(request, GetOwnKeys):
        return _own_keys(replica, request)
    try:
        if isinstance(request, ChangeOwnKey):
            return _change_own(replica.contents.own, request, now)
        return _dump(replica, request, now)
    except InvalidArgumentError as error:
        return Failure(request.id, FailureReason.BAD_REQUEST, str(error))


def _reserved_in(request: ClientRequest) -> str | None:
    """A key that no client writes where there is a bridge, if the request would."""
    keys: Iterable[str] = ()
    if isinstance(request, Set):
        keys = request.entries
    elif isinstance(request, ChangeOwnKey):
        keys = (request.key,)
    return next((key for key in keys if key.startswith(RESERVED)), None)


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


def _change_own(own: OwnKeys, request: ChangeOwnKey, now: float) -> SetResult:
    """Raises InvalidArgumentError if something is missing, or cannot be."""
    key, reason = request.key, None
    match request.action:
        case OwnKeyAction.SET:
            reason = own.set(key, _value(request), now, version=request.version, ttl_ms=request.ttl_ms)
        case OwnKeyAction.PERSIST:
            reason = own.persist(key, _value(request), now)
        case OwnKeyAction.REFRESH:
            if request.ttl_ms is None:
                raise InvalidArgumentError("a refresh takes a TTL")
            reason = own.refresh(key, request.ttl_ms, now)
        case OwnKeyAction.UNSET:
            reason = own.unset(key, _value(request), now)
        case OwnKeyAction.CLEAR:
            reason = None if own.clear(key, now) else NoMergeReason.NO_NEED_TO_UPDATE
        case OwnKeyAction.ERASE:
            reason = None if own.erase(key, now) else NoMergeReason.NO_NEED_TO_UPDATE
        case _:
            raise InvalidArgumentError(f"this release knows no action {request.action}")
    return SetResult(request.id, {} if reason is None else {key: int(reason)})


def _value(request: ChangeOwnKey) -> bytes:
    if request.value is None:
        raise InvalidArgumentError("there is no value to set")
    return request.value


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


def _own_keys(replica: Replica, request: GetOwnKeys) -> OwnKeysReply:
    """One that is advertised in a moment only is left out: it is not in the store yet."""
    own = replica.contents.own
    found: dict[str, OwnKeyState] = {}
    size = 0
    for number, (at, key) in enumerate(replica.sums.keys_in(request.start, MAX_POSITION)):
        if number >= LOOKED_AT:
            return OwnKeysReply(request.id, found, at)
        kept = own.get(key)
        if kept is None:
            continue
        more = packed_bytes(key, kept.entry)
        if found and size + more > PART_BYTES:
            return OwnKeysReply(request.id, found, at)
        found[key] = OwnKeyState(kept.entry, kept.is_persisted, kept.is_contested)
        size += more
    return OwnKeysReply(request.id, found)
