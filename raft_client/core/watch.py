"""One watch over the log: what it hands out, and what is known of it. :mod:`raft_client.core.hub` drives all of them.

The index of an entry is the number of its event (State Watch pattern, "Handling Connection Failures"), so a watch can
be resumed on any peer, by any process, after the last index that it saw.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Literal, TypeAlias

import attrs

from raft_client.core.entries import EntriesCall
from raft_client.core.selectors import Selector
from raft_client.wire.changes import Change
from raft_client.wire.entries import LogEntry
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["Overflow", "Phase", "Progress", "SnapshotEvent", "Watch", "WatchEvent", "WatchItem", "WatchReady"]

#: When a consumer is slow: ``"reread"`` leaves out nothing and reads the log again when there is room, ``"error"`` ends
#: the watch with SubscriberOverflowError.
Overflow: TypeAlias = Literal["reread", "error"]


# -- what a watch hands out --------------------------------------------------------------------------------------------


@attrs.frozen
class WatchEvent:
    """What one entry changed, as far as the watch wants it. All of it happened at once."""

    watch_id: int
    entry: LogEntry
    changes: tuple[Change, ...]

    @property
    def index(self) -> int:
        """The number of the event: the entry's place in the log. Resume after it."""
        return self.entry.index


@attrs.frozen
class Progress:
    """Nothing was missed up to ``index``: resume after it, lest an idle watch falls behind a compaction."""

    watch_id: int
    index: int


@attrs.frozen
class SnapshotEvent:
    """A piece of the snapshot that stands for the events up to its index: forget what was listed before.

    Events after it follow once its last chunk came. ``chunk.is_first`` starts anew, whatever came before.
    """

    watch_id: int
    chunk: SnapshotChunk

    @property
    def index(self) -> int:
        """The index of the last entry in the snapshot."""
        return self.chunk.index


WatchItem: TypeAlias = WatchEvent | Progress | SnapshotEvent


class Phase(Enum):
    """Where the next events of a watch come from."""

    WAITING = "waiting"  # nowhere yet: the end of the log is being asked for
    BEHIND = "behind"  # a reader of its own, or the log when its consumer has made room
    LIVE = "live"  # the subscription that all live watches share
    ENDED = "ended"


@attrs.define(eq=False)
class Watch:
    """One watch. Made by :meth:`WatchHub.watch`; its consumer calls :meth:`WatchHub.next_item`."""

    id: int
    selector: Selector
    after: int | None  # as it was asked for; None: the end of the log at that time
    overflow: Overflow
    relist: bool
    #: Where it started; None until the end of the log is known. No event at or before it is handed out.
    started_after: int | None = None
    #: Why it ended; raised when all before it was handed out.
    error: Exception | None = None
    phase: Phase = Phase.WAITING
    seen: int = 0  # up to this index everything is in the queue or of no interest; of live watches: at least
    told: int = 0  # up to this index the consumer knows that it missed nothing
    reader: EntriesCall | None = None
    read_from: int = 0  # where the reader started
    _items: deque[tuple[WatchItem, int]] = attrs.Factory(deque)
    size: int = 0  # bytes in the queue

    @property
    def is_live(self) -> bool:
        """Whether it gets events as they are broadcast; else it is catching up, or has ended."""
        return self.phase is Phase.LIVE

    @property
    def idle(self) -> bool:
        """Whether its consumer has taken everything."""
        return not self._items

    def push(self, item: WatchItem, size: int) -> None:
        """Behind all that waits."""
        self._items.append((item, size))
        self.size += size

    def pop(self) -> WatchItem | None:
        """The oldest one."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self.size -= size
        if not isinstance(item, SnapshotEvent) or item.chunk.is_last:
            self.told = item.index
        return item

    def clear(self) -> None:
        """Hand out nothing more."""
        self._items.clear()
        self.size = 0


@attrs.frozen
class WatchReady:
    """This watch has something new, or has ended: whoever waits for it should call ``next_item``."""

    watch: Watch
