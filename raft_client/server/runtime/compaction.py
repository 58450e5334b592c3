"""Snapshots that a peer takes of its state machine, and that take the place of its log.

One at a time::

    enough was applied, or a client asks -> begun -> written, piece by piece -> held -> ended -> the log is compacted

A snapshot shows the state of the moment at which it is begun. It is *held* until the log may be compacted as far: until
no request id before it is fresh any more, eight hours as a rule. So a peer that is given a snapshot instead of entries,
a Node peer too, lacks no id that could be repeated (``docs/decisions/raft-log.md``).

A state machine that keeps nothing (:meth:`.StateMachine.trimmed`) needs no snapshot of the past: its log is
compacted up to where clients said that nobody needs it (Trim), as soon as the ids before it have expired,
or at once if they need not be remembered (``NodeSettings.trim_forgets_ids``). Nothing is held.

The state machine is read in the loop's thread, a piece in a turn; files are written in another one.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from raft_client.errors import StorageError
from raft_client.reports import on_one_line
from raft_client.server.node.ready import Role, SnapshotMeta
from raft_client.wire.client_requests import Outcome, TakeSnapshotReply, Trim, TrimReply
from raft_client.wire.hello import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from raft_client.server.machines.state_machine import StateMachine
    from raft_client.server.node.node import RaftNode
    from raft_client.server.node.ready import Configuration, Request
    from raft_client.server.node.settings import NodeSettings
    from raft_client.server.node.status import NodeStatus
    from raft_client.server.runtime.disk import DiskWorker, Storage
    from raft_client.server.runtime.storage.snapshots import SnapshotWriter
    from raft_client.wire.client_requests import TakeSnapshot
    from raft_client.wire.frames import Message

# -- trim --------------------------------------------------------------------------------------------------------------
# A client tells the leader. The leader tells the peers whose connections say that they know Trim; those who connect
# later hear it then, and from the next leader, too. A leader that was not reached when it was said hears it from the
# peers that follow it, and passes it on. So it is known as long as one peer runs, and a message that is lost costs
# nothing.


#: Of what the leader tells others, who do not answer it.
_REQUEST_ID: Final = b"\x00trim"


class Trimming:
    """Belongs to the loop's thread."""

    def __init__(
        self, settings: NodeSettings, machine: StateMachine, send: Callable[[str, list[bytes]], object]
    ) -> None:
        """``send`` sends frames to a peer."""
        self._send = send
        self.settings = settings
        #: Whether its log cannot be trimmed: its state machine cannot do without snapshots.
        self.keeps_state: bool = machine.trimmed(0) is None
        self._able: set[str] = set()  # peers whose present connection knows Trim
        #: The entries up to here may go.
        self.index: int = 0

    def asked(self, message: Trim, status: NodeStatus) -> TrimReply | None:
        """A client or a peer says so. None: no answer."""
        if message.sender:
            if message.index > self.index:
                self.index = message.index
                if status.role is Role.LEADER:
                    self.lead()
            return None
        if status.role is not Role.LEADER:
            return TrimReply(Outcome.NOT_LEADER, status.leader_id)
        if self.keeps_state:
            why = "its state machine keeps what entries say: a snapshot of it takes their place (zmqraft snapshot)"
            return TrimReply(Outcome.REFUSED, reason=why)
        if message.index > status.applied_index:
            return TrimReply(Outcome.REFUSED, reason=f"the log ends at {status.applied_index}")
        self.index = max(self.index, message.index)
        self.lead()
        return TrimReply(Outcome.COMMITTED, status.leader_id, self.index)

    def learn(self, peer_id: str, capabilities: Collection[str], leader_id: str | None) -> None:
        """What this peer says of itself, over its present connection."""
        if Capability.TRIM in capabilities:
            self._able.add(peer_id)
            if self.index and leader_id in {peer_id, self.settings.peer_id}:
                self._tell(peer_id)

    def lost(self, peer_id: str) -> None:
        """There may be another program behind the same address."""
        self._able.discard(peer_id)

    def lead(self) -> None:
        """This peer leads now, or has heard something new."""
        for peer_id in sorted(self._able) if self.index else ():
            self._tell(peer_id)

    def follow(self, leader_id: str | None) -> None:
        """Another peer leads now: it may not have heard."""
        if self.index and leader_id in self._able:
            self._tell(leader_id)

    def _tell(self, peer_id: str) -> None:
        message = Trim(self.settings.ident, self.settings.peer_id, self.index)
        self._send(peer_id, [_REQUEST_ID, *message.to_frames()])


