"""Keys and values in their order, which can be written down as they were at one moment while they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from sortedcontainers import SortedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FrozenItems"]


@attrs.define(eq=False)
class FrozenItems:
    """A sorted mapping of bytes. :meth:`frozen` costs a list of its keys; what changes meanwhile is kept twice."""

    _items: SortedDict[bytes, bytes] = attrs.field(factory=SortedDict)
    #: While a frozen state is read: what keys were that changed since then, None if there was none.
    _before: dict[bytes, bytes | None] | None = None

    @classmethod
    def of(cls, items: Iterable[tuple[bytes, bytes]]) -> FrozenItems:
        """The last value of each key."""
        return cls(SortedDict(items))

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: bytes) -> bytes | None:
        """The value now; None if there is no such key."""
        value: bytes | None = self._items.get(key)
        return value

    def set(self, key: bytes, value: bytes) -> None:
        """Make it so."""
        self._remember(key)
        self._items[key] = value

    def delete(self, key: bytes) -> None:
        """The key exists."""
        self._remember(key)
        del self._items[key]

    def after(self, key: bytes, *, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The items now whose keys begin with ``prefix`` and come after ``key``, in order."""
        first = max(key, prefix)
        for found in self._items.irange(first, inclusive=(first != key, True)):
            if not found.startswith(prefix):
                return
            yield found, self._items[found]

    def frozen(self) -> Iterator[tuple[bytes, bytes]]:
        """The items as they are at this call, in order. One at a time; a second one raises RuntimeError.

        It ends when it has been read, closed, or dropped.
        """
        if self._before is not None:
            raise RuntimeError("a frozen state is being read already; close it first")
        self._before = {}
        reader = self._frozen(list(self._items), self._before)
        next(reader)  # what never began would never end
        return reader

    def _frozen(self, keys: list[bytes], before: dict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield b"", b""
            for key in keys:
                value = before.get(key)
                yield key, self._items[key] if value is None else value
        finally:
            self._before = None

    def _remember(self, key: bytes) -> None:
        if self._before is not None and key not in self._before:
            self._before[key] = self._items.get(key)
