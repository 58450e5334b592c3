"""Keep the last changes of a state machine, in the order of the log, so that a watch can begin in the past.

It is no multi-version storage: when memory for it is full the oldest changes go, and a watch that asks for them is
refused.

Invariant: all changes from the oldest index on are here, and the terms of their entries.

Items have *places*: the first one ever 0, the next one 1. What changed nothing has none, except where a term begins: so
the term at each index that the history reaches back to is known.

Source: State Watch pattern, "Storing Event History".
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from raft_client.wire.key_changes import Change

#: Places that were dropped are given back when there are so many of them, and as many as are left.
_SLACK: Final = 1_000
#: What an item and a change cost in memory, beside the bytes of keys and values (measured: 350 for both).
_ITEM_BYTES: Final = 200
_CHANGE_BYTES: Final = 150
#: What an entry that changed something takes at least.
LEAST_CHANGED_BYTES: Final = _ITEM_BYTES + _CHANGE_BYTES

_EntryId: TypeAlias = bytes  # as in Position


class Item(NamedTuple):
    """What one entry changed; nothing if it is here because its term is another one than that of the entry before."""

    at: int
    term: int
    changes: tuple[Change, ...]
    entry_id: _EntryId = b""

    @property
    def position(self) -> Position:
        """Made when it is asked for: most items are never told."""
        return Position(self.at, self.term, self.entry_id)


def size_of(changes: tuple[Change, ...]) -> int:
    """About how many bytes they take in memory, and more than they take on the wire."""
    return _ITEM_BYTES + sum([_CHANGE_BYTES + len(change.key) + len(change.value or b"") for change in changes])


class ChangeHistory:
    """What the entries up to ``applied`` changed, the oldest ones dropped when they take more than ``limit`` bytes."""

    __slots__ = ("_before", "_bytes", "_dropped", "_indexes", "_items", "_limit", "_start", "entry_id", "index", "term")

    def __init__(self, limit: int, applied: Position) -> None:
        self._limit = limit
        self._start = 0  # the place of the first item in the list, which may be dropped already
        self._dropped = 0  # so many in the list are
        self._items: list[Item] = []
        self._indexes: list[int] = []
        self._bytes = 0
        self._before = Item(applied.index, applied.term, (), applied.entry_id)  # the newest one that was dropped
        self.index: int = applied.index
        self.term: int = applied.term
        self.entry_id: _EntryId = applied.entry_id

    @property
    def applied(self) -> Position:
        """The newest entry that was applied."""
        return Position(self.index, self.term, self.entry_id)

    @property
    def oldest(self) -> int:
        """Everything that entries from this index on changed is here."""
        return self._before.at + 1

    @property
    def first(self) -> int:
        """The place of the oldest item."""
        return self._start + self._dropped

    @property
    def end(self) -> int:
        """The place that the next item will have."""
        return self._start + len(self._items)

    @property
    def bytes(self) -> int:
        """What the items take."""
        return self._bytes

    def append(self, index: int, term: int, changes: tuple[Change, ...] = (), entry_id: _EntryId = b"") -> None:
        """The entry at ``index`` was applied, and changed this. Indexes and terms rise.

        ``entry_id`` is that of a position there; empty if no entry had an id since the last call.
        """
        is_marker = term != self.term
        self.index, self.term, self.entry_id = index, term, entry_id or self.entry_id
        if not changes and not is_marker:
            return
        self._items.append(Item(index, term, changes, self.entry_id))
        self._indexes.append(index)
        self._bytes += size_of(changes)
        while self._bytes > self._limit and self._dropped < len(self._items):
            dropped = self._items[self._dropped]
            self._bytes -= size_of(dropped.changes)
            self._dropped += 1
            self._before = dropped
        if self._dropped > _SLACK and 2 * self._dropped > len(self._items):
            del self._items[: self._dropped], self._indexes[: self._dropped]
            self._start += self._dropped
            self._dropped = 0

    def at(self, place: int) -> Item:
        """The item at a place from :attr:`first` to before :attr:`end`."""
        return self._items[place - self._start]

    def place_after(self, index: int) -> int:
        """Where the items of entries after ``index`` begin; :attr:`first` at least."""
        return self._start + max(bisect_right(self._indexes, index), self._dropped)

    def before(self, place: int) -> Position:
        """A position that all changes before this place are of, and none from it on: the newest that is known."""
        if place == self.end:
            return self.applied
        if place <= self.first:
            return self._before.position
        return self.at(place - 1).position

    def term_at(self, index: int) -> int:
        """Of an entry that was applied, from the one before :attr:`oldest` on."""
        place = self.place_after(index)
        return self._before.term if place == self.first else self.at(place - 1).term

    def contradicts(self, position: Position) -> bool:
        """Whether the position is of another log: terms rise within a log, and each index has one. 0 is not known."""
        if not position.term or position.index + 1 < self.oldest:
            return False
        if position.index <= self.index:
            return self.term_at(position.index) != position.term
        return self.term > position.term

    def restored(self, applied: Position) -> None:
        """Forget everything: a snapshot took the place of the state, and nobody knows what it changed."""
        self._start += len(self._items)
        self._items.clear()
        self._indexes.clear()
        self._dropped = self._bytes = 0
        self._before = Item(applied.index, applied.term, (), applied.entry_id)
        self.index, self.term, self.entry_id = applied.index, applied.term, applied.entry_id
