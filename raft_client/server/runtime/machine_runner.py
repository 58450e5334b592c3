"""What runs the state machine of a peer: entries go in, broadcasts and answers come out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.errors import ProtocolError, StorageError
from raft_client.server.machines.broadcast import Broadcaster
from raft_client.server.runtime.watch_service import WatchService
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from raft_client.server.machines.state_machine import StateMachine
    from raft_client.server.node.ready import ReadGranted, Ready
    from raft_client.server.node.status import NodeStatus
    from raft_client.server.node.stored_log import SnapshotMeta
    from raft_client.server.runtime.disk import Storage
    from raft_client.wire.client_requests import ClientDispatch
    from raft_client.wire.log_entry import LogEntry
    from raft_client.wire.streams import StateBroadcast

#: Questions that wait until the peer knows that it still leads. More are dropped, and asked again.
_MOST_QUESTIONS: Final = 10_000
_MOST_QUESTION_BYTES: Final = 64 * 1024 * 1024


class Question:
    """A message for the state machine, and how to answer it. Also the token of its read."""

    __slots__ = ("answer", "message", "size")

    def __init__(self, message: ClientDispatch, answer: Callable[[Sequence[bytes]], None]) -> None:
        self.message: ClientDispatch = message
        self.answer: Callable[[Sequence[bytes]], None] = answer
        self.size: int = sum(map(len, message.frames))


class MachineRunner:
    """One state machine. ``publish`` takes what subscribers are told, ``drop`` why something is not answered."""

    def __init__(
        self,
        machine: StateMachine,
        storage: Storage,
        ident: bytes,
        *,
        publish: Callable[[StateBroadcast], None],
        drop: Callable[[str], None],
    ) -> None:
        #: Since the start, entries that were applied again included.
        self.applied_entries: int = 0
        self.applied_bytes: int = 0
        self.restored_snapshots: int = 0
        last = storage.last_index
        self.watches: WatchService = WatchService(machine, replayed=Position(last, storage.term_at(last) or 0))
        self._machine = machine
        self._storage = storage
        self._publish = publish
        self._drop = drop
        self._broadcaster = Broadcaster(ident)
        #: A snapshot that is being restored, step by step, and what is to be done after it.
        self._restoring: Generator[int | None] | None = None
        self._entries: tuple[LogEntry, ...] = ()
        self._reads: list[ReadGranted] = []
        self._waiting: set[Question] = set()
        self._waiting_bytes = 0

    @property
    def is_restoring(self) -> bool:
        """Whether a snapshot is restored in part: the state is neither the old nor the new one."""
        return self._restoring is not None

    def ask(self, question: Question) -> bool:
        """Whether the question may wait for its read."""
        if len(self._waiting) >= _MOST_QUESTIONS or self._waiting_bytes + question.size > _MOST_QUESTION_BYTES:
            self._drop("too many questions")
            return False
        self._waiting.add(question)
        self._waiting_bytes += question.size
        return True

    def carry_out(self, ready: Ready, now: float) -> int | None:
        """Restore, apply, answer, as it says. Returns up to where the log is applied now; None if nothing was.

        One step of restoring: call it again while :attr:`is_restoring`. What is applied or answered after it waits.
        Raises StorageError, also for a snapshot that another state machine made.
        """
        applied = None
        self._reads += ready.reads
        self._entries += ready.apply
        if ready.restore is not None:
            self._restoring = self._restore(ready.restore)
        if self._restoring is not None:
            if (restored := next(self._restoring, None)) is None:
                return None
            self._restoring, applied = None, restored
        entries, self._entries = self._entries, ()
        if entries:
            self._machine.apply(entries)
            self.watches.applied(entries)
            applied = entries[-1].index
            self.applied_entries += len(entries)
            self.applied_bytes += sum(entry.size for entry in entries)
            self._say(self._broadcaster.applied(entries, now))
        reads, self._reads = self._reads, []
        for granted in reads:
            self._answer(granted)
        return applied

    def _restore(self, snapshot: SnapshotMeta) -> Generator[int | None]:
        """None for each step, then the index of the snapshot."""
        pieces = self._storage.snapshot_pieces()
        try:
            yield from self._machine.restore(snapshot.index, pieces) or ()
        except ProtocolError as error:
            what = f"the snapshot up to entry {snapshot.index} cannot be read by this state machine"
            raise StorageError(f"{what}: {error}; start the peer with the one that made it") from error
        finally:
            pieces.close()
        self.restored_snapshots += 1
        self._broadcaster.restored(snapshot.index)
        self.watches.restored(Position(snapshot.index, snapshot.term))
        yield snapshot.index

    def close(self) -> None:
        """Give up what is being restored."""
        if self._restoring is not None:
            self._restoring.close()

    def lead(self, status: NodeStatus, now: float) -> None:
        """The peer leads now. What is in its log already is not told again: subscribers see what they miss."""
        self.watches.lead(leads=True)
        self._say(self._broadcaster.lead(status.term, status.applied_index, now, tell_after=status.last_index))

    def follow(self) -> None:
        """The peer leads no longer."""
        self.watches.lead(leads=False)
        self._broadcaster.follow()

    def tick(self, now: float) -> None:
        """Say that the peer leads, if it has said nothing for long."""
        self._say(self._broadcaster.tick(now))

    def next_deadline(self) -> float:
        """When :meth:`tick`, or the watches, have something to do; 0 for at once, infinity for never."""
        deadlines = (self._broadcaster.next_deadline(), self.watches.next_deadline())
        return min((each for each in deadlines if each is not None), default=math.inf)

    def _say(self, message: StateBroadcast | None) -> None:
        if message is not None:
            self._publish(message)

    def _answer(self, granted: ReadGranted) -> None:
        question = granted.token
        if not isinstance(question, Question):
            return
        self._waiting.discard(question)
        self._waiting_bytes -= question.size
        if granted.index is None:
            return  # only the leader answers for the state machine; its client looks for it
        try:
            frames = self._machine.dispatch(question.message)
        except ProtocolError:
            self._drop("malformed")
            return
        if frames is not None:
            question.answer(frames)
