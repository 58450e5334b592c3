"""What a watch over the log hands out, where one watch stands, and what waits for its consumer.

The index of an entry is the number of its event (State Watch pattern, "Handling Connection Failures"), so a watch can
be resumed on any peer, by any process, after the last index that it saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias, TypedDict

import attrs

from raft_client.core.calls import GetLogInfo
from raft_client.core.entries_stream import EntriesStream
from raft_client.core.selectors import Selector
from raft_client.core.served_watch_calls import ServedWatch
from raft_client.core.stream_actions import Consumer
from raft_client.wire.key_changes import Change, Previous
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk


@attrs.frozen
class WatchEvent:
    """What one entry changed, as far as the watch wants it. All of it happened at once.

    Store ``position`` when the event is dealt with, and resume after it. ``entry`` is the entry itself if the watch
    read the log, and None if the leader told the changes alone.
    """

    watch_id: int
    position: Position
    changes: tuple[Change, ...]
    entry: LogEntry | None = None

    @property
    def index(self) -> int:
        """The number of the event: the entry's place in the log."""
        return self.position.index


@attrs.frozen
class Progress:
    """Nothing was missed up to ``position``: resume after it, lest an idle watch falls behind a compaction."""

    watch_id: int
    position: Position

    @property
    def index(self) -> int:
        """The number of the last event up to there."""
        return self.position.index


@attrs.frozen
class SnapshotEvent:
    """A piece of the snapshot that stands for the events up to its index: forget what was listed before.

    Events after it follow once its last chunk came. ``chunk.is_first`` starts anew, whatever came before. ``position``
    is where to resume: after the snapshot only with its last chunk, for the state is not whole before.
    """

    watch_id: int
    chunk: SnapshotChunk
    position: Position


@attrs.frozen
class Suspended:
    """No leader is heard and one is being looked for: what was seen up to ``position`` may be out of date."""

    watch_id: int
    position: Position


@attrs.frozen
class Resumed:
    """The watch is up to date again; what happened meanwhile came just before."""

    watch_id: int
    position: Position


WatchItem: TypeAlias = WatchEvent | Progress | SnapshotEvent | Suspended | Resumed


# -- one watch ---------------------------------------------------------------------------------------------------------


#: What may wait for the consumer of one watch.
DEFAULT_QUEUE_BYTES: Final = 1024 * 1024
#: What an event costs beside its keys and values.
_EVENT_BYTES: Final = 100
_START: Final = Position(0)


def bytes_of(changes: Sequence[Change]) -> int:
    """Of their keys and values."""
    size = 0
    for change in changes:
        size += len(change.key) + len(change.value or b"")
    return size


#: When a consumer is slow: ``"reread"`` leaves out nothing and reads the log again when there is room, ``"error"`` ends
#: the watch with SubscriberOverflowError.
Overflow: TypeAlias = Literal["reread", "error"]


@attrs.frozen
class WatchCounts:
    """The watches of a client that have not ended, and what waits for their readers."""

    open: int = 0
    live: int = 0  # of those, how many get events as they are broadcast; the others are catching up
    queued_events: int = 0
    queued_bytes: int = 0

    def __add__(self, other: WatchCounts) -> WatchCounts:
        return WatchCounts(*(a + b for a, b in zip(attrs.astuple(self), attrs.astuple(other), strict=True)))


class WatchLimits(TypedDict, total=False):
    """What the watches leave to the settings of their client."""

    silence_s: float
    progress_s: float
    total_bytes: int


class Phase(Enum):
    """Where the next events of a watch come from."""

    WAITING = "waiting"  # nowhere yet: the end of the log is being asked for
    BEHIND = "behind"  # a reader of its own, or the log when its consumer has made room
    LIVE = "live"  # the subscription that all live watches share
    SERVED = "served"  # the leader, which tells the changes that are wanted
    ENDED = "ended"


@attrs.define(eq=False)
class WatchState:
    """One watch. Made by :meth:`Watches.watch`; its consumer calls :meth:`Watches.next_item`."""

    id: int
    selector: Selector
    after: Position | None  # as it was asked for; None: the end of the log, until that is known
    overflow: Overflow
    relist: bool
    connection_events: bool = False
    queue_bytes: int = DEFAULT_QUEUE_BYTES
    tells_progress: bool = False  # at once, each time that the leader tells any
    #: The last value of each key, None of one that was deleted; None: they are not wanted.
    values: dict[bytes, bytes | None] | None = None
    #: Whether the values are of the whole log, so that a key without one never existed.
    knows_all: bool = False
    suspended: bool = False  # its consumer was told so
    #: Where it started; None until the end of the log is known. No event at or before it is handed out.
    started_after: Position | None = None
    #: Why it ended; raised when all before it was handed out.
    error: Exception | None = None
    phase: Phase = Phase.WAITING
    seen: Position = _START  # up to there everything is in the queue or of no interest; of live watches: at least
    handed_out: Position = _START  # up to there the consumer knows that it missed nothing
    confirms: bool = False  # whether the log is the one that ``after`` is of is still to be found out
    question: GetLogInfo | None = None  # where the log ends
    reader: EntriesStream | None = None
    read_from: Position = _START  # where the reader started
    served: ServedWatch | None = None  # the call to the leader that serves it
    known_index: int = 0  # what the leader had applied when it began to serve it
    consumer: Consumer | None = None
    _items: deque[tuple[WatchItem, int]] = attrs.Factory(deque)
    size: int = 0  # bytes in the queue

    @property
    def is_live(self) -> bool:
        """Whether it gets events as they are broadcast; else it is catching up, or has ended."""
        return self.phase is Phase.LIVE or (self.phase is Phase.SERVED and self.seen.index >= self.known_index)

    def start_after(self, position: Position) -> None:
        """Its start is known. Nothing happens if it was before."""
        if self.started_after is None:
            self.started_after = self.seen = self.handed_out = position
            self.confirms = position.index > 0 and (position.term > 0 or position.entry_id != b"")

    @property
    def idle(self) -> bool:
        """Whether its consumer has taken everything."""
        return not self._items

    def push(self, item: WatchItem, size: int) -> None:
        """Add an item, whose keys and values have this size, after all that wait."""
        size += _EVENT_BYTES
        self._items.append((item, size))
        self.size += size
        if self.consumer is not None and len(self._items) == 1:  # else it has no reason to wait
            self.consumer.notify()

    def notify(self) -> None:
        """Wake the consumer: there is an item, or the watch is live, or it has ended."""
        if self.consumer is not None:
            self.consumer.notify()

    def pop(self) -> WatchItem | None:
        """Take the oldest item."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self.size -= size
        position = item.position
        if position.index > self.handed_out.index or position > self.handed_out:  # the first alone costs a tenth
            self.handed_out = position
        return item

    @property
    def waiting(self) -> int:
        """Items in the queue."""
        return len(self._items)

    def note(self, change: Change) -> Change:
        """The change, with what its key had before. Each change once, in order."""
        if self.values is None:
            return change
        previous = Previous(self.values[change.key]) if change.key in self.values else None
        if change.value is None and self.knows_all:
            self.values.pop(change.key, None)
        else:
            self.values[change.key] = change.value
        if previous is None and self.knows_all:
            previous = Previous()
        return Change(change.kind, change.key, change.value, previous)

    def forget(self) -> None:
        """A snapshot takes the place of what came before: nothing is known of any key."""
        self.knows_all = False
        if self.values is not None:
            self.values.clear()

    def clear(self) -> None:
        """Hand out nothing more."""
        self._items.clear()
        self.size = 0
