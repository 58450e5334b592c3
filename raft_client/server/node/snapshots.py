"""Snapshots between peers, chunk by chunk, in both directions.

A follower whose next entry the leader has compacted gets the leader's snapshot. It says where it wants the next chunk
if that is not the one after the last. The last chunk installs the snapshot: entries that follow it stay if the log
holds its last entry with its term, otherwise none stays (Raft, §5.1 and Figure 5.3).

There is no frame for the configuration (facts §1.4). The receiver keeps the newest one that it knows to be
committed; our leaders have one in the entries that follow (:mod:`.membership`).

Source: ØMQ Raft protocol, "InstallSnapshot RPC"; facts §1.4 (InstallSnapshot).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from raft_client.server.node.ready import SnapshotMeta
from raft_client.wire.log_entry import SnapshotChunk
from raft_client.wire.peer_messages import InstallSnapshot, SnapshotReply

if TYPE_CHECKING:
    from raft_client.server.node.state import NodeState


class SnapshotSender:
    """How far each follower's copy of the leader's snapshot is."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._positions: dict[str, tuple[SnapshotMeta, int]] = {}

    def is_at_hand(self, peer_id: str) -> bool:
        """Whether :meth:`next_chunk` waits for no disk."""
        _meta, offset = self._next(peer_id)
        return self._state.log.stored.is_snapshot_at_hand(offset, self._state.settings.max_message_bytes)

    def next_chunk(self, peer_id: str) -> InstallSnapshot:
        """What the follower gets next. A new snapshot of the leader starts again."""
        state = self._state
        meta, offset = self._positions[peer_id] = self._next(peer_id)
        data = state.log.stored.read_snapshot(offset, state.settings.max_message_bytes) if offset < meta.size else b""
        chunk = SnapshotChunk(meta.index, meta.term, offset, meta.size, data)
        return InstallSnapshot(state.settings.ident, state.id, state.term, chunk)

    def _next(self, peer_id: str) -> tuple[SnapshotMeta, int]:
        meta = self._state.log.stored.snapshot
        if meta is None:  # what is before first_index is in a snapshot, or was never written
            raise AssertionError("a log that begins after its snapshot")
        sent, offset = self._positions.get(peer_id, (None, 0))
        return meta, offset if sent == meta else 0

    def took(self, peer_id: str, chunk: SnapshotChunk, reply: SnapshotReply) -> bool:
        """The follower answered. Whether its copy is complete."""
        if chunk.is_last and reply.position is None:
            self.forget(peer_id)
            return True
        if peer_id in self._positions:
            offset = chunk.end if reply.position is None else min(reply.position, chunk.size)
            self._positions[peer_id] = self._positions[peer_id][0], offset
        return False

    def forget(self, peer_id: str) -> None:
        """It is not sent any more."""
        self._positions.pop(peer_id, None)

    def clear(self) -> None:
        """Nothing is."""
        self._positions.clear()


class SnapshotReceiver:
    """A snapshot on its way to this peer's disk."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        #: The sender, and which snapshot it is. Those of two peers may differ in their bytes.
        self._snapshot: tuple[str, int, int, int] | None = None
        self._position = 0

    def take(self, source: str, chunk: SnapshotChunk) -> SnapshotReply:
        """Write a chunk; the last one installs the snapshot. The reply leaves when that is durable."""
        state = self._state
        if chunk.index <= state.commit_index:  # nothing in it is new: go to the end
            return SnapshotReply(state.term, None if chunk.is_last else chunk.size)
        snapshot = (source, chunk.index, chunk.term, chunk.size)
        if snapshot != self._snapshot:
            self._snapshot, self._position = snapshot, 0
        if chunk.offset != self._position:
            return SnapshotReply(state.term, self._position)
        self._write(chunk)
        self._position = chunk.end
        if chunk.is_last:
            self._snapshot = None
            configuration = state.log.configuration_for(state.commit_index)
            state.log.install(SnapshotMeta(chunk.index, chunk.term, chunk.size, configuration, members_known=False))
            state.commit_index = chunk.index
        return SnapshotReply(state.term)

    @property
    def position(self) -> int:
        """Bytes that have arrived of the snapshot under way."""
        return self._position if self._snapshot else 0

    def _write(self, chunk: SnapshotChunk) -> None:
        pending = self._state.chunk
        if pending is not None and chunk.offset:  # both in one job
            chunk = attrs.evolve(pending, data=pending.data + chunk.data)
        self._state.chunk = chunk
