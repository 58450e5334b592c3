"""What a pipeline wrote into a log: rows and markers, read without Spark."""

from __future__ import annotations

import msgpack

from raft_client import RaftClient

__all__ = ["markers_of", "numbers", "rows_of"]


def numbers(*of: int) -> list[bytes]:
    """Data for entries."""
    return [b"%d" % n for n in range(*of)]


def rows_of(log: RaftClient, after: int = 0) -> list[bytes]:
    """The data of all entries of clients but markers, in the order of the log."""
    return [entry.data for entry in log.entries(after) if entry.is_state and b"zmqraft-spark" not in entry.data]


def markers_of(log: RaftClient, after: int = 0, pipeline: str | None = None) -> list[tuple[str, int]]:
    """Kind and batch of each marker."""
    found = [entry.data for entry in log.entries(after) if entry.is_state and b"zmqraft-spark" in entry.data]
    markers = [(kind, name, batch) for _, _, kind, name, _, batch, _, _ in map(msgpack.unpackb, found)]
    return [(kind, batch) for kind, name, batch in markers if pipeline in (None, name)]
