"""Reads of the disk that the loop's thread does not wait for.

Before the loop reads old entries or a snapshot it asks whether they are at hand: in the memory of the system
(``RWF_NOWAIT``, Linux). If not, another thread reads them first, and the loop asks again afterwards. A slow disk, or
one that is busy with a sync, then holds up who wants those bytes, and not the heartbeats of the peer.

Invariant: what was read once after it was asked for is at hand for the next one who asks, whatever the system has kept
of it. So everything goes on where the system keeps nothing, or does not say what it keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raft_client._common.durable_files import File, Folder

#: A file's name, how many bytes, and from where on.
_Place: TypeAlias = tuple[str, int, int]
#: Bounds the places that were read and not asked for again: their clients are gone.
_MAX_KEPT: Final = 1000


class ReadAhead:
    """``wanted`` and :meth:`are_at_hand` belong to the loop's thread, :meth:`read` to any other one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.wanted: dict[_Place, None] = {}
        self._read: dict[_Place, None] = {}

    def are_at_hand(self, places: Iterable[tuple[str, File, int, int]]) -> bool:
        """Whether reading these parts waits for no disk: a file's name, the file, how many bytes, and from where on. If
        not, those that are missing are wanted.
        """
        asked = {(name, count, offset): file for name, file, count, offset in places if count}
        missing = [each for each in asked if each not in self._read and not asked[each].is_in_memory(*each[1:])]
        if missing:
            self.wanted.update(dict.fromkeys(missing))
            return False
        for place in asked:
            self._read.pop(place, None)
        return True

    def read(self) -> None:
        """Read what is wanted. A file that is gone, or cannot be read, is for the loop to find out about."""
        while self.wanted:
            place = self.wanted.popitem()[0]  # one step, as the loop's thread adds some meanwhile
            name, count, offset = place
            try:
                file = self._folder.open(name)
                try:
                    file.read(count, offset)
                finally:
                    file.close()
            except OSError:
                pass
            if len(self._read) >= _MAX_KEPT:
                self._read.clear()
            self._read[place] = None
