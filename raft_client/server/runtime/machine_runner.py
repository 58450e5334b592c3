"""What runs the state machine of a peer: entries go in; broadcasts, answers and what watches are told come out."""

from __future__ import annotations

import math
import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from raft_client.errors import ProtocolError, StorageError
from raft_client.server.machines.broadcast import Broadcaster
from raft_client.server.machines.change_history import LEAST_CHANGED_BYTES
from raft_client.server.machines.state_machine import WatchableStateMachine
from raft_client.server.machines.watch_server import WatchServer, WatchServerLimits
from raft_client.server.node.ready import ReadGranted
from raft_client.server.runtime.lease_keeper import LeaseKeeper
from raft_client.wire.log_entry import Position, newest_id

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from raft_client.server.machines.state_machine import Applied, StateMachine
    from raft_client.server.node.ready import Ready, SnapshotMeta
    from raft_client.server.node.status import NodeStatus
    from raft_client.server.runtime.disk import Storage
    from raft_client.wire.client_requests import ClientDispatch
    from raft_client.wire.log_entry import LogEntry
    from raft_client.wire.streams import StateBroadcast
    from raft_client.wire.watch_messages import WatchReply, WatchRequest

# -- watches -----------------------------------------------------------------------------------------------------------


#: Where the numbers of sessions of one start begin: another start is not to come near them.
_FIRST_SESSIONS: Final = 2**52
_EMPTY_LOG: Final = Position(0)


