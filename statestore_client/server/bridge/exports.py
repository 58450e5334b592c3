"""Out: the chosen keys of this site's state store, kept alive in the KvStore.

================================================  ====================================================================
a key of the state store                          in the KvStore
================================================  ====================================================================
below a chosen prefix                             persisted: advertised, refreshed and defended
the same, with an expiry or a fencing mark        erased: it may be a lock
the same, but its name or value does not fit      erased, counted, and said once
deleted                                           erased
below ``sites/``, or below no chosen prefix       nothing: what has come from a site never leaves for another one
================================================  ====================================================================

An entry of the KvStore below the own name that is not in the state store is erased: a site that starts again is given
back by the others what it has said before, and some of that may have been deleted meanwhile.

Changes are noted by key and settled later, a slice at a time, against what the state store has by then. At the start
all keys below the prefixes are looked at in the same way.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.bridge.names import RESERVED_BYTES, exported_name, version_of
from statestore_client.wire.kvstore.value import NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.store import SiteStore
    from statestore_client.server.store.keyspace import Entry
    from statestore_client.wire.instant import Instant

__all__ = ["AT_ONCE", "Exports", "NotExported"]

#: So many keys that had no room are tried again at once: a few milliseconds, in several turns.
AT_ONCE: Final = 256

#: Keys of the store that are looked at in one step at the start.
_SCANNED: Final = 64

_NOT_A_NAME: Final = "name"
_ROOM: Final = "room"
_REASONS: Final = {
    NoMergeReason.INVALID_KEY: _NOT_A_NAME,
    NoMergeReason.VALUE_TOO_LARGE: "value",
    NoMergeReason.NO_ROOM: _ROOM,
    NoMergeReason.INVALID_VERSION: "version",
}


@attrs.frozen
class NotExported:
    """A key does not cross, and ``reason`` says why; it is told of the first one with each reason. ``name``: it is not
    UTF-8, or too long; ``value``: too large; ``room``: the area is full; ``version``: another site has used them up.
    """

    key: bytes
    reason: str


class Exports:
    """``site`` is the own name. Moments of the state store and of the area may come from two clocks."""

    def __init__(self, store: SiteStore, area: Area, site: str, prefixes: Iterable[bytes]) -> None:
        self.events: list[NotExported] = []
        #: How many keys do not cross now, by reason.
        self.refused: dict[str, int] = dict.fromkeys((_NOT_A_NAME, *_REASONS.values()), 0)
        self._store = store
        self._area = area
        self._site = site
        self._prefixes = tuple(sorted(prefixes))
        self._keys: set[str] = set()
        # Invariant: these are in the state store, or exported. So there are no more than both have together.
        # (Taking the first item of a dictionary takes longer with each one that was there.)
        self._changed: OrderedDict[bytes, None] = OrderedDict()
        self._refused: dict[bytes, str] = {}
        self._without_room: OrderedDict[bytes, None] = OrderedDict()
        self._told: set[str] = set()
        self._to_scan = deque((prefix, prefix) for prefix in self._prefixes)

    def __len__(self) -> int:
        """Keys that cross."""
        return len(self._keys)

    @property
    def waiting(self) -> int:
        """Keys that have changed and were not looked at since."""
        return len(self._changed)

    @property
    def without_room(self) -> int:
        """Keys that do not cross as the area is full."""
        return len(self._without_room)

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return bool(self._changed or self._to_scan)

    def concerns(self, key: bytes) -> bool:
        """Whether this is one of the chosen keys."""
        return key.startswith(self._prefixes) and not key.startswith(RESERVED_BYTES)

    # -- what is heard -------------------------------------------------------------------------------------------------

    def store_changed(self, key: bytes, entry: Entry | None) -> None:
        """A key of the state store was set, or is gone: None."""
        if not self.concerns(key):
            return
        if entry is not None or exported_name(self._site, key) in self._keys:
            self._changed[key] = None
        else:  # it came and went before it was looked at
            self._changed.pop(key, None)
            self._accept(key)

    def area_changed(self, key: bytes) -> None:
        """An entry below the own name came from somewhere else, or is gone."""
        self._changed[key] = None

    def try_again(self) -> bool:
        """Of what had no room some may have it now. Where one has, the next one is tried as well. Returns whether there
        was anything.
        """
        self._pull(AT_ONCE)
        return self.has_work

    def _pull(self, number: int) -> None:
        """The ones that wait longest."""
        for _ in range(min(number, len(self._without_room))):
            key, _none = self._without_room.popitem(last=False)
            self._changed[key] = None

    # -- what follows --------------------------------------------------------------------------------------------------

    def step(self, now: Instant, moment: float) -> None:
        """Settle one key, or find the next ones. ``moment`` is that of the area."""
        if self._changed:
            key, _ = self._changed.popitem(last=False)
            self._settle(key, now, moment)
        elif self._to_scan:
            self._scan()

    def _scan(self) -> None:
        prefix, start = self._to_scan.popleft()
        found = list(islice(self._store.keys_from(start, inclusive=start == prefix), _SCANNED))
        chosen = [key for key in found if key.startswith(prefix)]
        self._changed.update(dict.fromkeys(filter(self.concerns, chosen)))
        if len(chosen) == _SCANNED:
            self._to_scan.appendleft((prefix, chosen[-1]))

    def _settle(self, key: bytes, now: Instant, moment: float) -> None:
        name = exported_name(self._site, key)
        entry = self._store.entry(key, now) if self.concerns(key) else None
        self._accept(key)
        if entry is not None and entry.expires_at is None and entry.fence is None:
            refusal = _NOT_A_NAME if name is None else self._persist(name, entry, moment)
            if refusal is None:
                return
            self._refuse(key, refusal)
        if name is not None:
            self._keys.discard(name)
            self._area.own.erase(name, moment)

    def _persist(self, name: str, entry: Entry, moment: float) -> str | None:
        """Why the KvStore does not take it."""
        version = version_of(entry.version)
        refused = self._area.own.persist(name, entry.value, moment, least_version=version)
        if refused is not None:
            return _REASONS.get(refused, _NOT_A_NAME)
        if name not in self._keys:
            self._keys.add(name)
            self._pull(1)
        return None

    def _refuse(self, key: bytes, reason: str) -> None:
        self._refused[key] = reason
        if reason == _ROOM:
            self._without_room[key] = None
        self.refused[reason] += 1
        if reason not in self._told:
            self._told.add(reason)
            self.events.append(NotExported(key, reason))

    def _accept(self, key: bytes) -> None:
        """Nothing is wrong with it, as far as is known."""
        reason = self._refused.pop(key, None)
        self._without_room.pop(key, None)
        if reason is not None:
            self.refused[reason] -= 1
