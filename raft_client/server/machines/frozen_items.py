"""Keys and values in their order, which can be written down as they were at one moment while they change."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import attrs
from sortedcontainers import SortedDict, SortedList

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Keys that are looked at together: none of them takes part in another step.
_STEP: Final = 256
_TABLES: Final = 64


@attrs.define(eq=False)
class FrozenItems:
    """A sorted mapping of bytes. What changes while a frozen state is read, and was not read yet, is kept twice.

    So nothing here takes much longer when there are more keys.
    """

    _keys: SortedList[bytes] = attrs.field(factory=SortedList)
    #: By the hash of the key. A table of all keys would be copied whole each time that it grows, in one go.
    _values: list[dict[bytes, bytes]] = attrs.field(factory=lambda: [{} for _ in range(_TABLES)])
    #: While a frozen state is read: what keys were that changed since then, None if there was none.
    _before: SortedDict[bytes, bytes | None] | None = None
    #: The last key that was read of it.
    _read_to: bytes = b""

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> bytes | None:
        """The value now; None if there is no such key."""
        return self._values[hash(key) % _TABLES].get(key)

    def set(self, key: bytes, value: bytes) -> bytes | None:
        """Make it so. Returns the value before, None if there was none."""
        if self._before is not None:
            self._remember(key)
        values = self._values[hash(key) % _TABLES]
        before = values.get(key)
        if before is None:
            self._keys.add(key)
        values[key] = value
        return before

    def delete(self, key: bytes) -> None:
        """The key exists."""
        self._remember(key)
        del self._values[hash(key) % _TABLES][key]
        self._keys.remove(key)

    def after(self, key: bytes, *, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The items now whose keys begin with ``prefix`` and come after ``key``, in order."""
        first = max(key, prefix)
        for found in self._keys.irange(first, inclusive=(first != key, True)):
            if not found.startswith(prefix):
                return
            yield found, self._values[hash(found) % _TABLES][found]

    def frozen(self) -> Iterator[tuple[bytes, bytes]]:
        """The items as they are at this call, in order. One at a time; a second one raises RuntimeError.

        It ends when it has been read, closed, or dropped.
        """
        if self._before is not None:
            raise RuntimeError("a frozen state is being read already; close it first")
        self._before, self._read_to = SortedDict(), b""
        reader = self._frozen(self._before)
        next(reader)  # what never began would never end
        return reader

    def _frozen(self, before: SortedDict[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield b"", b""
            while step := self._next_step(before):
                yield from step
        finally:
            self._before = None

    def _next_step(self, before: SortedDict[bytes, bytes | None]) -> list[tuple[bytes, bytes]]:
        """The next items of the frozen state, from the keys that are there and from those that have changed."""
        found: list[tuple[bytes, bytes]] = []
        while not found:
            keys = list(islice(self._keys.irange(self._read_to, inclusive=(False, True)), _STEP))
            changed = list(islice(before.irange(self._read_to, inclusive=(False, True)), _STEP))
            # Where one of the two was cut off, what lies behind its end is not known.
            end = min((each[-1] for each in (keys, changed) if len(each) == _STEP), default=None)
            together = sorted({key for key in (*keys, *changed) if end is None or key <= end})
            if not together:
                break
            for key in together:
                value = before[key] if key in before else self.get(key)
                if value is not None:
                    found.append((key, value))
            self._read_to = together[-1]
        return found

    def _remember(self, key: bytes) -> None:
        before = self._before
        if before is not None and key > self._read_to and key not in before:
            before[key] = self.get(key)
