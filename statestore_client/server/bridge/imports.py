"""In: the keys of other sites, in this site's state store below ``sites/NAME/``.

A name of the KvStore is believed if the site that it names is the originator of the entry. Changes are noted by name
and settled later, a slice at a time, against what the area has by then.

Imports have a quota of their own, together and for each site, so that neither all other sites nor one of them use up
what this site's clients have. What does not fit is missing here, an older value of it too, and is tried again when
there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.bridge.exports import AT_ONCE
from statestore_client.server.bridge.names import owner_of
from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES

if TYPE_CHECKING:
    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.store import SiteStore
    from statestore_client.wire.instant import Instant

__all__ = ["DEFAULT_QUOTA", "ImportQuota", "Imports", "NotImported"]


@attrs.frozen
class ImportQuota:
    """Bytes count as in the state store: keys, values, and a fixed overhead for each."""

    max_keys: int = 250_000
    max_bytes: int = 256 << 20
    max_keys_of_a_site: int = 125_000
    max_bytes_of_a_site: int = 128 << 20


DEFAULT_QUOTA: Final = ImportQuota()


@attrs.frozen
class NotImported:
    """A key of another site does not fit; told of the first one, and again only after all did fit."""

    name: str
    #: Whether it is the quota of the state store that is used up, and not that of imports.
    is_store_full: bool


@attrs.define(eq=False)
class _Used:
    keys: int = 0
    bytes: int = 0

    def add(self, keys: int, size: int) -> None:
        self.keys += keys
        self.bytes += size


class Imports:
    """Those of the own site must not be told of."""

    def __init__(self, store: SiteStore, area: Area, quota: ImportQuota = DEFAULT_QUOTA) -> None:
        self.events: list[NotImported] = []
        self._store = store
        self._area = area
        self._quota = quota
        #: What each import costs.
        self._held: dict[str, int] = {}
        self._used = _Used()
        self._used_by: dict[str, _Used] = {}
        # Invariant: these are in the area, or imported. So there are no more than both have together.
        # (Taking the first item of a dictionary takes longer with each one that was there.)
        self._changed: OrderedDict[str, None] = OrderedDict()
        self._without_room: OrderedDict[str, None] = OrderedDict()
        self._has_told = False

    def __len__(self) -> int:
        """Keys of other sites that are in the state store."""
        return len(self._held)

    @property
    def used_bytes(self) -> int:
        """What they cost."""
        return self._used.bytes

    @property
    def without_room(self) -> int:
        """Keys of other sites that are missing, as the quota is used up."""
        return len(self._without_room)

    @property
    def waiting(self) -> int:
        """Names that have changed and were not looked at since."""
        return len(self._changed)

    def changed(self, name: str, *, is_there: bool) -> None:
        """An entry of the KvStore has changed, or is gone."""
        if is_there or name in self._held:
            self._changed[name] = None
        else:
            self._changed.pop(name, None)
            self._without_room.pop(name, None)

    def try_again(self) -> bool:
        """Of what had no room some may have it now: the state store's clients have deleted something. Where one has,
        the next one is tried as well. Returns whether there was anything.
        """
        self._pull(AT_ONCE)
        return bool(self._changed)

    def _pull(self, number: int) -> None:
        """The ones that wait longest."""
        for _ in range(min(number, len(self._without_room))):
            name, _none = self._without_room.popitem(last=False)
            self._changed[name] = None

    def step(self, now: Instant) -> None:
        """Settle one name; there must be one that waits."""
        name, _ = self._changed.popitem(last=False)
        self._settle(name, now)
        self._has_told = self._has_told and bool(self._without_room or self._changed)

    def _settle(self, name: str, now: Instant) -> None:
        site = owner_of(name)
        entry = self._area.get(name)
        if site is None or entry is None or entry.originator != site or entry.value is None:
            self._without_room.pop(name, None)
            self._drop(name, now)
            return
        key = name.encode()
        stored = self._store.entry(key, now)
        if name in self._held and stored is not None and stored.value == entry.value:
            return
        size = len(key) + len(entry.value) + KEY_OVERHEAD_BYTES
        if not self._fits(site, name, size):
            self._has_no_room(name, now, is_store_full=False)
        elif not self._store.put_import(key, entry.value, now):
            self._has_no_room(name, now, is_store_full=True)
        else:
            self._without_room.pop(name, None)
            self._account(site, name, size)
            self._pull(1)

    def _fits(self, site: str, name: str, size: int) -> bool:
        quota, held = self._quota, self._held.get(name)
        keys, more = (1, size) if held is None else (0, size - held)
        used, of_site = self._used, self._used_by.get(site) or _Used()
        return (
            used.keys + keys <= quota.max_keys
            and used.bytes + more <= quota.max_bytes
            and of_site.keys + keys <= quota.max_keys_of_a_site
            and of_site.bytes + more <= quota.max_bytes_of_a_site
        )

    def _account(self, site: str, name: str, size: int) -> None:
        """Zero bytes: it is gone."""
        before = self._held.pop(name, None)
        keys = (size > 0) - (before is not None)
        of_site = self._used_by.setdefault(site, _Used())
        for used in (self._used, of_site):
            used.add(keys, size - (before or 0))
        if size:
            self._held[name] = size
        elif not of_site.keys:
            del self._used_by[site]

    def _has_no_room(self, name: str, now: Instant, *, is_store_full: bool) -> None:
        if not self._has_told:
            self._has_told = True
            self.events.append(NotImported(name, is_store_full))
        self._without_room[name] = None
        self._drop(name, now)

    def _drop(self, name: str, now: Instant) -> None:
        site = owner_of(name)
        if site is not None and name in self._held:
            self._store.drop_import(name.encode(), now)
            self._account(site, name, 0)
            self._pull(1)
