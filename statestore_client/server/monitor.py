"""What the monitor remembers: who held which lock when, what has changed lately, and how long requests took.

The lock timeline has who held a lock, who waited, and whose writes were refused. A key is taken for a lock when a
client claims it as the clients of this package and the official ones do: a SET with a condition and an expiry. The
version that grants it is the fencing token of the whole holding (``docs/decisions/versions-and-tokens.md``).

Times are milliseconds of the wall clock. Nobody tells that a lease is over: the timeline sees it by the clock.
Invariant: of a lock only the last holding has not ended. Invariant: a token is known as long as its holding is.
Invariant: ``_by_client`` and the ``clients`` of all locks hold the same pairs: thousands of clients may leave at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice
from math import log
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from statestore_client.wire.hlc import HlcTimestamp

#: In place of what a viewer may not read.
_HIDDEN: Final = "(hidden)"

#: Locks that are remembered: those that were claimed last.
_LOCKS: Final = 100
#: Holdings of each, the last ones, and those that wait for it.
_HOLDINGS: Final = 50
_WAITING: Final = 50
#: Clients of each that are looked for when they come and go: the last ones that claimed it.
_CLIENTS: Final = 100
_REFUSALS: Final = 200

#: A contender tries again when a lock changes hands. One that has not done so after this time waits no more.
_TRIES_AGAIN_MS: Final = 15_000


@attrs.define(eq=False)
class Holding:
    """One client held a lock from ``began`` on: until it ``ended``, or at most ``until`` if nobody renews it.

    ``how`` it ended: ``released``, ``expired``, ``deleted`` (by a client that does not say whose it was) or
    ``overwritten``. ``gone``: since when the client of the holder is not connected.
    """

    number: int
    holder: str
    client: str
    token: HlcTimestamp
    began: int
    until: int
    ended: int | None = None
    how: str | None = None
    renewals: int = 0
    writes: int = 0
    gone: int | None = None

    def encoded(self) -> dict[str, Any]:
        """For JSON."""
        values = {field.name: getattr(self, field.name) for field in attrs.fields(Holding)}
        return values | {"token": str(self.token)}


@attrs.define(eq=False)
class ClaimedKey:
    """A key that clients claim."""

    number: int
    key: bytes
    holdings: deque[Holding] = attrs.field(factory=lambda: deque(maxlen=_HOLDINGS))
    waiting: dict[str, tuple[str, int, int]] = attrs.Factory(dict)  # holder: its client, since when, its last try
    changed: dict[Holding, None] = attrs.Factory(dict)  # since the viewers were told
    clients: dict[str, None] = attrs.Factory(dict)

    @property
    def current(self) -> Holding | None:
        """The holding that has not ended, as far as is known."""
        last = self.holdings[-1] if self.holdings else None
        return None if last is None or last.ended is not None else last

    def encoded(self, holdings: list[Holding]) -> dict[str, Any]:
        """With these of its holdings."""
        waiting = [{"holder": name, "client": c, "since": since} for name, (c, since, _) in self.waiting.items()]
        return {
            "number": self.number,
            "key": shown(self.key),
            "waiting": waiting,
            "holdings": [holding.encoded() for holding in holdings],
        }


@attrs.frozen
class RefusedWrite:
    """A write that the store refused, and why. ``token`` is the one of the request, ``mark`` the one that protects the
    key. ``holding`` and ``marked_by`` say whose they are, as lock, holder and number of the holding, if that is known.
    """

    at: int
    client: str
    action: str
    key: str
    why: str
    token: str | None = None
    mark: str | None = None
    holding: tuple[str, str, int] | None = None
    marked_by: tuple[str, str, int] | None = None


@attrs.define(eq=False)
class LockTimeline:
    """Of one server. What it is told has happened."""

    _locks: OrderedDict[bytes, ClaimedKey] = attrs.Factory(OrderedDict)
    _by_client: dict[str, dict[ClaimedKey, None]] = attrs.Factory(dict)
    _by_token: dict[HlcTimestamp, tuple[ClaimedKey, Holding]] = attrs.Factory(dict)
    _changed: dict[ClaimedKey, None] = attrs.Factory(dict)
    _refusals: deque[RefusedWrite] = attrs.field(factory=lambda: deque(maxlen=_REFUSALS))
    _unsent: deque[RefusedWrite] = attrs.field(factory=lambda: deque(maxlen=_REFUSALS))
    _count: int = 0

    # -- what happens -------------------------------------------------------------------------------------------------

    def granted(self, key: bytes, holder: bytes, client: str, lease_ms: int, version: HlcTimestamp, now: int) -> None:
        """A claim was applied: a new holding, or a renewal of the present one."""
        lock = self._lock(key)
        self._involve(lock, shown(client))
        name, current = shown(holder), self._live(lock, now)
        lock.waiting.pop(name, None)
        if current is not None and current.holder == name:
            current.until, current.renewals = now + lease_ms, current.renewals + 1
            current.client, current.gone = shown(client), None
            self._touch(lock, current)
            return
        if current is not None:
            self._end(lock, current, now, "overwritten")
        self._begin(lock, Holding(self._next(), name, shown(client), version, now, now + lease_ms))

    def missed(
        self, key: bytes, holder: bytes, client: str, now: int, present: tuple[bytes, HlcTimestamp, int]
    ) -> None:
        """A claim was not applied: ``present`` are the holder of the lock, the version and the end of the lease."""
        lock = self._lock(key)
        if self._live(lock, now) is None:  # it held the lock before anybody looked
            value, version, until = present
            self._begin(lock, Holding(self._next(), shown(value), "", version, now, until))
        name = shown(holder)
        self._involve(lock, shown(client))
        known = lock.waiting.get(name)
        if known is not None or len(lock.waiting) < _WAITING:
            lock.waiting[name] = (shown(client), now if known is None else known[1], now)
        self._changed[lock] = None

    def removed(self, key: bytes, now: int, *, by_holder: bool) -> None:
        """The key was deleted; ``by_holder``: by a client that knew the holder's name."""
        self._close(key, now, "released" if by_holder else "deleted")

    def overwritten(self, key: bytes, now: int) -> None:
        """A SET that claims nothing was applied."""
        self._close(key, now, "overwritten")

    def wrote(self, token: HlcTimestamp) -> None:
        """A write with this fencing token was applied."""
        known = self._by_token.get(token)
        if known is not None:
            known[1].writes += 1
            self._touch(*known)

    def refused(self, refusal: RefusedWrite, token: HlcTimestamp | None, mark: HlcTimestamp | None) -> None:
        """A write was refused."""
        refusal = attrs.evolve(
            refusal,
            token=None if token is None else str(token),
            mark=None if mark is None else str(mark),
            holding=self._whose(token),
            marked_by=self._whose(mark),
        )
        self._refusals.append(refusal)
        self._unsent.append(refusal)

    def left(self, client: str, now: int) -> None:
        """A client is not connected any more."""
        name = shown(client)
        for lock in self._by_client.get(name, ()):
            current = lock.current
            if current is not None and current.client == name and current.gone is None:
                current.gone = now
                self._touch(lock, current)
            for holder in [holder for holder, (waiting, _, _) in lock.waiting.items() if waiting == name]:
                del lock.waiting[holder]
                self._changed[lock] = None

    def came(self, client: str) -> None:
        """A client is connected, perhaps again."""
        name = shown(client)
        for lock in self._by_client.get(name, ()):
            current = lock.current
            if current is not None and current.client == name and current.gone is not None:
                current.gone = None
                self._touch(lock, current)

    def tick(self, now: int) -> None:
        """See which leases are over, and who waits no more."""
        for lock in self._locks.values():
            self._live(lock, now)
            changed_hands = lock.holdings[-1].began if lock.holdings else now
            for holder, (_, _, tried) in tuple(lock.waiting.items()):
                if tried < changed_hands and now > changed_hands + _TRIES_AGAIN_MS:
                    del lock.waiting[holder]
                    self._changed[lock] = None

    # -- what is told -------------------------------------------------------------------------------------------------

    def all(self, *, unsent: bool = True) -> dict[str, Any]:
        """``locks`` and ``refusals``; without the refusals that :meth:`take_changes` is about to tell, if not
        ``unsent``.
        """
        count = len(self._refusals) - (0 if unsent else len(self._unsent))
        return {
            "locks": [lock.encoded(list(lock.holdings)) for lock in self._locks.values()],
            "refusals": [attrs.asdict(refusal) for refusal in islice(self._refusals, count)],
        }

    def keys(self) -> Iterable[bytes]:
        """All that clients claim."""
        return self._locks.keys()

    def take_changes(self) -> dict[str, Any]:
        """The same, of what has changed since the last time, for those that are here."""
        locks = [lock.encoded(list(lock.changed)) for lock in self._changed]
        refusals = [attrs.asdict(refusal) for refusal in self._unsent]
        for lock in self._changed:
            lock.changed.clear()
        self._changed.clear()
        self._unsent.clear()
        return {"locks": locks, "refusals": refusals}

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _lock(self, key: bytes) -> ClaimedKey:
        lock = self._locks.get(key)
        if lock is None:
            if len(self._locks) >= _LOCKS:
                self._forget()
            lock = self._locks[key] = ClaimedKey(self._next(), key)
        self._locks.move_to_end(key)
        return lock

    def _forget(self) -> None:
        """The one that was claimed first, of those that nobody holds if there are some."""
        oldest = islice(self._locks.values(), _LOCKS // 2)
        free = next((lock.key for lock in oldest if lock.current is None), next(iter(self._locks)))
        lock = self._locks.pop(free)
        self._changed.pop(lock, None)
        for client in tuple(lock.clients):
            self._part(lock, client)
        for holding in lock.holdings:
            self._by_token.pop(holding.token, None)

    def _involve(self, lock: ClaimedKey, client: str) -> None:
        """The client has claimed it, the last of all."""
        lock.clients.pop(client, None)
        lock.clients[client] = None
        self._by_client.setdefault(client, {})[lock] = None
        if len(lock.clients) > _CLIENTS:
            self._part(lock, next(iter(lock.clients)))

    def _part(self, lock: ClaimedKey, client: str) -> None:
        del lock.clients[client]
        locks = self._by_client[client]
        del locks[lock]
        if not locks:
            del self._by_client[client]

    def _live(self, lock: ClaimedKey, now: int) -> Holding | None:
        """The holding of now: a lease that is over has ended."""
        current = lock.current
        if current is not None and current.until <= now:
            self._end(lock, current, current.until, "expired")
            return None
        return current

    def _close(self, key: bytes, now: int, how: str) -> None:
        lock = self._locks.get(key)
        current = None if lock is None else self._live(lock, now)
        if lock is not None and current is not None:
            self._end(lock, current, now, how)

    def _begin(self, lock: ClaimedKey, holding: Holding) -> None:
        if len(lock.holdings) == _HOLDINGS:
            self._by_token.pop(lock.holdings[0].token, None)
        lock.holdings.append(holding)
        self._by_token[holding.token] = lock, holding
        self._touch(lock, holding)

    def _end(self, lock: ClaimedKey, holding: Holding, at: int, how: str) -> None:
        holding.ended, holding.how = at, how
        self._touch(lock, holding)

    def _touch(self, lock: ClaimedKey, holding: Holding) -> None:
        lock.changed[holding] = None
        if len(lock.changed) > _HOLDINGS:
            del lock.changed[next(iter(lock.changed))]
        self._changed[lock] = None

    def _whose(self, token: HlcTimestamp | None) -> tuple[str, str, int] | None:
        known = None if token is None else self._by_token.get(token)
        return None if known is None else (shown(known[0].key), known[1].holder, known[1].number)


def without_holders(
    message: dict[str, Any], keys: Iterable[bytes], may_read: Callable[[bytes], bool]
) -> dict[str, Any]:
    """``locks`` and ``refusals`` of a message for somebody who may not read all of these keys. Who holds a lock is the
    value of its key. A text may stand for several keys, and for one that was forgotten.
    """
    readable: dict[str, bool] = {}
    for key in keys:
        text = shown(key)
        readable[text] = may_read(key) and readable.get(text, True)

    def hidden(lock: str) -> bool:
        return not readable.get(lock, False)

    def about(holding: tuple[str, str, int] | None) -> tuple[str, str, int] | None:
        return (holding[0], _HIDDEN, holding[2]) if holding is not None and hidden(holding[0]) else holding

    return {
        "locks": [
            lock | {each: [entry | {"holder": _HIDDEN} for entry in lock[each]] for each in ("waiting", "holdings")}
            if hidden(lock["key"])
            else lock
            for lock in message["locks"]
        ],
        "refusals": [
            refusal | {each: about(refusal[each]) for each in ("holding", "marked_by")}
            for refusal in message["refusals"]
        ],
    }


# -- samples -----------------------------------------------------------------------------------------------------------
#
# The last changes of keys, how long requests took, and how keys and values are shown.


#: Changes of all keys together. They are small: of a value the beginning is kept.
_CHANGES: Final = 5_000
_VALUE_BYTES: Final = 64
#: A longer key is not remembered: a few thousand of them would be much.
_KEY_BYTES: Final = 1_024


@attrs.frozen
class KeyChange:
    """A SET or a deletion that was applied."""

    at: int  # milliseconds of the wall clock
    key: bytes
    client: str
    action: str
    version: str
    size: int
    value: bytes  # its beginning

    def encoded(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "at": self.at,
            "client": self.client,
            "action": self.action,
            "version": self.version,
            "size": self.size,
            "value": shown(self.value),
        }


@attrs.define(eq=False)
class ChangeLog:
    """Of one server, the last ones."""

    _changes: deque[KeyChange] = attrs.field(factory=lambda: deque(maxlen=_CHANGES))

    def add(self, at: int, key: bytes, client: str, action: str, version: str, value: bytes = b"") -> None:
        """One more; an older one may be forgotten for it."""
        if len(key) <= _KEY_BYTES:
            kept = bytes(value[:_VALUE_BYTES])
            self._changes.append(KeyChange(at, key, shown(client), action, version, len(value), kept))

    def of(self, key: bytes) -> list[KeyChange]:
        """Those of one key, the latest first."""
        return [change for change in reversed(self._changes) if change.key == key]


# -- latencies ---------------------------------------------------------------------------------------------------------
#
# How long requests took, in a few numbers for each second.
#
# A histogram whose bounds grow by a tenth: a percentile is right to 5 %, and a million requests need no more room than
# one.


_SMALLEST_S: Final = 1e-6
_GROWTH: Final = 1.1
_BUCKETS: Final = 240  # up to 8,000 s
_LOG_GROWTH: Final = log(_GROWTH)


@attrs.define(eq=False)
class Latencies:
    """Those since the last :meth:`take`."""

    _counts: list[int] = attrs.Factory(lambda: [0] * _BUCKETS)
    _total: int = 0
    _longest: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        bucket = 0 if seconds <= _SMALLEST_S else min(int(log(seconds / _SMALLEST_S) / _LOG_GROWTH) + 1, _BUCKETS - 1)
        self._counts[bucket] += 1
        self._total += 1
        self._longest = max(self._longest, seconds)

    def take(self) -> dict[str, float] | None:
        """``p50``, ``p99`` and ``max`` in milliseconds and their ``count``, and begin anew; None if there were none."""
        if not self._total:
            return None
        taken = {
            "count": self._total,
            "p50": round(1000 * self._percentile(0.5), 4),
            "p99": round(1000 * self._percentile(0.99), 4),
            "max": round(1000 * self._longest, 4),
        }
        self._counts, self._total, self._longest = [0] * _BUCKETS, 0, 0.0
        return taken

    def _percentile(self, part: float) -> float:
        """Never more than the longest."""
        wanted, seen = part * self._total, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(self._longest, _SMALLEST_S * _GROWTH ** (bucket - 0.5) if bucket else _SMALLEST_S)
        return self._longest


# -- text --------------------------------------------------------------------------------------------------------------
#
# Bytes and names that strangers have sent, as text that shows what it is.


#: Characters. Keys may have 64 KiB, and a line of a page has room for less.
_LONGEST: Final = 160


def shown(data: bytes | str, longest: int = _LONGEST) -> str:
    r"""At most ``longest`` characters and an ellipsis. What is not UTF-8, and what has no shape of its own (line
    breaks, controls, changes of direction), is written as ``\x07`` or ``\u202e``, so that it can
    neither hide nor disguise.
    """
    text = data if isinstance(data, str) else data[: 4 * longest + 4].decode(errors="backslashreplace")
    if len(text) > longest:
        text = text[:longest] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
