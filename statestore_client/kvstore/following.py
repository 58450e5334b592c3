"""What a client that follows a site knows, and what it makes of the replies. Pure: shells send and wait.

The client says up to where it has seen what the site has published. If the site does not have what came after that (it
was started again, or the client was too slow), the client reads a snapshot, and the differences to what it knows are
the changes: no final state is missed, states in between may be.

Source: KvStore, "KvStore Client"; facts §6.4, §6.5; ``docs/decisions/0050-clients-say-where-they-are.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import attrs

from statestore_client.kvstore.calls import Call, checked, identity
from statestore_client.wire.kvstore.messages import Follow, Followed, GetPeers, PeerInfo, PeersReply, Wanted
from statestore_client.wire.kvstore.value import Value

if TYPE_CHECKING:
    from statestore_client.kvstore.calls import SiteCalls

#: So long the site holds a request; a site that is gone, or another start of it, is noticed soon after that.
HOLD_S: Final = 1.0

S = TypeVar("S", covariant=True)
T = TypeVar("T")


@attrs.frozen
class KeyChange:
    """What has become of a key. ``entry``: with the milliseconds that it has left; None if its time to live is over.

    ``number`` is that of the publication of the site that says so: they rise by one, from 1 at its start. None for what
    was found in a snapshot. It does not count where changes are compared.
    """

    key: str
    entry: Value | None
    number: int | None = attrs.field(default=None, eq=False)

    @property
    def is_ttl_only(self) -> bool:
        """The key lives on, and what it says is the same; only clients that ask for TTLs are told."""
        return self.entry is not None and self.entry.value is None and self.entry.hash is None


class Follower(Protocol[S, T]):
    """Something at a site that can be followed."""

    def begin(self) -> Call[S]:
        """All of it, as it is now."""

    def proceed(self, hold_s: float) -> Call[list[T]]:
        """What has changed since; none after ``hold_s``."""


class AreaFollower:
    """Follows the keys of an area that a client wants."""

    def __init__(self, calls: SiteCalls, wanted: Wanted) -> None:
        self._calls = calls
        self._wanted = wanted
        self._history = 0
        self._after = 0
        #: Key -> version, originator, hash: what the application knows.
        self._known: dict[str, tuple[int, str, int | None]] = {}

    def begin(self) -> Call[dict[str, Value]]:
        """All that is wanted. What changes while the pages are read is in the history, and comes next."""
        reply = yield from self._follow(None, 0.0)
        wanted = self._wanted
        snapshot = yield from self._calls.dump(
            None, wanted.patterns, wanted.originators, match_all=wanted.match_all, hashes=wanted.omit_values
        )
        self._history, self._after = reply.history, reply.last
        self._known = {key: identity(entry) for key, entry in snapshot.items()}
        return snapshot

    def proceed(self, hold_s: float) -> Call[list[KeyChange]]:
        """In the order in which the site has published them; the differences to a snapshot in any order."""
        reply = yield from self._follow(self._after, hold_s)
        if reply.is_gap:
            before = self._known
            snapshot = yield from self.begin()
            changes = [KeyChange(key, entry) for key, entry in snapshot.items() if self._known[key] != before.get(key)]
            return changes + [KeyChange(key, None) for key in before if key not in snapshot]
        self._after = reply.last
        changes = []
        for piece in reply.pieces:
            number = piece.number
            changes += [KeyChange(key, entry, number) for key, entry in piece.entries.items() if self._take(key, entry)]
            ended = [key for key in piece.expired_keys if self._known.pop(key, None) is not None]
            changes += [KeyChange(key, None, number) for key in ended]
        return changes

    def _follow(self, after: int | None, hold_s: float) -> Call[Followed]:
        request = Follow(
            self._calls.next_id(), self._calls.area, self._wanted, self._history, after, round(1000 * hold_s)
        )
        return checked(Followed, (yield request))

    def _take(self, key: str, entry: Value) -> bool:
        """Whether it is news. The snapshot may have had it, or a newer one, already."""
        known = self._known.get(key)
        if entry.value is None and entry.hash is None:
            return known is not None and known[:2] == (entry.version, entry.originator)
        said = identity(entry)
        if known is not None and (known == said or known[:2] > said[:2]):
            return not self._wanted.ignore_ttl and known == said
        self._known[key] = said
        return True


class PeersFollower:
    """Follows the peers of a site."""

    def __init__(self, calls: SiteCalls) -> None:
        self._calls = calls
        self._history = 0
        self._after: int | None = None

    def begin(self) -> Call[Mapping[str, PeerInfo]]:
        """Those that it has now."""
        return (yield from self._ask(0.0)).peers

    def proceed(self, hold_s: float) -> Call[list[Mapping[str, PeerInfo]]]:
        """Those that it has after a change."""
        before = self._history, self._after
        reply = yield from self._ask(hold_s)
        return [] if (self._history, self._after) == before else [reply.peers]

    def _ask(self, hold_s: float) -> Call[PeersReply]:
        request = GetPeers(self._calls.next_id(), self._calls.area, self._history, self._after, round(1000 * hold_s))
        reply = checked(PeersReply, (yield request))
        self._history, self._after = reply.history, reply.last
        return reply