# -- compaction --------------------------------------------------------------------------------------------------------


logger: Final = logging.getLogger("raft_client.server")

#: What is taken of the state machine, and written, at a time.
_PIECE_BYTES: Final = 256 * 1024
#: A snapshot writes the whole state: before it the log has to grow by this many times the bytes of the last one.
_FACTOR: Final = 4
#: Whether a snapshot may take its place is asked this often. A leader that is asked may append to its log.
_ASK_S: Final = 1.0
#: Clients that wait for a snapshot. For one more, the first one hears nothing, and asks again.
_MOST_ASKED: Final = 1_000


class Compaction:
    """Belongs to the loop's thread. Without ``log_bytes`` it does what clients ask for."""

    def __init__(
        self,
        trimming: Trimming,
        machine: StateMachine,
        storage: Storage,
        disk: DiskWorker,
        log_bytes: int | None,
        guard: Callable[[Callable[[], None]], None],
        wake: Callable[[], None],
    ) -> None:
        """``log_bytes`` are applied, at least, between two snapshots.

        ``guard`` runs what follows from work of the other thread; if that raises, the peer ends. ``wake`` makes it take
        a turn.
        """
        self._peer_id = trimming.settings.peer_id
        self._machine, self._storage, self._disk = machine, storage, disk
        self._guard, self._wake = guard, wake
        self._log_bytes, self._trimming = log_bytes, trimming
        self._begun_at_bytes = 0  # what was applied when the last snapshot was begun
        self._writer: SnapshotWriter | None = None
        self._pieces: Iterator[bytes] | None = None
        self._at: tuple[int, int, Configuration] | None = None  # index, term and members of the one that is begun
        self._meta: SnapshotMeta | None = None  # of the one that is held
        self._is_writing = False  # in the other thread
        self._ask_at = 0.0
        self._asked: dict[tuple[bytes, bytes], Callable[[TakeSnapshotReply], None]] = {}  # by route and request id

    def on_request(
        self,
        request: Request,
        message: Trim | TakeSnapshot,
        status: NodeStatus,
        answer: Callable[[Request, Message], None],
    ) -> None:
        """A client wants a snapshot now: it is answered when one is written, or held already. Or the log trimmed."""
        if isinstance(message, Trim):
            reply = self._trimming.asked(message, status)
            if reply is not None:
                answer(request, reply)
        elif not self._trimming.keeps_state:
            why = "its state machine keeps nothing: name the entries that can be dropped (zmqraft trim)"
            answer(request, TakeSnapshotReply(Outcome.REFUSED, reason=why))
        elif self._meta is not None:
            answer(request, TakeSnapshotReply(Outcome.COMMITTED, self._meta.index, self._meta.size))
        else:
            if len(self._asked) >= _MOST_ASKED:
                del self._asked[next(iter(self._asked))]
            self._asked[request.route, request.request_id] = partial(answer, request)

    def _tell_clients(self, reply: TakeSnapshotReply) -> None:
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer(reply)

    def turn(self, node: RaftNode, applied_bytes: int, now: float) -> None:
        """Do what is to be done next; when everything is applied that was handed out. Raises StorageError.

        ``applied_bytes``: of entries, since the start.
        """
        if self._is_writing:
            return
        if self._writer is None:
            if self._asked:
                self._begin_asked(node, applied_bytes)
            elif self._log_bytes is not None and applied_bytes - self._begun_at_bytes >= self._due_bytes(
                self._log_bytes
            ):
                self._begin(node, applied_bytes)
            elif self._trimming.index and not self._trimming.keeps_state and now >= self._ask_at:
                self._ask_at = now + _ASK_S
                self._trim(node)
        elif self._is_outrun():
            self._give_up("another peer's is newer")
        elif self._pieces is not None:
            self._write(self._writer, self._pieces)
        elif self._meta is not None:
            self._end(self._writer, self._meta, node, now)

    def _due_bytes(self, log_bytes: int) -> int:
        state_bytes = 0 if self._storage.snapshot is None else self._storage.snapshot.size
        return max(log_bytes, _FACTOR * state_bytes)

    def _begin_asked(self, node: RaftNode, applied_bytes: int) -> None:
        """Unless the newest snapshot shows what there is."""
        index, newest = node.status().applied_index, self._storage.snapshot
        if index > (0 if newest is None else newest.index):
            self._begin(node, applied_bytes)
        elif newest is None:
            self._tell_clients(TakeSnapshotReply(Outcome.REFUSED, reason="nothing was applied yet"))
        else:
            self._tell_clients(TakeSnapshotReply(Outcome.COMMITTED, newest.index, newest.size))

    def _begin(self, node: RaftNode, applied_bytes: int) -> None:
        self._begun_at_bytes = applied_bytes
        self._begin_at(node.status().applied_index)
        pieces = self._machine.snapshot()
        first = next(pieces, b"")  # a generator that begins later would see entries after this index
        self._pieces = chain((first,), pieces)

    def _trim(self, node: RaftNode) -> None:
        """Whole segments go, when all ids of one have expired; then it is worth a snapshot."""
        newest = 0 if self._storage.snapshot is None else self._storage.snapshot.index
        if self._trimming.settings.trim_forgets_ids:
            self._storage.forget_requests(0.0, up_to=min(self._trimming.index, node.status().applied_index))
        if min(self._trimming.index, self._storage.prune_index) <= newest:
            return
        index = min(self._trimming.index, node.prepare_compaction())
        if index > newest:
            self._begin_at(index)
            self._pieces = iter((self._machine.trimmed(index) or b"",))

    def _begin_at(self, index: int) -> None:
        members = [each for each in self._storage.configurations if each.index <= index]
        self._at = index, self._storage.term_at(index) or 0, members[-1]
        self._writer = self._storage.new_snapshot()

    def _write(self, writer: SnapshotWriter, pieces: Iterator[bytes]) -> None:
        data: list[bytes] = []
        size = 0
        for piece in pieces:
            data.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                self._run_in_background(lambda: writer.write(b"".join(data)), self._wrote)
                return
        self._pieces = None
        if data:
            self._run_in_background(lambda: writer.write(b"".join(data)), self._wrote_all)
        else:
            self._wrote_all(None)

    def _wrote(self, error: Exception | None) -> None:
        """A disk without room costs the snapshot, and nothing else."""
        if isinstance(error, StorageError):
            self._give_up(str(error))
        elif error is not None:
            raise error

    def _wrote_all(self, error: Exception | None) -> None:
        self._wrote(error)
        if error is None and self._writer is not None and self._at is not None:
            index, term, members = self._at
            self._meta = SnapshotMeta(index, term, self._writer.size, members)
            self._tell_clients(TakeSnapshotReply(Outcome.COMMITTED, index, self._writer.size))

    def _end(self, writer: SnapshotWriter, meta: SnapshotMeta, node: RaftNode, now: float) -> None:
        if writer.finished is None:
            if now >= self._ask_at and self._storage.prune_index >= meta.index:
                self._ask_at = now + _ASK_S
                if node.prepare_compaction() >= meta.index:
                    self._run_in_background(lambda: writer.finish(meta), self._ended)
        elif self._disk.is_idle:
            self._storage.compact(meta)
            node.compacted(meta)
            self._forget()
            first = self._storage.first_index
            self._tell(logging.INFO, f"a snapshot of {meta.size} bytes up to {meta.index}; the log begins at {first}")

    def _ended(self, error: Exception | None) -> None:
        """What the disk holds is not known if it failed now."""
        if error is not None:
            raise error

    def _is_outrun(self) -> bool:
        """Whether a newer snapshot came from the leader."""
        current = self._storage.snapshot
        return current is not None and self._at is not None and current.index >= self._at[0]

    def _give_up(self, why: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._storage.abort_snapshot()
        self._forget()
        self._tell_clients(TakeSnapshotReply(Outcome.REFUSED, reason=f"the snapshot was given up: {why}"))
        self._tell(logging.WARNING, f"a snapshot is given up: {why}")

    def _forget(self) -> None:
        self._writer = self._pieces = self._at = self._meta = None

    def close(self) -> None:
        """Nothing is written any more. What is not finished is removed at the next start."""
        if self._writer is not None:
            self._writer.close()

    def _run_in_background(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._is_writing = True

        def then(error: Exception | None) -> None:
            self._is_writing = False
            self._guard(lambda: done(error))
            self._wake()

        self._disk.run_in_background(work, then)

    def _tell(self, level: int, text: str) -> None:
        logger.log(level, "%s", on_one_line(f"peer {self._peer_id}: {text}"))
