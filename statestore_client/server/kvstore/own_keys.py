"""The keys that this site keeps alive: set, persist, refresh, unset, clear, erase, and their defence. (facts §5.4)

``set`` is advertised at once, and lost if another site overrides it; that it was lost is remembered until this site
says something else of it, or lets it go. ``persist`` is advertised within 100 ms, and again
whenever another site overrides it: its version is then one above that of the other one. Both are refreshed at a quarter
of their TTL, and never expire here.

===================================================  ==================================================================
what is stored, beside the own entry                 what happens
===================================================  ==================================================================
a lower version                                      nothing: the own entry is about to be advertised
a higher one, or the same and something else in it:
of this site's own name                              the version goes above, and it is advertised again, also if it was
                                                     ``set``: what this process says is newer than what a former one
                                                     of this site has said
of another site                                      persisted: the same; set: it is lost, :class:`KeyLost`
the same entry, a higher TTL version                 the TTL version goes above, and it is refreshed at once
===================================================  ==================================================================

*The last word* of a key that is ``unset`` goes above what a former process of this site has said in the same way, until
its TTL is over. Against another site it is not defended.

*Contest*: two sites that persist one key override each other for ever. After three rounds each of them says so
(:class:`KeyContested`) and goes on at the slowest pace, one advertisement in 8 s. The back-off is about overrides only:
a site whose own values change ten times a second says each of them.

A site that starts again says the same versions as before. So its TTL versions begin with ``started_ms``, the wall clock
of its start: they are above those of the former process, and all other sites begin the countdown anew, instead of
waiting for the end of what they have.

*Two living sites of one name* that are not neighbours see each other in such entries only. An answer to an entry of the
own name has a TTL version above that of what it answers. A former process answers nothing: an entry of the own name
whose TTL version is above the own one was said by a process that lives, or by one whose clock was ahead. The second
time, it lives: :class:`OwnNameInUse`.

Invariant: a key is here, or its end is certain. When one is let go, what is stored has a countdown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.area_store import KeyDeadlines
from statestore_client.wire.kvstore.value import INFINITE_TTL_MS, MAX_TTL_MS, MAX_VERSION, NoMergeReason, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from statestore_client.server.kvstore.area_store import AreaStore, MergeResult

# -- own key -----------------------------------------------------------------------------------------------------------
#
# One key that this site keeps alive: what it says, its back-off, and whether another site persists it as well.


#: After the first override, and doubled with the next one.
_FIRST_BACKOFF_MS: Final = 64
#: The pace of a key that is contested, or that finds no room.
SLOWEST_MS: Final = 8192
#: So often a key is overridden before it is contested.
CONTEST_ROUNDS: Final = 3
#: Entries of the own name that a former process can hardly have said: the first may be of one whose clock was ahead.
_NAMESAKE_ANSWERS: Final = 2
#: A key that is not overridden for this long is contested no more: several of the slowest rounds.
CALM_S: Final = 30.0


@attrs.frozen
class KeyLost:
    """Another site has overridden a key that was ``set`` here, or has used up its versions: it is refreshed no more."""

    key: str
    originator: str
    version: int


@attrs.frozen
class KeyContested:
    """Another site persists the same key: WARNING. One of the two must stop."""

    key: str
    originator: str


@attrs.frozen
class OwnNameInUse:
    """Another living site has the name of this one, and keeps this key alive, too: WARNING. Rename one of them."""

    key: str


OwnEvent: TypeAlias = KeyLost | KeyContested | OwnNameInUse


@attrs.define(eq=False)
class OwnKey:
    """``entry`` is what this site says; what is stored may be another one for a moment."""

    entry: Value
    is_persisted: bool
    #: When it was last advertised after a wait.
    advertised_at: float = float("-inf")
    #: Overrides without a calm in between, and the last one.
    rounds: int = 0
    overridden_at: float = float("-inf")
    #: Answers of another site of this name.
    namesakes: int = 0

    @property
    def backoff_ms(self) -> int:
        """It is advertised so far apart, at least. New values of this site alone need no back-off."""
        if self.is_contested:
            return SLOWEST_MS
        return _FIRST_BACKOFF_MS << self.rounds - 1 if self.rounds else 0

    @property
    def is_contested(self) -> bool:
        """Another site persists it as well."""
        return self.rounds >= CONTEST_ROUNDS

    def waits(self, now: float) -> float:
        """It is to be advertised: from when it may be."""
        return max(now, self.advertised_at + self.backoff_ms / 1000)

    def overridden(self, now: float) -> bool:
        """Another entry won. Returns whether the key has become contested by that."""
        self.rounds = self.rounds + 1 if now - self.overridden_at < CALM_S else 1
        self.overridden_at = now
        return self.rounds == CONTEST_ROUNDS

    def namesake_answers(self) -> bool:
        """Another process of this name has said something newer. Returns whether that shows for the first time."""
        self.namesakes += 1
        return self.namesakes == _NAMESAKE_ANSWERS

    def calm(self) -> None:
        """The defence is over."""
        self.rounds = 0


# -- lost keys ---------------------------------------------------------------------------------------------------------
#
# Keys that were set here and overridden by another site: what a program that has set them must be able to ask for.
#
# Losses are numbered from 1 at the start of the site. Who knows up to which number it has seen them misses none, but
# for those of keys that this site has said anew or let go meanwhile, and the oldest where there are too many.


#: Losses that are remembered.
_MOST_LOST: Final = 4_096


class LostKeys:
    """In the order of their losses."""

    __slots__ = ("_losses", "number")

    def __init__(self) -> None:
        #: Of the last loss; so many there were since the start.
        self.number: int = 0
        self._losses: dict[str, tuple[int, KeyLost]] = {}

    def __iter__(self) -> Iterator[KeyLost]:
        return (loss for _, loss in self._losses.values())

    def add(self, loss: KeyLost) -> None:
        """It was lost just now."""
        self.number += 1
        self._losses.pop(loss.key, None)
        self._losses[loss.key] = self.number, loss
        if len(self._losses) > _MOST_LOST:
            del self._losses[next(iter(self._losses))]

    def drop(self, key: str) -> None:
        """This site has said something else of it, or wants it no more."""
        self._losses.pop(key, None)

    def after(self, number: int) -> Iterator[tuple[int, KeyLost]]:
        """Those with a higher number, and their numbers."""
        return ((at, loss) for at, loss in self._losses.values() if at > number)


# -- own keys ----------------------------------------------------------------------------------------------------------


DEFAULT_KEY_TTL_MS: Final = 300_000
#: A shorter TTL would not get far: entries with less than 500 ms left are not sent on.
LEAST_KEY_TTL_MS: Final = 2_000
#: The TTL of what is erased, everywhere: long enough to get past slow lines before it is too short to be sent on.
ERASE_TTL_MS: Final = 5_000

#: A batch begins with the first call, and later calls join it.
_ADVERTISE_S: Final = 0.1
_UNSET_S: Final = 0.01
_REFRESH_S: Final = 0.1
#: Keys of a batch that are done at once: below a millisecond.
_SLICE: Final = 64


class OwnKeys:
    """``merge`` takes entries into the store and sends on what was accepted. Moments are monotonic seconds."""

    def __init__(
        self,
        store: AreaStore,
        site: str,
        merge: Callable[[dict[str, Value], float], MergeResult],
        *,
        key_ttl_ms: int = DEFAULT_KEY_TTL_MS,
        started_ms: int = 0,
    ) -> None:
        _check_ttl(key_ttl_ms)
        self._first_ttl_version = started_ms
        self.site = site
        self.key_ttl_ms = key_ttl_ms
        self.events: list[OwnEvent] = []
        self.lost: LostKeys = LostKeys()
        self._store = store
        self._merge = merge
        self._keys: dict[str, OwnKey] = {}
        self._advertise = KeyDeadlines()
        self._refresh = KeyDeadlines()
        self._unset = KeyDeadlines()
        self._unset_values: dict[str, bytes] = {}
        #: What was said last of keys that were unset, and until when that is defended.
        self._last_words: dict[str, Value] = {}
        self._ending = KeyDeadlines()
        #: When the defence of a key that was overridden is over.
        self._calm = KeyDeadlines()
        self._contested: set[str] = set()
        store.guard = self

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[str, OwnKey]]:
        return iter(self._keys.items())

    def get(self, key: str) -> OwnKey | None:
        """None if the key is not kept alive here."""
        return self._keys.get(key)

    @property
    def contested(self) -> int:
        """How many keys another site persists as well."""
        return len(self._contested)

    # -- what callers ask ----------------------------------------------------------------------------------------------

    def set(
        self, key: str, value: bytes, now: float, *, version: int | None = None, ttl_ms: int | None = None
    ) -> NoMergeReason | None:
        """Advertise at once, and keep alive until another site overrides it. ``version``: one above what is stored.

        None if it was taken; else the reason, and nothing has changed. Raises InvalidArgumentError for a TTL that is
        too short to be kept alive.
        """
        ttl_ms = self.key_ttl_ms if ttl_ms is None else ttl_ms
        _check_ttl(ttl_ms)
        version = self._version_above(key) if version is None else version
        before = self._keys.get(key)
        own = self._keys[key] = OwnKey(
            self._first(version, value, ttl_ms), is_persisted=False, namesakes=0 if before is None else before.namesakes
        )
        reason = self._merge({key: own.entry}, now).reasons.get(key)
        if reason is not None:
            if before is None:
                del self._keys[key]
            else:
                self._keys[key] = before
            return reason
        self._forget_past(key)
        self._advertise.drop(key)
        self._end_defence(key)
        self._schedule_refresh(key, own, now)
        return None

    def persist(self, key: str, value: bytes, now: float, *, least_version: int = 1) -> NoMergeReason | None:
        """Advertise within 100 ms, keep alive, and defend. The same value again changes nothing. A new value has at
        least that version.

        None if it was taken; else the reason, and nothing has changed.
        """
        own, stored = self._keys.get(key), self._store.get(key)
        if own is not None and own.entry.value == value:
            own.is_persisted = True
            if own.entry.ttl_ms != self.key_ttl_ms:
                own.entry = attrs.evolve(own.entry, ttl_ms=self.key_ttl_ms)
                self._refresh.put(key, now)
            return None
        if own is None and stored is not None and stored.originator == self.site and stored.value == value:
            self._adopt(key, stored, now)
            return None
        entry = self._first(max(self._version_above(key), least_version), value, self.key_ttl_ms)
        reason = NoMergeReason.INVALID_VERSION if entry.version > MAX_VERSION else self._store.refusal(key, entry)
        if reason is not None:
            return reason
        self._forget_past(key)
        if own is None:
            own = self._keys[key] = OwnKey(entry, is_persisted=True)
        else:
            own.entry, own.is_persisted = entry, True
        self._pend(key, own, now)
        return None

    def _adopt(self, key: str, stored: Value, now: float) -> None:
        """What is stored is what this site would say."""
        self._forget_past(key)
        entry = Value(stored.version, self.site, stored.value, self.key_ttl_ms, stored.ttl_version)
        own = self._keys[key] = OwnKey(entry, is_persisted=True)
        self._schedule_refresh(key, own, now)
        if stored.ttl_ms != self.key_ttl_ms or not self._store.has_left(key, self.key_ttl_ms * 3 // 4, now):
            self._refresh.put(key, now)

    def refresh(self, key: str, ttl_ms: int, now: float) -> NoMergeReason | None:
        """Begin the time to live of a stored key again, with another TTL. A key that was ``set`` here keeps that TTL.

        None if that was done; NO_NEED_TO_UPDATE if there is no such key. Raises InvalidArgumentError for a key that is
        persisted here, as its TTL is the one of the settings, and for a TTL that cannot be kept alive.
        """
        own, stored = self._keys.get(key), self._store.get(key)
        if own is not None and own.is_persisted:
            raise InvalidArgumentError(f"key {key!r} is persisted here: it is refreshed without being asked")
        if stored is None:
            return NoMergeReason.NO_NEED_TO_UPDATE
        if own is not None:
            _check_ttl(ttl_ms)
        entry = Value(stored.version, stored.originator, None, ttl_ms, stored.ttl_version + 1)
        reason = self._merge({key: entry}, now).reasons.get(key)
        if own is not None and reason is None:
            own.entry = attrs.evolve(own.entry, ttl_ms=ttl_ms, ttl_version=entry.ttl_version)
            self._schedule_refresh(key, own, now)
        return reason

    def unset(self, key: str, value: bytes, now: float) -> NoMergeReason | None:
        """Say this value once more, within 10 ms, and let it expire. Nothing is said of a key that is not stored.

        Until it has expired it is said again where a sync brings what a former process of this site has said.

        None if it was taken; else the reason, and nothing has changed.
        """
        stored = self._store.get(key)
        if stored is not None:
            entry = self._last_word(stored, value)
            reason = NoMergeReason.INVALID_VERSION if entry.version > MAX_VERSION else self._store.refusal(key, entry)
            if reason is not None:
                return reason
        since = self._unset.at(key)
        self.clear(key, now)
        if stored is not None:
            self._unset_values[key] = value  # the last one counts, and the first one's window
            self._unset.put(key, now if since is None else since)
        return None

    def _last_word(self, stored: Value, value: bytes) -> Value:
        ttl_ms = self.key_ttl_ms if stored.ttl_ms == INFINITE_TTL_MS else stored.ttl_ms
        return self._first(stored.version + 1, value, ttl_ms)

    def clear(self, key: str, now: float) -> bool:
        """Keep it alive no longer: it ends with its TTL. Returns whether it was kept alive."""
        self._forget_past(key)
        self._advertise.drop(key)
        self._refresh.drop(key)
        self._end_defence(key)
        if self._keys.pop(key, None) is None:
            return False
        self._store.released(key, now)
        return True

    def erase(self, key: str, now: float) -> bool:
        """End what this site has said, everywhere: within ERASE_TTL_MS where this gets to, else when its TTL is over.

        Returns whether there was something to end. What another site has said stays.
        """
        was_own = self.clear(key, now)
        stored = self._store.get(key)
        if stored is None or stored.originator != self.site:
            return was_own
        if not self._store.has_left(key, ERASE_TTL_MS, now):
            return True
        entry = Value(stored.version, self.site, None, ERASE_TTL_MS, stored.ttl_version + 1)
        self._merge({key: entry}, now)
        return True

    # -- what the store says -------------------------------------------------------------------------------------------

    def guards(self, key: str) -> bool:
        """It never expires here."""
        return key in self._keys

    def minds(self, key: str) -> bool:
        """It is kept alive here, or this site has said the last word of it."""
        return key in self._keys or key in self._last_words

    def changed(self, key: str, entry: Value, now: float) -> None:
        """The table of this module."""
        own = self._keys.get(key)
        mine = self._last_words[key] if own is None else own.entry
        if entry.version < mine.version:
            return
        if entry.version == mine.version and entry.originator == self.site and entry.value == mine.value:
            if own is not None and entry.ttl_version > mine.ttl_version:
                own.entry = attrs.evolve(mine, ttl_version=entry.ttl_version)
                self._refresh.put(key, now)
        elif own is None:
            self._repeat_last_word(key, entry, now)
        elif entry.version >= MAX_VERSION or not (own.is_persisted or entry.originator == self.site):
            self._lose(key, entry, now)
        else:
            self._go_above(key, own, entry, now)

    def _repeat_last_word(self, key: str, entry: Value, now: float) -> None:
        """``entry`` stands in its place. It ends when it would have ended, so that this does not go on for ever."""
        if entry.originator == self.site and entry.version < MAX_VERSION:
            self._unset_values[key] = self._last_words[key].value or b""
            self._unset.put(key, now)
        else:
            self._forget_past(key)

    def _go_above(self, key: str, own: OwnKey, entry: Value, now: float) -> None:
        """Advertise what this site says with a version above that of ``entry``, which has won."""
        is_own_name, ttl_version = entry.originator == self.site, self._first_ttl_version
        if is_own_name:
            ttl_version = max(ttl_version, min(entry.ttl_version + 1, MAX_VERSION))
            if entry.ttl_version > own.entry.ttl_version and own.namesake_answers():
                self.events.append(OwnNameInUse(key))
        own.entry = attrs.evolve(own.entry, version=entry.version + 1, ttl_version=ttl_version)
        has_become_contested = own.overridden(now)
        if is_own_name or not own.is_contested:
            self._contested.discard(key)
        else:
            self._contested.add(key)
            if has_become_contested:
                self.events.append(KeyContested(key, entry.originator))
        self._calm.put(key, now + CALM_S)
        self._pend(key, own, now)

    def _end_defence(self, key: str) -> None:
        self._calm.drop(key)
        self._contested.discard(key)

    def _lose(self, key: str, entry: Value, now: float) -> None:
        self.clear(key, now)
        loss = KeyLost(key, entry.originator, entry.version)
        self.lost.add(loss)
        self.events.append(loss)

    def _first(self, version: int, value: bytes, ttl_ms: int) -> Value:
        """A version when it is said first."""
        return Value(version, self.site, value, ttl_ms, self._first_ttl_version)

    def _version_above(self, key: str) -> int:
        own, stored = self._keys.get(key), self._store.get(key)
        return max(0 if own is None else own.entry.version, 0 if stored is None else stored.version) + 1

    # -- batches -------------------------------------------------------------------------------------------------------

    def _pend(self, key: str, own: OwnKey, now: float) -> None:
        """To be advertised, but not before its back-off is over."""
        if key not in self._advertise:
            self._advertise.put(key, own.waits(now))

    def _schedule_refresh(self, key: str, own: OwnKey, now: float) -> None:
        self._refresh.put(key, now + own.entry.ttl_ms / 4000)

    def _forget_past(self, key: str) -> None:
        """What was to be said of it last, and that it was lost."""
        self.lost.drop(key)
        self._unset.drop(key)
        self._unset_values.pop(key, None)
        self._ending.drop(key)
        self._last_words.pop(key, None)

    def next_deadline(self) -> float | None:
        """When to call :meth:`tick`."""
        batches = ((self._advertise, _ADVERTISE_S), (self._refresh, _REFRESH_S), (self._unset, _UNSET_S))
        times = [first + width for batch, width in batches if (first := batch.next()) is not None]
        times += [at for each in (self._calm, self._ending) if (at := each.next()) is not None]
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Do what is due, some of it: call it again while :meth:`next_deadline` is not later."""
        if _is_due(self._unset, _UNSET_S, now):
            self._unset_batch(now)
        if _is_due(self._advertise, _ADVERTISE_S, now):
            self._advertise_batch(now)
        if _is_due(self._refresh, _REFRESH_S, now):
            self._refresh_batch(now)
        for key in self._calm.pop_due(now, _SLICE):
            self._keys[key].calm()
            self._contested.discard(key)
        for key in self._ending.pop_due(now, _SLICE):
            self._forget_past(key)

    def _unset_batch(self, now: float) -> None:
        entries = {}
        for key in self._unset.pop_due(now, _SLICE):
            value, stored = self._unset_values.pop(key), self._store.get(key)
            if stored is not None:
                entry = entries[key] = self._last_words[key] = self._last_word(stored, value)
                if key not in self._ending:
                    self._ending.put(key, now + entry.ttl_ms / 1000)
        for key in self._merge(entries, now).reasons:
            self._forget_past(key)

    def _advertise_batch(self, now: float) -> None:
        entries = {}
        for key in self._advertise.pop_due(now, _SLICE):
            own = self._keys[key]
            entries[key] = own.entry
            own.advertised_at = now
            self._schedule_refresh(key, own, now)
        for key, reason in self._merge(entries, now).reasons.items():
            if reason is NoMergeReason.NO_ROOM:
                self._advertise.put(key, now + SLOWEST_MS / 1000)
            elif reason is NoMergeReason.INVALID_VERSION:
                self._lose(key, self._keys[key].entry, now)

    def _refresh_batch(self, now: float) -> None:
        entries = {}
        for key in self._refresh.pop_due(now, _SLICE):
            own = self._keys[key]
            self._schedule_refresh(key, own, now)
            entry = self._refreshed(key, own, now)
            if entry is not None:
                entries[key] = entry
        self._merge(entries, now)

    def _refreshed(self, key: str, own: OwnKey, now: float) -> Value | None:
        """What refreshes a key: its TTL alone, or all of it where that is late. None if it is advertised anyway."""
        mine, stored = own.entry, self._store.get(key)
        if key in self._advertise:
            return None
        if stored is None or stored.version != mine.version or mine.ttl_version >= MAX_VERSION:
            own.entry = attrs.evolve(mine, version=self._version_above(key), ttl_version=self._first_ttl_version)
            self._pend(key, own, now)
            return None
        own.entry = attrs.evolve(mine, ttl_version=max(mine.ttl_version, stored.ttl_version) + 1)
        # Late, the key may be over at some sites already, and a TTL alone says nothing to them.
        is_late = not self._store.has_left(key, mine.ttl_ms // 2, now)
        return own.entry if is_late else attrs.evolve(own.entry, value=None)


def _is_due(batch: KeyDeadlines, width_s: float, now: float) -> bool:
    first = batch.next()
    return first is not None and first + width_s <= now


def _check_ttl(ttl_ms: int) -> None:
    if not LEAST_KEY_TTL_MS <= ttl_ms <= MAX_TTL_MS:
        raise InvalidArgumentError(
            f"a TTL of {ttl_ms} ms; a key that is kept alive has {LEAST_KEY_TTL_MS} to {MAX_TTL_MS}"
        )
