"""Carry chosen keys of the state store to other sites through the KvStore, and theirs back, read-only.

It takes changes on either side, and does a bounded piece of what follows at a time.

Invariant: no loop. Only keys that are not below ``sites/`` leave, and what arrives is put below ``sites/`` alone.

A bridge begins with a state store and an area in any state. It keeps nothing of its own that it could not find out
again from both: a server that starts, or takes over from another one, makes a new one.

Source: ``docs/decisions/bridge.md``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.server.store.keyspace import KEY_OVERHEAD_BYTES
from statestore_client.wire.kvstore.value import MAX_KEY_BYTES, MAX_VERSION, RESERVED, NoMergeReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore_client.server.kvstore.area import Area
    from statestore_client.server.store import SiteStore
    from statestore_client.server.store.keyspace import Change, Entry
    from statestore_client.wire.hlc import HlcTimestamp
    from statestore_client.wire.instant import Instant
    from statestore_client.wire.kvstore.value import Value

# -- names ------------------------------------------------------------------------------------------------------------
#
# How a key of one site's state store is called at all others: ``sites/NAME/KEY``, in the KvStore and in their stores.
#
# So no two sites ever speak of the same key, and whoever sees one knows whose it is. Source:
# ``docs/decisions/bridge.md``.


#: What other sites have is below this. No client writes there, and nothing from there is exported.
RESERVED_BYTES: Final = RESERVED.encode()

_COUNTER_BITS: Final = 20
_MAX_COUNTER: Final = (1 << _COUNTER_BITS) - 1
#: Half of all versions, so that there is always one above. A clock of the year 2109 is the first to reach it.
_MAX_EXPORTED: Final = MAX_VERSION // 2


def exported_name(site: str, key: bytes) -> str | None:
    """The name of this site's key in the KvStore; None if it cannot have one: it is not UTF-8, or too long."""
    try:
        name = f"{RESERVED}{site}/{key.decode()}"
    except UnicodeDecodeError:
        return None
    return name if key and len(name.encode()) <= MAX_KEY_BYTES else None


def owner_of(name: str) -> str | None:
    """The site whose key that is; None if it is not the name of an exported key."""
    if not name.startswith(RESERVED):
        return None
    site, _, key = name[len(RESERVED) :].partition("/")
    return site if site and key else None


def key_under(site: str, name: str) -> bytes:
    """What :func:`exported_name` was made of."""
    return name[len(RESERVED) + len(site) + 1 :].encode()


def version_of(version: HlcTimestamp) -> int:
    """A number in the order of the versions of the state store.

    Where more than a million SETs share a millisecond, two versions may get one number; the KvStore then takes the
    next one.
    """
    return min(version.wall_ms << _COUNTER_BITS | min(version.counter, _MAX_COUNTER), _MAX_EXPORTED)


# -- exports -----------------------------------------------------------------------------------------------------------
#
# Out: the chosen keys of this site's state store, kept alive in the KvStore.
#
# ================================================  ====================================================================
# a key of the state store                          in the KvStore
# ================================================  ====================================================================
# below a chosen prefix                             persisted: advertised, refreshed and defended
# the same, with an expiry or a fencing mark        erased: it may be a lock
# the same, but its name or value does not fit      erased, counted, and said once
# deleted                                           erased
# below ``sites/``, or below no chosen prefix       nothing: what has come from a site never leaves for another one
# ================================================  ====================================================================
#
# An entry of the KvStore below the own name that is not in the state store is erased: a site that starts again is given
# back by the others what it has said before, and some of that may have been deleted meanwhile.
#
# Changes are noted by key and settled later, a slice at a time, against what the state store has by then. At the start
# all keys below the prefixes are looked at in the same way.


#: Keys without room that are tried again at once: a few milliseconds, in several turns.
_RETRIES: Final = 256

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
        self._reported: set[str] = set()
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

    # -- changes on either side ---------------------------------------------------------------------------------------

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
        self._pull(_RETRIES)
        return self.has_work

    def _pull(self, number: int) -> None:
        """The ones that wait longest."""
        for _ in range(min(number, len(self._without_room))):
            key, _none = self._without_room.popitem(last=False)
            self._changed[key] = None

    # -- work ----------------------------------------------------------------------------------------------------------

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
        if reason not in self._reported:
            self._reported.add(reason)
            self.events.append(NotExported(key, reason))

    def _accept(self, key: bytes) -> None:
        """Nothing is wrong with it, as far as is known."""
        reason = self._refused.pop(key, None)
        self._without_room.pop(key, None)
        if reason is not None:
            self.refused[reason] -= 1


# -- imports -----------------------------------------------------------------------------------------------------------
#
# In: the keys of other sites, in this site's state store below ``sites/NAME/``.
#
# A name of the KvStore is believed if the site that it names is the originator of the entry. Changes are noted by name
# and settled later, a slice at a time, against what the area has by then.
#
# Imports have a quota of their own, together and for each site, so that neither all other sites nor one of them use up
# what this site's clients have. What does not fit is missing here, an older value of it too, and is tried again when
# there is room.


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
        self._has_reported = False

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
        self._pull(_RETRIES)
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
        self._has_reported = self._has_reported and bool(self._without_room or self._changed)

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
        if not self._has_reported:
            self._has_reported = True
            self.events.append(NotImported(name, is_store_full))
        self._without_room[name] = None
        self._drop(name, now)

    def _drop(self, name: str, now: Instant) -> None:
        site = owner_of(name)
        if site is not None and name in self._held:
            self._store.drop_import(name.encode(), now)
            self._account(site, name, 0)
            self._pull(1)


# -- both directions --------------------------------------------------------------------------------------------------

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
                self._reserved_changed(name, area.get(name))
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

    # -- changes on either side ---------------------------------------------------------------------------------------

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
            self._reserved_changed(name, entry)
            self._wake()

    def _reserved_changed(self, name: str, entry: Value | None) -> None:
        if name.startswith(self._own_names):
            # What this site keeps alive defends itself; the rest is of an earlier life.
            if entry is None or entry.originator != self._site or not self._area.own.guards(name):
                self.exports.area_changed(key_under(self._site, name))
        elif self._imports and owner_of(name) is not None:
            self.imports.changed(name, is_there=entry is not None)
