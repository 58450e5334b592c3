"""A dictionary in blocks, so that thousands of members can be gone through in slices while it changes.

Each block is a tuple of at most :data:`BLOCK` members that is never changed, only replaced. Code that looks at all
members as they are now takes the list of blocks, and looks at one after the other whenever there is time.
"""

from __future__ import annotations

from typing import Final, Generic, TypeAlias, TypeVar

import attrs

__all__ = ["BLOCK", "Blocks"]

K = TypeVar("K")
V = TypeVar("V")

Block: TypeAlias = tuple[tuple[K, V], ...]

#: Copies in one turn: about a millisecond.
BLOCK: Final = 64


@attrs.define(eq=False)
class Blocks(Generic[K, V]):
    """Invariant: all blocks but the last one are full, and ``_positions`` tells where each key is."""

    blocks: list[Block[K, V]] = attrs.Factory(list)  #: to be looked at, or copied
    _positions: dict[K, int] = attrs.Factory(dict)

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, key: K) -> V | None:
        position = self._positions.get(key)
        return None if position is None else self.blocks[position // BLOCK][position % BLOCK][1]

    def put(self, key: K, value: V) -> None:
        """Add a member, or give it another value."""
        position, member = self._positions.get(key), (key, value)
        if position is not None:
            self._replace(position, member)
            return
        position = self._positions[key] = len(self._positions)
        if position % BLOCK:
            self.blocks[-1] += (member,)
        else:
            self.blocks.append((member,))

    def discard(self, key: K) -> None:
        """Remove a member, if it is one; the last one takes its position."""
        position = self._positions.pop(key, None)
        if position is None:
            return
        last = self.blocks[-1][-1]
        if len(self.blocks[-1]) > 1:
            self.blocks[-1] = self.blocks[-1][:-1]
        else:
            del self.blocks[-1]
        if position < len(self._positions):
            self._positions[last[0]] = position
            self._replace(position, last)

    def _replace(self, position: int, member: tuple[K, V]) -> None:
        number, at = divmod(position, BLOCK)
        block = self.blocks[number]
        self.blocks[number] = (*block[:at], member, *block[at + 1 :])