class WatchService:
    """``server`` is None if the state machine does not tell its changes: then the peer serves no watches.

    ``replayed`` is the last entry of the log at the start. What the history cannot hold until there is not written
    into it in the first place: the old entries of a long log are applied twice as fast, and nobody can watch them.
    """

    def __init__(
        self, machine: StateMachine, limits: WatchServerLimits | None = None, *, replayed: Position = _EMPTY_LOG
    ) -> None:
        self.server: WatchServer | None = None
        self._changes: list[Applied] = []
        self._term = 0
        limits = limits or WatchServerLimits()
        #: The history begins at this index; or at a later term, if the end of the log is replaced.
        self._skipped_to = max(0, replayed.index - limits.history_bytes // LEAST_CHANGED_BYTES)
        self._replayed_term = replayed.term
        if isinstance(machine, WatchableStateMachine):
            self.server = WatchServer(Position(0), limits, first_session=secrets.randbelow(_FIRST_SESSIONS))
            self._listen = partial(machine.tell_changes, self._changes.append)
            if not self._skipped_to:
                self._listen()

    def request(self, route: bytes, request_id: bytes, message: WatchRequest, now: float) -> bool:
        """Whether it can be served."""
        if self.server is None or self._skipped_to:
            return False
        self.server.request(route, request_id, message, now)
        return True

    def lead(self, *, leads: bool) -> None:
        """Whether the peer leads now."""
        if self.server is not None:
            self.server.leads = leads

    def applied(self, entries: Sequence[LogEntry]) -> None:
        """The state machine has applied these entries: at least one, of all kinds."""
        if self.server is None:
            return
        if self._skipped_to:
            self.restored(entries[-1].position)
            return
        changes = iter(self._changes)
        changed = next(changes, None)
        if changed is None and entries[-1].term == self._term:  # terms only rise
            self.server.applied(entries[-1].index, self._term, entry_id=newest_id(entries))
            return
        entry_id = b""
        for entry in entries:
            entry_id = entry.entry_id or entry_id
            if changed is not None and changed.index == entry.index:
                self.server.applied(entry.index, entry.term, changed.changes, entry_id)
                changed = next(changes, None)
            elif entry.term != self._term:
                self.server.applied(entry.index, entry.term, entry_id=entry_id)
            self._term = entry.term
        self.server.applied(entries[-1].index, self._term, entry_id=entry_id)
        self._changes.clear()

    def restored(self, snapshot: Position) -> None:
        """What the entries up to this position changed is not known: a snapshot took their place, or nobody asks."""
        if self.server is not None:
            self._changes.clear()
            self._term = snapshot.term
            self.server.restored(snapshot)
            if self._skipped_to and (snapshot.index >= self._skipped_to or snapshot.term > self._replayed_term):
                self._skipped_to = 0
                self._listen()

    def turn(self, now: float, send: Callable[[list[bytes]], bool]) -> None:
        """Tell what there is to be told. ``send`` takes the route, the request id and the other frames, or refuses."""
        if self.server is None:
            return
        self.server.turn(now)
        refused: set[bytes] = set()
        latest: WatchReply | None = None
        frames: list[bytes] = []
        for each in self.server.take():
            if each.route in refused:
                continue  # something before it was not sent
            if each.reply is not latest:  # many watches are told the same
                latest, frames = each.reply, each.reply.to_frames()
            if not send([each.route, each.request_id, *frames]):
                refused.add(each.route)
                self.server.refused(each.route)

    def next_deadline(self) -> float | None:
        """When :meth:`turn` has something to do, 0 for at once; None if never."""
        return None if self.server is None else self.server.next_deadline()


# -- machine runner ----------------------------------------------------------------------------------------------------


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
        peer_id: str = "",
    ) -> None:
        #: Since the start, entries that were applied again included.
        self.applied_entries: int = 0
        self.applied_bytes: int = 0
        self.restored_snapshots: int = 0
        last = storage.last_index
        self.watches: WatchService = WatchService(machine, replayed=Position(last, storage.term_at(last) or 0))
        self.leases: LeaseKeeper = LeaseKeeper(machine, peer_id)
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

    def may_be_stale(self, message: ClientDispatch) -> bool:
        """Whether it needs no read of the cluster."""
        return self._machine.may_be_stale(message)

    def answer_as_it_is(self, question: Question) -> None:
        """Answer it, which was asked, from what is applied here, when :meth:`carry_out` is called next."""
        self._reads.append(ReadGranted(question, 0))

    def carry_out(self, ready: Ready, now: float) -> int | None:
        """Restore, apply, answer, as it says. Returns up to where the log is applied now; None if nothing was.

        One step of restoring: call it again while :attr:`is_restoring`. What is applied or answered after it waits.
        Raises StorageError, also for a snapshot that another state machine made.
        """
        applied = None
        self._reads += ready.reads
        self._entries += ready.apply
        if ready.restore is not None:
            self._restoring = self._restore(ready.restore, now)
        if self._restoring is not None:
            if (restored := next(self._restoring, None)) is None:
                return None
            self._restoring, applied = None, restored
        entries, self._entries = self._entries, ()
        if entries:
            self._machine.apply(entries)
            self.watches.applied(entries)
            self.leases.applied(now)
            applied = entries[-1].index
            self.applied_entries += len(entries)
            self.applied_bytes += sum(entry.size for entry in entries)
            self._say(self._broadcaster.applied(entries, now))
        reads, self._reads = self._reads, []
        for granted in reads:
            self._answer(granted)
        return applied

    def _restore(self, snapshot: SnapshotMeta, now: float) -> Generator[int | None]:
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
        self.leases.restored(now)
        yield snapshot.index

    def close(self) -> None:
        """Give up what is being restored."""
        if self._restoring is not None:
            self._restoring.close()

    def lead(self, status: NodeStatus, now: float) -> None:
        """The peer leads now. What is in its log already is not told again: subscribers see what they miss."""
        self.watches.lead(leads=True)
        self.leases.lead(now)
        self._say(self._broadcaster.lead(status.term, status.applied_index, now, tell_after=status.last_index))

    def follow(self) -> None:
        """The peer leads no longer."""
        self.watches.lead(leads=False)
        self.leases.follow()
        self._broadcaster.follow()

    def tick(self, now: float) -> None:
        """Say that the peer leads, if it has said nothing for long."""
        self._say(self._broadcaster.tick(now))

    def next_deadline(self) -> float:
        """When :meth:`tick`, the watches or the leases have something to do; 0 for at once, infinity for never."""
        deadlines = (self._broadcaster.next_deadline(), self.watches.next_deadline(), self.leases.next_deadline())
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
