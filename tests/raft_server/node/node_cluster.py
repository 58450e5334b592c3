"""Nodes in one process: their messages, disks and state machines, under the eyes of a test.

Messages arrive in order and at once, unless a link is cut; disks are done at once, unless one is held. Every
AppendEntries is looked at as a Node follower would: one that goes back behind its commit index ends the test.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from itertools import count

from memory_log import MemoryLog

from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import (
    Answer,
    Ask,
    Output,
    Persist,
    ReadGranted,
    Ready,
    Reply,
    Request,
    Role,
    SnapshotMeta,
)
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.state import NodeState
from raft_client.wire.client_requests import RequestUpdate
from raft_client.wire.configuration import Peer, Peers
from raft_client.wire.frames import Message
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.peer_messages import AppendEntries

__all__ = ["OURS", "NodeCluster", "make_id", "peers_of"]

#: What our peers say that they know.
OURS = frozenset({"pre-vote", "transfer", "read-index"})
_IDENT = b"test"


def peers_of(names: str) -> Peers:
    """Peers whose ids have one letter."""
    return tuple(Peer(name, f"tcp://127.0.0.1:{8000 + ord(name)}") for name in names)


def make_id(number: int, seconds: float = 1.7e9) -> bytes:
    """A request id that is fresh."""
    return int(seconds).to_bytes(4, "big") + number.to_bytes(8, "big")


class NodeCluster:
    """``capabilities`` are what all say of themselves; an empty set makes Node peers of them, for each other.

    ``gives_up``: a leader without a majority steps down, as it should, and does not go on for a test to look at.
    """

    def __init__(
        self,
        names: str = "abc",
        *,
        seed: int = 1,
        capabilities: frozenset[str] = OURS,
        gives_up: bool = True,
        **options: object,
    ) -> None:
        self._gives_up = gives_up
        self.now, self.wall_s = 1000.0, 1.7e9
        self.seed, self.capabilities, self.options = seed, capabilities, options
        self.logs: dict[str, MemoryLog] = {}
        self.nodes: dict[str, RaftNode] = {}
        self.applied: dict[str, list[LogEntry]] = {}
        self.restored: dict[str, list[SnapshotMeta]] = {}
        self.sent: list[tuple[str, Ask]] = []
        self.answers: list[Answer] = []
        self.reads: list[ReadGranted] = []
        self.cut: set[tuple[str, str]] = set()
        self.held: dict[str, Persist | None] = {}
        self.lost: Callable[[Ask], bool] = lambda _: False
        self._queue: deque[Callable[[], None]] = deque()
        self._clients = count(1)
        for name in names:
            self.start(name, peers_of(names))

    # -- peers ---------------------------------------------------------------------------------------------------------

    def start(self, name: str, peers: Peers = ()) -> None:
        """For the first time with its seed peers, or again with the log that it has."""
        log = self.logs.setdefault(name, MemoryLog(peers))
        self.applied.setdefault(name, [])
        self.restored.setdefault(name, [])
        done = self.applied[name][-1].index if self.applied[name] else 0
        done = max(done, self.restored[name][-1].index if self.restored[name] else 0)
        settings = NodeSettings(peer_id=name, ident=_IDENT, **self.options)  # type: ignore[arg-type]
        rng = random.Random(f"{self.seed} {name}")
        state = NodeState(settings, log, applied_index=done, rng=rng, now=self.now, wall_s=self.wall_s)
        if not self._gives_up:
            state.timing.give_up_s = lambda _now: math.inf  # type: ignore[method-assign]
        self.nodes[name] = RaftNode(state)
        self.introduce()

    def stop(self, name: str) -> None:
        """kill -9."""
        del self.nodes[name]
        self.held.pop(name, None)
        for other in self.nodes.values():
            other.peer_lost(name, self.now)

    def introduce(self) -> None:
        """All say hello to all whom they can reach."""
        for name, node in self.nodes.items():
            for other in self.nodes:
                if other != name and (name, other) not in self.cut:
                    node.set_capabilities(other, self.capabilities, self.now)

    def isolate(self, *names: str) -> None:
        """They and the others do not hear each other."""
        for name in names:
            for other in [*self.logs]:
                if other not in names:
                    self.cut |= {(name, other), (other, name)}

    def heal(self) -> None:
        """All hear all."""
        self.cut.clear()
        self.introduce()

    @property
    def leader(self) -> str:
        """The one that leads in the highest term."""
        leaders = [name for name, node in self.nodes.items() if node.role is Role.LEADER]
        return max(leaders, key=lambda name: self.nodes[name].term)

    def roles(self) -> dict[str, Role]:
        return {name: node.role for name, node in self.nodes.items()}

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due."""
        end = self.now + seconds
        self.settle()
        while (due := min(node.next_deadline() for node in self.nodes.values())) <= end:
            self.now = max(self.now, due)
            for node in [*self.nodes.values()]:
                node.tick(self.now, self.wall_s)
            self.settle()
        self.now = end

    def run_until(self, holds: Callable[[], bool], seconds: float = 5.0) -> None:
        """Let time pass until it holds."""
        end = self.now + seconds
        self.settle()
        while not holds():
            assert self.now < end, f"nothing in {seconds} s: {[node.status() for node in self.nodes.values()]}"
            self.run(0.005)

    def elect(self, name: str | None = None) -> str:
        """Wait for a leader, and make it this one."""
        self.run_until(lambda: any(node.role is Role.LEADER for node in self.nodes.values()))
        if name is not None and self.leader != name:
            assert self.nodes[self.leader].transfer(name, self.now)
            self.run_until(lambda: self.leader == name)
        self.run(0.1)
        return self.leader

    def elected(self) -> tuple[str, ...]:
        """The leader, when there is one, and the others."""
        leader = self.elect()
        return (leader, *(name for name in self.logs if name != leader))

    def settle(self) -> None:
        """Everything that happens without time."""
        for _ in range(100_000):
            if self._queue:
                self._queue.popleft()()
            elif not sum(self._take(name) for name in [*self.nodes]):
                return
        raise AssertionError("they talk for ever")

    # -- what a shell does ---------------------------------------------------------------------------------------------

    def _take(self, name: str) -> bool:
        node = self.nodes[name]
        ready = node.ready()
        for output in ready.send:
            self._send(name, output)
        if ready.persist is not None:
            if name in self.held:
                assert self.held[name] is None, "a second job while the first is under way"
                self.held[name] = ready.persist
            else:
                self._finish(name, ready.persist)
        if ready.restore is not None:
            self.restored[name].append(ready.restore)
            node.applied(ready.restore.index, self.now)
        if ready.apply:
            before = node.status().applied_index
            assert [entry.index for entry in ready.apply] == [*range(before + 1, before + 1 + len(ready.apply))]
            assert ready.apply[-1].index <= self.logs[name].last_index
            self.applied[name].extend(ready.apply)
            node.applied(ready.apply[-1].index, self.now)
        self.reads.extend(ready.reads)
        return ready != Ready()

    def _finish(self, name: str, job: Persist) -> None:
        self.logs[name].do(job)
        self.nodes[name].advance(self.now)

    def hold_disk(self, name: str) -> None:
        """Its jobs are not done until :meth:`release_disk`."""
        self.held[name] = None

    def release_disk(self, name: str) -> None:
        """The job under way is done, and later ones are at once."""
        job = self.held.pop(name)
        if job is not None:
            self._finish(name, job)

    def _send(self, name: str, output: Output) -> None:
        if isinstance(output, Ask):
            self.sent.append((name, output))
            if (name, output.peer_id) not in self.cut and not self.lost(output):
                self._queue.append(lambda: self._arrive(name, output))
        elif isinstance(output, Answer):
            self._queue.append(lambda: self._answer(name, output))

    def _arrive(self, source: str, ask: Ask) -> None:
        node = self.nodes.get(ask.peer_id)
        if node is None:
            return
        if isinstance(ask.message, AppendEntries) and ask.message.term >= node.term:
            assert ask.message.prev_index >= node.commit_index, "a Node follower exits"
        node.step(Request(source.encode(), ask.request_id, ask.message), self.now, self.wall_s)

    def _answer(self, source: str, answer: Answer) -> None:
        target = answer.route.decode()
        if target not in self.logs:
            self.answers.append(answer)
        elif target in self.nodes and (source, target) not in self.cut:
            self.nodes[target].step(Reply(source, answer.request_id, answer.message), self.now, self.wall_s)

    # -- clients -------------------------------------------------------------------------------------------------------

    def ask(self, name: str, message: Message, request_id: bytes = b"\x01", route: bytes = b"client") -> list[Message]:
        """Ask a peer as a client; the answers that it gives at once."""
        before = len(self.answers)
        self.nodes[name].step(Request(route, request_id, message), self.now, self.wall_s)
        self.settle()
        return [answer.message for answer in self.answers[before:] if answer.request_id == request_id]

    def elect_with_one_behind(self) -> tuple[str, str]:
        """A leader, and another member that is cut off and lacks the last update."""
        leader = self.elect()
        target = next(name for name in "abc" if name != leader)
        self.isolate(target)
        self.update(b"x")
        return leader, target

    def update(self, data: bytes, name: str | None = None, request_id: bytes | None = None) -> list[Message]:
        """RequestUpdate, to the leader."""
        request_id = request_id or make_id(next(self._clients))
        return self.ask(name or self.leader, RequestUpdate(_IDENT, data), request_id)

    def data(self, name: str) -> list[bytes]:
        """What the clients appended, as far as this peer has applied it."""
        return [entry.data for entry in self.applied[name] if entry.is_state]

    def compact(self, name: str, data: bytes = b"state") -> int:
        """A snapshot of the state machine takes the place of the log, as far as it may. Its index."""
        node, log = self.nodes[name], self.logs[name]
        node.prepare_compaction()
        self.run(0.2)
        index = node.prepare_compaction()
        configuration = [each for each in log.configurations if each.index <= index][-1]
        meta = SnapshotMeta(index, log.term_at(index) or 0, len(data), configuration)
        log.compact(meta, data)
        node.compacted(meta)
        return index
