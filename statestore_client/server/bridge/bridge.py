"""Both directions together: what hears of changes on either side, and does a bounded piece of what follows at a time.

Invariant: no loop. Only keys that are not below ``sites/`` leave, and what arrives is put below ``sites/`` alone.

A bridge begins with a state store and an area in any state. It keeps nothing of its own that it could not find out
again from both: a server that starts, or takes over from another one, makes a new one.

Source: ``docs/decisions/0048-a-bridge-between-the-stores.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from statestore_client.server.bridge.exports import Exports, NotExported
from statestore_client.server.bridge.imports import DEFAULT_QUOTA, ImportQuota, Imports, NotImported
from statestore_client.server.bridge.names import key_under, owner_of
from statestore_client.wire.kvstore.value import RESERVED

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.store import SiteStore
    from statestore_client.server.store.keyspace import Change, Entry
    from statestore_client.wire.instant import Instant
    from statestore_client.wire.kvstore.value import Value

__all__ = ["Bridge", "BridgeEvent", "BridgeOptions"]

BridgeEvent: TypeAlias = NotExported | NotImported


@attrs.frozen
class BridgeOptions:
    """``exports`` are prefixes of keys. Unless it ``imports``, a site sees nothing of the others."""

    exports: tuple[bytes, ...] = ()
    imports: bool = False
    quota: ImportQuota = DEFAULT_QUOTA


class Bridge:
    """Between one state store and one area, whose sums must be kept already. ``on_work`` is called when there is
    something to do for :meth:`step` and was nothing before.
    """

    def __init__(
        self,
        store: SiteStore,
        area: Area,
        site: str,
        options: BridgeOptions,
        on_work: Callable[[], object],
    ) -> None:
        self.exports: Exports = Exports(store, area, site, options.exports)
        self.imports: Imports = Imports(store, area, options.quota)
        self._store = store
        self._area = area
        self._site = site
        self._own_names = f"{RESERVED}{site}/"
        self._imports = options.imports
        self._on_work = on_work
        self._is_working = False
        self._before = area.store.on_change
        area.store.on_change = self._area_changed
        area.is_bridged = True
        store.on_change = self._store_changed
        for name in (*area.store, *(name for name, _ in area.own)):
            if name.startswith(self._own_names):
                self.exports.area_changed(key_under(site, name))
            else:
                self._hear(name, area.get(name))
        self._wake()

    def close(self) -> None:
        """Hear nothing more. What was exported ends with its time to live, unless another bridge goes on."""
        self._area.store.on_change = self._before
        self._area.is_bridged = False
        self._store.on_change = lambda _key, _entry: None

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return self.exports.has_work or self.imports.waiting > 0

    def step(self, now: Instant, moment: float) -> tuple[Change, ...]:
        """Do a little: some dozen microseconds. Returns what observers are to be told. ``moment`` is the area's."""
        if self.imports.waiting:
            self.imports.step(now)
        if self.exports.has_work:
            self.exports.step(now, moment)
        self._is_working = self.has_work
        return self._store.take_changes()

    def try_again(self) -> None:
        """Look again at what had no room."""
        if self.exports.try_again() | self.imports.try_again():
            self._wake()

    @property
    def waiting(self) -> int:
        """What has changed and was not looked at since; at the start there may be more than is known yet."""
        return self.exports.waiting + self.imports.waiting

    @property
    def has_refused(self) -> bool:
        """Whether there is something for :meth:`try_again`."""
        return self.exports.without_room > 0 or self.imports.without_room > 0

    def take_events(self) -> list[BridgeEvent]:
        """What happened since the last call."""
        events: list[BridgeEvent] = [*self.exports.events, *self.imports.events]
        self.exports.events.clear()
        self.imports.events.clear()
        return events

    # -- what is heard -------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._is_working and self.has_work:
            self._is_working = True
            self._on_work()

    def _store_changed(self, key: bytes, entry: Entry | None) -> None:
        self.exports.store_changed(key, entry)
        self._wake()

    def _area_changed(self, name: str, entry: Value | None) -> None:
        if self._before is not None:
            self._before(name, entry)
        if name.startswith(RESERVED):
            self._hear(name, entry)
            self._wake()

    def _hear(self, name: str, entry: Value | None) -> None:
        if name.startswith(self._own_names):
            # What this site keeps alive defends itself; the rest is of an earlier life.
            if entry is None or entry.originator != self._site or not self._area.own.guards(name):
                self.exports.area_changed(key_under(self._site, name))
        elif self._imports and owner_of(name) is not None:
            self.imports.changed(name, is_there=entry is not None)
