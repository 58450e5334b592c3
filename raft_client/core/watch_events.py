"""What a watch over the log hands out.

The index of an entry is the number of its event (State Watch pattern, "Handling Connection Failures"), so a watch can
be resumed on any peer, by any process, after the last index that it saw.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from raft_client.wire.key_changes import Change
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
