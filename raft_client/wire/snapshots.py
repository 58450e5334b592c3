"""Snapshots travel in chunks: one chunk, and the book-keeping of those who put them together.

A snapshot is the state after ``index``, ``size`` bytes long; its content is the state machine's own affair. Chunks have
up to 64 KiB and arrive in order, but their sender may change on the way. The next one has a snapshot of its own: even
one with the same index, term and size may have other bytes, so it starts again.

Source: ØMQ Raft protocol, "RequestEntries RPC" (status 3) and "InstallSnapshot RPC"; facts §1.4.
"""

from __future__ import annotations

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.fields import check_bytes, check_uint

__all__ = ["SnapshotChunk", "SnapshotProgress"]


@attrs.frozen
class SnapshotChunk:
    """``data`` are the bytes from ``offset`` on, of ``size``; ``index`` and ``term`` those of the last entry in it."""

    index: int = attrs.field(validator=check_uint)
    term: int = attrs.field(validator=check_uint)
    offset: int = attrs.field(validator=check_uint)
    size: int = attrs.field(validator=check_uint)
    data: bytes = attrs.field(repr=False, validator=check_bytes)

    def __attrs_post_init__(self) -> None:
        if self.end > self.size:
            raise InvalidArgumentError("a snapshot chunk beyond the end of the snapshot")

    @property
    def end(self) -> int:
        """The offset of the byte after the last one."""
        return self.offset + len(self.data)

    @property
    def is_first(self) -> bool:
        """Whether a snapshot starts here; forget what came of another one before."""
        return self.offset == 0

    @property
    def is_last(self) -> bool:
        """Whether the snapshot is complete with it."""
        return self.end == self.size


class SnapshotProgress:
    """How much of a snapshot has arrived, in order and without a gap.

    Invariant: the chunks that :meth:`take` returned since the last one with offset 0 are, one after the other, the
    first ``position`` bytes of one snapshot.
    """

    __slots__ = ("_snapshot", "position")

    def __init__(self) -> None:
        self._snapshot: tuple[int, int, int] | None = None  # index, term, size
        self.position: int = 0  # bytes; where the next chunk must start

    @property
    def complete(self) -> bool:
        """Whether the last byte was taken."""
        return self._snapshot is not None and self.position == self._snapshot[2]

    def take(self, chunk: SnapshotChunk) -> SnapshotChunk | None:
        """The part of ``chunk`` that is new; None when nothing is.

        A chunk of another snapshot counts only from its start. Raises ProtocolError when bytes before it are missing:
        ask again from :attr:`position`, after :meth:`restart` if the snapshot is another one.
        """
        snapshot = (chunk.index, chunk.term, chunk.size)
        if snapshot != self._snapshot:
            self.restart()
        if chunk.offset > self.position:
            raise ProtocolError(f"a snapshot chunk at {chunk.offset} instead of {self.position}")
        self._snapshot = snapshot
        if chunk.end <= self.position and chunk.size:
            return None
        new = chunk if chunk.offset == self.position else _from(chunk, self.position)
        self.position = chunk.end
        return new

    def restart(self) -> None:
        """Forget the snapshot: the next one starts at 0."""
        self._snapshot = None
        self.position = 0


def _from(chunk: SnapshotChunk, position: int) -> SnapshotChunk:
    return attrs.evolve(chunk, offset=position, data=chunk.data[position - chunk.offset :])
