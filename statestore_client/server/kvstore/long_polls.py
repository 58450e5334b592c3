"""Readers that ask to be told when something differs from what they have. (facts §6.4)

A poll is answered *yes* at once if the area differs from the reader's snapshot, else at the first entry with a value or
the first key that expires; *no* after :data:`HOLD_S`, by its own timer. A large area is compared in pieces, and what
changes in between counts.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from statestore_client.server.kvstore.key_filter import KeyFilter
    from statestore_client.server.kvstore.store import AreaStore
    from statestore_client.wire.kvstore.value import Publication, Value

__all__ = ["HOLD_S", "LongPoll", "LongPolls"]

HOLD_S: Final = 20.0
#: Keys that are compared at once: half a millisecond.
_SLICE: Final = 256


class LongPoll:
    """One reader. ``answer``: None while it is held, else whether something differs."""

    __slots__ = ("_filter", "_is_checked", "_keys", "_missing", "_snapshot", "answer", "ends_at")

    def __init__(
        self, key_filter: KeyFilter, snapshot: Mapping[str, Value], keys: Iterable[str], ends_at: float
    ) -> None:
        self._filter = key_filter
        self._snapshot = snapshot
        self._missing = set(snapshot)
        self._keys: Iterator[str] = iter(keys)
        self._is_checked = False
        self.ends_at = ends_at
        self.answer: bool | None = None

    def check_some(self, store: AreaStore) -> bool:
        """Compare some keys. Returns whether there is more. If there is an answer then, drop the poll."""
        if self.answer is not None or self._is_checked:
            return False
        for number, key in enumerate(self._keys):
            entry = store.get(key)
            if entry is not None and self._filter.matches(key, entry):
                self._missing.discard(key)
                if _differs(entry, self._snapshot.get(key)):
                    self.answer = True
                    return False
            if number + 1 == _SLICE:
                return True
        self._is_checked = True
        if self._missing:
            self.answer = True
        return False

    def published(self, publication: Publication) -> None:
        """Something is new in the area."""
        if self.answer is None:
            is_new = any(
                not entry.is_ttl_only and self._filter.matches(key, entry) for key, entry in publication.entries.items()
            )
            if is_new or any(self._filter.matches_key(key) for key in publication.expired_keys):
                self.answer = True


def _differs(entry: Value, known: Value | None) -> bool:
    if known is None or (entry.version, entry.originator) != (known.version, known.originator):
        return True
    return entry.value != known.value if known.value is not None else entry.hash != known.hash


class LongPolls:
    """Those of one area that are held. The one that asks reads :attr:`LongPoll.answer`."""

    def __init__(self) -> None:
        self._polls: deque[LongPoll] = deque()  # as they end

    def __len__(self) -> int:
        return len(self._polls)

    def hold(self, key_filter: KeyFilter, snapshot: Mapping[str, Value], keys: Iterable[str], now: float) -> LongPoll:
        """``snapshot``: the reader's entries, with a value or a hash each. ``keys``: all keys that the area has now.

        Call :meth:`LongPoll.check_some` until it says that there is no more.
        """
        poll = LongPoll(key_filter, snapshot, keys, now + HOLD_S)
        self._polls.append(poll)
        return poll

    def drop(self, poll: LongPoll) -> None:
        """The reader is gone; also for one that is answered already."""
        if poll in self._polls:
            self._polls.remove(poll)

    def published(self, publication: Publication) -> list[LongPoll]:
        """Something is new in the area: those that are answered by it."""
        for poll in self._polls:
            poll.published(publication)
        return self._answered()

    def tick(self, now: float) -> list[LongPoll]:
        """Those that are answered, with the ones whose time is over."""
        for poll in self._polls:
            if poll.ends_at > now:
                break
            if poll.answer is None:
                poll.answer = False
        return self._answered()

    def _answered(self) -> list[LongPoll]:
        answered = [poll for poll in self._polls if poll.answer is not None]
        if answered:
            self._polls = deque(poll for poll in self._polls if poll.answer is None)
        return answered

    def next_deadline(self) -> float | None:
        """When the first one ends."""
        return self._polls[0].ends_at if self._polls else None
