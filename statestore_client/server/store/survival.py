"""What of the store is written down, and what is left of it after a restart.

Of a key, the disk has its last SET, or its fencing mark alone, or nothing:

==========================================  =========================================================================
a SET that :class:`Persistence` keeps       the value, its version, mark and expiry
another one, of a key that has a mark       the mark, and when it ends: what was kept of an earlier value goes
another one, of a key without a mark        nothing: what was kept of an earlier value goes
DEL, VDEL, expiry                           nothing: whatever was kept goes
==========================================  =========================================================================

Invariant: no older value of a key comes back. A SET that is not kept takes a kept value off the disk, and is answered
when that has happened; the next one finds nothing there and waits for nothing.

Invariant: no mark goes back. A key whose value is forgotten keeps its mark over a restart, and is missing: a SET passes
the fence or is refused as before. It does so for a day at most, the longest lease of a client: whoever has an older
token has lost its lock long ago.

Invariant: no version goes back, also none of a value that is not kept: it may be somebody's fencing token. Such values
do not wait for the disk, so room for their versions is *reserved*: the disk has a version greater than all that are
given out, and a new one is written, and waited for, when that is used up, about once a second.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.server.journal import Stream
from statestore_client.server.store.persistence import KEEP_ALL, Persistence
from statestore_client.server.store.records import ClockRecord, KeyRecord
from statestore_client.wire.hlc import HlcTimestamp

if TYPE_CHECKING:
    from statestore_client.server.journal import Journal
    from statestore_client.server.store.keyspace import Entry
    from statestore_client.server.store.localclock import LocalClock
    from statestore_client.wire.commands import Set
    from statestore_client.wire.hlc import HybridLogicalClock

__all__ = ["MARK_LASTS_S", "Kept", "Mark", "Survival"]

#: How long the mark of a forgotten value lasts: a lease has at most 86,400 seconds.
MARK_LASTS_S: Final = 86_400.0

#: How far ahead of the versions given out the one on the disk is put. After a restart, versions are at most so far
#: ahead of the clock.
_RESERVED_MS: Final = 1_000


class Kept(IntEnum):
    """What the disk has of a key."""

    NOTHING = 0
    MARK = 1
    VALUE = 2


@attrs.frozen
class Mark:
    """The fencing mark of a key whose value is forgotten. ``expires_at`` is monotonic seconds."""

    fence: HlcTimestamp
    expires_at: float

    def record(self) -> KeyRecord:
        """Nobody looks at a mark's version."""
        return KeyRecord(None, self.fence, self.fence, None if self.expires_at == inf else self.expires_at)


class Survival:
    """Writes down what is to survive. Without a journal, nothing does, and every call is without effect."""

    __slots__ = ("_clock", "_journal", "_local_clock", "_policy", "_reserved", "is_kept", "marks")

    def __init__(
        self,
        journal: Journal | None,
        clock: HybridLogicalClock,
        local_clock: LocalClock,
        policy: Persistence = KEEP_ALL,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._local_clock = local_clock
        self._policy = policy
        self._reserved: HlcTimestamp | None = None
        #: Of keys that are missing because their values were forgotten.
        self.marks: dict[bytes, Mark] = {}
        #: Whether what the last command changed is there after a restart.
        self.is_kept: bool = True

    def begin(self) -> None:
        """A command begins, which has changed nothing so far."""
        self.is_kept = self._policy.keeps_all

    def set(self, command: Set, entry: Entry | None, record: KeyRecord) -> Kept:
        """A SET is applied; ``entry`` is as it was before. Returns what the disk has of the key from now on."""
        journal = self._journal
        if journal is None:
            return Kept.NOTHING
        key, keys = command.key, journal[Stream.KEYS]
        if self._policy.keeps(command):
            keys.put(key, record, len(command.value))
            self.is_kept = True
            self._note_version(journal, is_urgent=True)
            return Kept.VALUE
        if record.fence is None:
            return self._forget(journal, key, entry)
        if (
            entry is None
            or entry.kept is not Kept.MARK
            or entry.fence != record.fence
            or entry.expires_at != record.expires_at
        ):
            keys.put(key, record.mark())
        self._note_version(journal, is_urgent=False)
        return Kept.MARK

    def removed(self, key: bytes, entry: Entry) -> None:
        """A key was deleted, or has expired; ``entry`` is as it was."""
        journal = self._journal
        if journal is not None:
            self.is_kept = self.is_kept or entry.kept is Kept.VALUE
            self._forget(journal, key, entry)

    def _forget(self, journal: Journal, key: bytes, entry: Entry | None) -> Kept:
        had = entry is not None and entry.kept is not Kept.NOTHING
        if had:
            journal[Stream.KEYS].remove(key)
        self._note_version(journal, is_urgent=had)
        return Kept.NOTHING

    def _note_version(self, journal: Journal, *, is_urgent: bool) -> None:
        """``is_urgent``: the disk is waited for anyway."""
        greatest = self._clock.last
        if not self._policy.keeps_all:
            if self._reserved is None or greatest >= self._reserved:
                self._reserved = HlcTimestamp(greatest.wall_ms + _RESERVED_MS, 0, greatest.node_id)
            elif not is_urgent:
                return
            greatest = self._reserved
        journal[Stream.CLOCK].put(b"", ClockRecord(greatest, self._local_clock.ahead_ms))

    # -- after a restart ----------------------------------------------------------------------------------------------

    def restored_mark(self, key: bytes, record: KeyRecord) -> None:
        """A mark was found without a value."""
        if record.fence is None:
            raise ValueError("neither a value nor a mark")
        self.marks[key] = Mark(record.fence, inf if record.expires_at is None else record.expires_at)

    def shorten_marks(self, stopped_at: float) -> list[tuple[bytes, float]]:
        """The server that had the values wrote last at ``stopped_at`` (monotonic seconds). Returns which marks end
        earlier than they would have, and when that was.
        """
        ends_at = stopped_at + MARK_LASTS_S
        # A second more does no harm, and a mark that was only rounded is not written again.
        long = [(key, mark.expires_at) for key, mark in self.marks.items() if mark.expires_at > ends_at + 1]
        for key, _ in long:
            fence = self.marks[key].fence
            self.marks[key] = Mark(fence, ends_at)
            if self._journal is not None:
                # Written down, so that the next restart does not make it longer.
                self._journal[Stream.KEYS].put(key, self.marks[key].record())
        return long

    def mark_of(self, key: bytes, now: float) -> HlcTimestamp | None:
        """What protects a key that is missing, at ``now`` (monotonic seconds)."""
        mark = self.marks.get(key)
        return None if mark is None or mark.expires_at <= now else mark.fence

    def take_mark(self, key: bytes, kept: Kept) -> float | None:
        """The key is set again, and has a mark of its own or, as the time of this one was over, none.

        Returns when this one would have ended, or has; None if there was none.
        """
        mark = self.marks.pop(key, None)
        if mark is None:
            return None
        if kept is Kept.NOTHING and self._journal is not None:
            self._journal[Stream.KEYS].remove_lazily(key)
        return mark.expires_at

    def drop_mark(self, key: bytes) -> None:
        """Its time is over."""
        del self.marks[key]
        if self._journal is not None:
            self._journal[Stream.KEYS].remove_lazily(key)
