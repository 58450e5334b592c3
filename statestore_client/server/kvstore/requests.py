"""What a site answers to its clients at once: keys are read and set, it keeps some alive, and tells how it is.

Nothing is remembered between two requests. A reply that would be too large, or take too long, ends before the key at
its ``next``; the same request from that position on goes on there.

Source: facts §6.1, §6.2; ``docs/decisions/sites.md``.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.area import SubscriberOptions
from statestore_client.server.kvstore.area_store import LOOKED_AT, PART_BYTES, packed_bytes, page
from statestore_client.server.kvstore.patterns import KeyFilter
from statestore_client.server.kvstore.sync import position
from statestore_client.wire.kvstore.messages import (
    MAX_HOLD_MS,
    MAX_ITEMS,
    MAX_POSITION,
    ChangeOwnKey,
    Failure,
    FailureReason,
    Follow,
    Followed,
    Found,
    Get,
    GetFiltered,
    GetHashes,
    GetLostKeys,
    GetOwnKeys,
    GetPeers,
    OwnKeyAction,
    OwnKeyState,
    PeerInfo,
    PeersReply,
    Piece,
    Set,
    SetResult,
    Wanted,
)
from statestore_client.wire.kvstore.messages import LostKeys as LostKeysReply
from statestore_client.wire.kvstore.messages import OwnKeys as OwnKeysReply
from statestore_client.wire.kvstore.value import RESERVED, NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from statestore_client.server.kvstore.members import Links
    from statestore_client.server.kvstore.own_keys import OwnKeys
    from statestore_client.server.kvstore.peers import LinkId
    from statestore_client.server.kvstore.replica import Replica
    from statestore_client.wire.kvstore.messages import Message

# -- held requests -----------------------------------------------------------------------------------------------------
#
# Requests of clients that wait for something new: publications of an area, changes of its peers, keys that were lost.
#
# A client says where it is, so nothing is remembered of it between two requests: nobody has to notice that it is gone,
# and one that connects again goes on where it was. A request that waits is answered when there is something, or when
# its time is over. Each turn looks at a bounded number of entries, whatever the filters are.
#
# Source: facts §6.4; ``docs/decisions/sites.md``.


#: Requests that wait, of all clients.
MAX_HELD: Final = 512
#: Requests of one connection that wait.
MAX_HELD_OF_LINK: Final = 32
#: Entries that are looked at in a turn: about a millisecond with a filter of some patterns.
_LOOKED_AT: Final = 512
#: What a publication costs besides its entries.
_LEAST_COST: Final = 8


@lru_cache(maxsize=64)
def _options(wanted: Wanted) -> SubscriberOptions:
    """A client asks with the same filter again and again. Raises InvalidArgumentError."""
    key_filter = KeyFilter(wanted.patterns, wanted.originators, match_all=wanted.match_all)
    return SubscriberOptions(key_filter, wanted.ignore_ttl, wanted.omit_values)


HeldRequest: TypeAlias = Follow | GetPeers | GetLostKeys


class _Held(Protocol):
    """A request that waits."""

    link: LinkId
    ends_at: float

    def look(self, now: float) -> int:
        """Take one step; what it cost, 0 if there was nothing to do."""

    def answer(self, now: float) -> Message | None:
        """The reply, if it is time for one."""


class _HeldFollow:
    """What is wanted of the publications that were looked at so far."""

    def __init__(self, link: LinkId, request: Follow, replica: Replica, history: int, now: float) -> None:
        self.link = link
        self._request = request
        self._history = history
        self._contents = replica.contents
        self._has_history = request.after is None or request.history == history
        options = _options(request.wanted)
        self._subscription = replica.contents.subscribers.follow(options, request.after, now)
        self._pieces: list[Piece] = []
        self._bytes = 0
        self._number = 0
        self._is_full = False
        hold_ms = 0 if request.after is None else min(request.hold_ms, MAX_HOLD_MS)
        self.ends_at = now + hold_ms / 1000

    @property
    def _is_gap(self) -> bool:
        return not self._has_history or self._subscription.has_fallen_behind

    def look(self, now: float) -> int:
        subscription = self._subscription
        if self._is_full or self._is_gap or subscription.is_at_end:
            return 0
        publication = subscription.next()
        cost = _LEAST_COST + len(publication.entries) + len(publication.expired_keys)
        wanted = subscription.options.wanted(publication)
        if wanted is not None:
            size = sum(packed_bytes(key, entry) for key, entry in wanted.entries.items())
            size += sum(len(key.encode()) + _LEAST_COST for key in wanted.expired_keys)
            number = self._number + len(wanted.entries) + len(wanted.expired_keys)
            if self._pieces and (self._bytes + size > PART_BYTES or number > MAX_ITEMS):
                self._is_full = True
                return cost
            self._bytes += size
            self._number = number
            entries = self._contents.store.leaving(wanted.entries, now, least_ms=None)
            self._pieces.append(Piece(wanted.number, wanted.sender, entries, wanted.expired_keys))
        subscription.at += 1
        return cost

    def answer(self, now: float) -> Message | None:
        subscription = self._subscription
        if self._is_gap:
            return Followed(self._request.id, self._history, self._contents.subscribers.number, True)
        has_looked = self._is_full or subscription.is_at_end
        if (self._pieces and has_looked) or self.ends_at <= now:
            return Followed(self._request.id, self._history, subscription.at, False, tuple(self._pieces))
        return None


class _HeldPeers:
    """Answered when the number of changes is another one than the client knows."""

    def __init__(
        self, link: LinkId, request: GetPeers, replica: Replica, links: Links, history: int, now: float
    ) -> None:
        self.link = link
        self._request = request
        self._replica = replica
        self._links = links
        self._history = history
        self.ends_at = now + min(request.hold_ms, MAX_HOLD_MS) / 1000

    def look(self, now: float) -> int:
        del now
        return 0

    def answer(self, now: float) -> Message | None:
        request, changes = self._request, self._replica.peer_changes
        if (request.history, request.after) == (self._history, changes) and now < self.ends_at:
            return None
        dialled = [link for link in self._links if link.is_dialled]
        peers = {
            name: PeerInfo(
                int(peer.status.state),
                round(max(0.0, now - peer.status.since) * 1000),
                max(0, peer.status.flaps),
                peer.is_connected,
                tuple(str(link.id) for link in dialled if link.last_name == name),
            )
            for name, peer in self._replica.peers.items()
        }
        unreached = tuple(str(link.id) for link in dialled if link.last_name is None)
        return PeersReply(request.id, self._history, changes, peers, unreached)


class _HeldLosses:
    """Answered when there are losses that the client does not know."""

    def __init__(self, link: LinkId, request: GetLostKeys, replica: Replica, history: int, now: float) -> None:
        self.link = link
        self._request = request
        self._lost = replica.contents.own.lost
        self._history = history
        is_known = request.after is not None and request.history == history
        self._after = request.after if request.after is not None and is_known else 0
        self.ends_at = now + (min(request.hold_ms, MAX_HOLD_MS) / 1000 if is_known else 0.0)

    def look(self, now: float) -> int:
        del now
        return 0

    def answer(self, now: float) -> Message | None:
        if self._lost.number <= self._after and now < self.ends_at:
            return None
        found: dict[str, tuple[str, int]] = {}
        size = 0
        for number, loss in self._lost.after(self._after):
            size += len(loss.key.encode()) + len(loss.originator.encode()) + _LEAST_COST
            if found and (len(found) == MAX_ITEMS or size > PART_BYTES):
                return LostKeysReply(self._request.id, self._history, number - 1, found)
            found[loss.key] = loss.originator, loss.version
        return LostKeysReply(self._request.id, self._history, self._lost.number, found)


class HeldRequests:
    """``history`` numbers what was published since the site was started. ``answer`` sends a reply."""

    def __init__(
        self, history: int, replicas: Mapping[str, Replica], links: Links, answer: Callable[[LinkId, Message], None]
    ) -> None:
        self._history = history
        self._replicas = replicas
        self._links = links
        self._answer = answer
        self._held: deque[_Held] = deque()
        self._of_link: Counter[LinkId] = Counter()
        self._has_more = False

    def __len__(self) -> int:
        return len(self._held)

    def take(self, link: LinkId, request: HeldRequest, now: float) -> None:
        """It is answered by a later :meth:`tick`, at once if it cannot be carried out."""
        refusal = self._take(link, request, now)
        if refusal is not None:
            self._answer(link, Failure(request.id, *refusal))

    def _take(self, link: LinkId, request: HeldRequest, now: float) -> tuple[FailureReason, str] | None:
        replica = self._replicas.get(request.area)
        if replica is None:
            return FailureReason.UNKNOWN_AREA, f"this site has no area {request.area[:80]!r}"
        if len(self._held) >= MAX_HELD or self._of_link[link] >= MAX_HELD_OF_LINK:
            text = f"{MAX_HELD_OF_LINK} requests of a connection may wait, and {MAX_HELD} in all"
            return FailureReason.TOO_MANY_HELD, text
        held: _Held
        if isinstance(request, GetPeers):
            held = _HeldPeers(link, request, replica, self._links, self._history, now)
        elif isinstance(request, GetLostKeys):
            held = _HeldLosses(link, request, replica, self._history, now)
        else:
            try:
                held = _HeldFollow(link, request, replica, self._history, now)
            except InvalidArgumentError as error:
                return FailureReason.BAD_REQUEST, str(error)
        self._held.append(held)
        self._of_link[link] += 1
        return None

    def tick(self, now: float) -> None:
        """Look at what is new, some of it: call it again while :meth:`next_deadline` is not later."""
        left = _LOOKED_AT
        for _ in range(len(self._held)):
            held = self._held.popleft()
            while left > 0 and (cost := held.look(now)):
                left -= cost
            reply = held.answer(now)
            if reply is None:
                self._held.append(held)
            else:
                self._release(held.link)
                self._answer(held.link, reply)
            if left <= 0:
                break
        self._has_more = left <= 0

    def next_deadline(self, now: float) -> float | None:
        """When to call :meth:`tick`; None if nothing waits."""
        return now if self._has_more else min((held.ends_at for held in self._held), default=None)

    def _release(self, link: LinkId) -> None:
        self._of_link[link] -= 1
        if not self._of_link[link]:
            del self._of_link[link]


# -- client answers ----------------------------------------------------------------------------------------------------


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
