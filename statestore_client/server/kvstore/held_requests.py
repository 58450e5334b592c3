"""Requests of clients that wait for something new: publications of an area, changes of its peers.

A client says where it is, so nothing is remembered of it between two requests: nobody has to notice that it is gone,
and one that connects again goes on where it was. A request that waits is answered when there is something, or when its
time is over. Each turn looks at a bounded number of entries, whatever the filters are.

Source: facts §6.4; ``docs/decisions/0050-clients-say-where-they-are.md``.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.key_filter import KeyFilter
from statestore_client.server.kvstore.slices import PART_BYTES, packed_bytes
from statestore_client.server.kvstore.subscribers import SubscriberOptions
from statestore_client.wire.kvstore.client_messages import (
    MAX_HOLD_MS,
    Follow,
    Followed,
    GetPeers,
    PeerInfo,
    PeersReply,
    Piece,
    Wanted,
)
from statestore_client.wire.kvstore.messages import MAX_ITEMS, Failure, FailureReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from statestore_client.server.kvstore.links import LinkId, Links
    from statestore_client.server.kvstore.replica import Replica
    from statestore_client.wire.kvstore.messages import Message

__all__ = ["MAX_HELD", "MAX_HELD_OF_LINK", "HeldRequests"]

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

    def take(self, link: LinkId, request: Follow | GetPeers, now: float) -> None:
        """It is answered by a later :meth:`tick`, at once if it cannot be carried out."""
        refusal = self._take(link, request, now)
        if refusal is not None:
            self._answer(link, Failure(request.id, *refusal))

    def _take(self, link: LinkId, request: Follow | GetPeers, now: float) -> tuple[FailureReason, str] | None:
        replica = self._replicas.get(request.area)
        if replica is None:
            return FailureReason.UNKNOWN_AREA, f"this site has no area {request.area[:80]!r}"
        if len(self._held) >= MAX_HELD or self._of_link[link] >= MAX_HELD_OF_LINK:
            text = f"{MAX_HELD_OF_LINK} requests of a connection may wait, and {MAX_HELD} in all"
            return FailureReason.TOO_MANY_HELD, text
        held: _Held
        if isinstance(request, GetPeers):
            held = _HeldPeers(link, request, replica, self._links, self._history, now)
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
