"""Offsets of a stream: each one is the micro-batch that ends there. Pure; decision 65.

::

    {"format": 1, "after": "400@3", "until": "1400@3", "tasks": 2}

    after ... until   positions, INDEX@TERM: the batch has the entries after the first one, up to the last one
    tasks             into how many ranges of equal length the batch is cut
    snapshot          true: before the entries, the batch has the snapshot at ``after`` as a row

Spark writes the end offset of a batch before it runs it, and gives it back when it runs it again. So nothing that a
replay needs may be taken from options, or from the present state of the log.

Invariant: an offset that a stream goes on from is handed out again as it is when there is nothing new: Spark compares
the texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from raft_client.errors import InvalidArgumentError, SettingsError
from raft_client.spark.ranges import Part, SnapshotPart, default_partitions, split
from raft_client.wire.log_entry import Position

#: Raise it when a batch would be read otherwise than by what an earlier version has written.
FORMAT: Final = 1


@attrs.frozen
class StreamOffset:
    """The batch of the entries after ``after`` up to ``until``. One that begins a stream is empty."""

    after: Position
    until: Position
    tasks: int
    #: The batch begins with the snapshot at ``after``.
    snapshot: bool = False

    @classmethod
    def at(cls, position: Position) -> Self:
        """Where a stream begins."""
        return cls(position, position, 1)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what :meth:`to_json` gave. Raises SettingsError for what another source, or a later version, wrote."""
        try:
            if value["format"] != FORMAT:
                raise SettingsError(
                    f"the checkpoint has an offset of the format {value['format']!r}, and this version of the package "
                    f"reads {FORMAT}: run the query with the version that wrote it, or a later one"
                )
            tasks = value["tasks"]
            after, until = Position.parse(value["after"]), Position.parse(value["until"])
            if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1 or until.index < after.index:
                raise _foreign(value)
        except (TypeError, KeyError, InvalidArgumentError) as error:
            if isinstance(error, SettingsError):
                raise
            raise _foreign(value) from None
        return cls(after, until, tasks, bool(value.get("snapshot")))

    def to_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        fields = {"format": FORMAT, "after": str(self.after), "until": str(self.until), "tasks": self.tasks}
        return fields | ({"snapshot": True} if self.snapshot else {})

    def next(self, until: Position, min_partitions: int | None) -> StreamOffset:
        """The batch that follows, up to ``until``."""
        length = until.index - self.until.index
        return StreamOffset(self.until, until, max(1, min(min_partitions or default_partitions(length), length)))

    def with_snapshot(self) -> StreamOffset:
        """The same batch, and before it the snapshot that its entries follow."""
        return attrs.evolve(self, snapshot=True)

    def parts(self, *, skip: bool = False) -> list[Part]:
        """What the tasks of the batch read, without gap or overlap. The first range checks the term before the batch.

        With ``skip``, entries that were compacted since the batch was planned are left out.
        """
        parts: list[Part] = [SnapshotPart(self.after.index)] if self.snapshot else []
        if self.after.index < self.until.index:
            parts += split(self.after, self.until.index, self.tasks, skip=skip)
        return parts


def _foreign(value: Mapping[str, Any]) -> SettingsError:
    return SettingsError(f"the checkpoint belongs to another source, or was changed: {value!r} is no offset of zmqraft")
