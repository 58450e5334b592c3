"""What a peer does, line by line, for whoever checks it: JSON objects, one a line.

A tool for who works on the peers: ``python tests/support/raft_trace.py FILE serve ...`` is ``zmqraft serve ...`` with a
:class:`TracedNode`, made by :func:`traced_into`, in place of a plain node.

A line is written before anything leaves that it speaks of, so lines of all peers, put in the order of ``at``, are in an
order in which things may have happened. After a kill the last lines may be missing: the next ``start`` says what the
disk holds.

============  ==========================================================================================================
``what``      beside ``at`` (what the clock says) and ``peer``
============  ==========================================================================================================
start         ``term``, ``vote``, ``entries``, ``snapshot`` ([index, term] or null) on disk; ``committed``, ``applied``
role          ``role``, ``term``; ``members`` that a leader counts: [new] or [new, old]
hard_state    ``term``, ``vote``: on the disk
truncated     ``after``: the entries after this index are gone from the disk
appended      ``entries``: on the disk
snapshot      ``index``, ``term``: it takes the place of the entries up to there, on the disk
committed     ``index``, ``term`` of the entry or null; ``in``: the term of the peer; ``members`` if it leads
restored      ``index``, ``term`` of the snapshot: given to the state machine
applied       ``entries``: given to the state machine
asked         ``read``: its number in this life of the peer
granted       ``read``, and the ``index`` that it sees, or null: it is refused
acknowledged  ``id`` of the update, ``index``: its client is told
============  ==========================================================================================================

An entry is [index, term, CRC-32 of its frame, request id in hexadecimal].
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from raft_client.cli import main, serve
from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import Answer, Incoming, Output, Persist, Ready, Role, SnapshotMeta, StoredLog
from raft_client.server.node.state import NodeState
from raft_client.wire.client_requests import ConfigUpdateReply, Outcome, UpdateReply
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import REQUEST_ID_BYTES

#: Of the log that is read at a start.
_PIECE: Final = 1024 * 1024


class Trace:
    """``write`` takes a line, and has it where a kill cannot take it away; ``clock`` is the same for all peers."""

    def __init__(self, write: Callable[[bytes], object], clock: Callable[[], float]) -> None:
        self._write, self._clock = write, clock

    def line(self, peer_id: str, what: str, **fields: object) -> None:
        """One event."""
        event = {"at": self._clock(), "peer": peer_id, "what": what, **fields}
        self._write(json.dumps(event, separators=(",", ":")).encode() + b"\n")


class TracedNode(RaftNode):
    """A node whose doings are written down at its border: nothing in it knows of that."""

    def __init__(self, state: NodeState, *, trace: Trace) -> None:
        super().__init__(state)
        stored, snapshot = state.log.stored, state.log.stored.snapshot
        self._trace = trace
        self._job: Persist | None = None
        self._read_numbers: dict[int, int] = {}  # numbers, by the identity of the token
        self._read_count = 0
        self._seen: tuple[Role, int] | None = None
        self._commit_seen = self.commit_index
        self._line(
            "start",
            term=stored.hard_state.term,
            vote=stored.hard_state.voted_for,
            snapshot=None if snapshot is None else [snapshot.index, snapshot.term],
            entries=[_words(entry) for entry in _stored_entries(stored)],
            committed=self.commit_index,
            applied=self._state.applied_index,
        )

    def _line(self, what: str, **fields: object) -> None:
        self._trace.line(self._state.id, what, **fields)

    def steps(self, messages: Iterable[Incoming], now: float, wall_s: float) -> None:
        """As that of the node, one by one: what a leader commits is told before the next message makes it step down."""
        for incoming in messages:
            super().steps((incoming,), now, wall_s)
            self._tell_state()

    def _tell_state(self) -> None:
        if self._seen == (Role.LEADER, self.term):
            self._tell_commit(leads=True)  # before it steps down, if this is what removed it
        self._tell_role()
        self._tell_commit(leads=self.role is Role.LEADER)

    def ready(self) -> Ready:
        """As that of the node."""
        ready = super().ready()
        self._tell_state()
        if ready.persist is not None:
            self._job = ready.persist
        if ready.restore is not None:
            self._line("restored", index=ready.restore.index, term=ready.restore.term)
        if ready.apply:
            self._line("applied", entries=[_words(entry) for entry in ready.apply])
        self._tell_acknowledged(ready.send)
        for granted in ready.reads:
            self._line("granted", read=self._read_numbers.pop(id(granted.token)), index=granted.index)
        return ready

    def advance(self, now: float) -> None:
        """As that of the node."""
        job, self._job = self._job, None
        if job is not None:
            self._tell_job(job)
        super().advance(now)

    def read(self, token: object, now: float) -> None:
        """As that of the node."""
        self._read_count += 1
        self._read_numbers[id(token)] = self._read_count
        self._line("asked", read=self._read_count)
        super().read(token, now)

    def compacted(self, meta: SnapshotMeta) -> None:
        """As that of the node."""
        self._line("snapshot", index=meta.index, term=meta.term)
        super().compacted(meta)

    def _tell_role(self) -> None:
        seen = (self.role, self.term)
        if seen != self._seen:
            self._seen = seen
            members = self._members() if self.role is Role.LEADER else None
            self._line("role", role=self.role.value, term=self.term, members=members)

    def _tell_commit(self, *, leads: bool) -> None:
        index = self.commit_index
        if index != self._commit_seen:
            self._commit_seen = index
            members = self._members() if leads else None
            self._line("committed", index=index, term=self.term_at(index), **{"in": self.term}, members=members)

    def _members(self) -> list[list[str]]:
        change = self.configuration.change
        return [[peer.id for peer in peers] for peers in (change.new, change.old) if peers is not None]

    def _tell_job(self, job: Persist) -> None:
        if job.hard_state is not None:
            self._line("hard_state", term=job.hard_state.term, vote=job.hard_state.voted_for)
        if job.install is not None:
            self._line("snapshot", index=job.install.index, term=job.install.term)
        if job.truncate_after is not None:
            self._line("truncated", after=job.truncate_after)
        if job.entries:
            self._line("appended", entries=[_words(entry) for entry in job.entries])

    def _tell_acknowledged(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if not isinstance(output, Answer) or not isinstance(output.message, UpdateReply | ConfigUpdateReply):
                continue
            if output.message.outcome is Outcome.COMMITTED:
                self._line("acknowledged", id=output.request_id.hex(), index=output.message.index)


def traced_into(file: BinaryIO) -> Callable[[NodeState], TracedNode]:
    """Makes nodes that add lines to this file. A line that cannot be written ends the peer.

    ``at`` is the monotonic clock of the machine, which all processes share.
    """

    def write(line: bytes) -> None:
        file.write(line)
        file.flush()

    return partial(TracedNode, trace=Trace(write, time.monotonic))


def _words(entry: LogEntry) -> list[object]:
    return [entry.index, entry.term, crc32(entry.frame), entry.frame[:REQUEST_ID_BYTES].hex()]


def _stored_entries(stored: StoredLog) -> Iterator[LogEntry]:
    after = stored.first_index - 1
    while after < stored.last_index:
        entries = stored.entries(after, stored.last_index, _PIECE)
        yield from entries
        after = entries[-1].index


if __name__ == "__main__":
    with Path(sys.argv.pop(1)).open("ab") as lines:
        serve.open_peer = partial(serve.open_peer, make_node=traced_into(lines))
        main()
