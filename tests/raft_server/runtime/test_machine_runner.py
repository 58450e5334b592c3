"""The state machine of a peer: a snapshot is restored step by step while the peer takes part in its cluster, and what
waits has bounds. Real sockets, real disks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.ports import reserved_port
from support.waiting import until

from raft_client import AsyncRaftClient, KeyValueCodec, LogEntry, Peer
from raft_client.errors import StorageError
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.node.ready import HardState, Persist, ReadGranted, Ready, Role, SnapshotMeta
from raft_client.server.node.settings import NodeSettings
from raft_client.server.runtime.machine_runner import MachineRunner, Question
from raft_client.server.runtime.peer import RaftPeer
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.wire.client_requests import ClientDispatch

KEYS = 1000
ALONE = (Peer("1", "tcp://127.0.0.1:1"),)


class GatedMachine(KeyValueStateMachine):
    """Restores nothing before its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False
        self.steps = 0

    def restore(self, index: int, pieces: Iterable[bytes]) -> Iterator[None]:
        while not self.is_open:
            self.steps += 1
            yield
        yield from super().restore(index, pieces)


def open_log(folder: Path, peers: tuple[Peer, ...], peer_id: str = "1") -> DiskLog:
    return DiskLog.open(folder, peer_id=peer_id, ident=b"", peers=peers)


def entry(index: int, data: bytes) -> LogEntry:
    return LogEntry.of(data, term=1, index=index)


def snapshot(log: DiskLog, index: int, value: bytes) -> SnapshotMeta:
    """Of KEYS keys with this value, in the place of the entries up to ``index``."""
    with log.new_snapshot() as writer:
        for piece in KeyValueCodec.encode_snapshot((b"%04d" % key, value) for key in range(KEYS)):
            writer.write(piece)
        meta = SnapshotMeta(index, 1, writer.size, log.configurations[-1])
        writer.finish(meta)
    log.compact(meta)
    log.maintain()
    return meta


def fill(folder: Path, peers: tuple[Peer, ...], peer_id: str) -> DiskLog:
    """A log with ten entries that a snapshot replaces, and one behind it."""
    log = open_log(folder, peers, peer_id)
    entries = tuple(entry(index, KeyValueCodec.set("after", str(index))) for index in range(1, 12))
    log.write(Persist(hard_state=HardState(1), entries=entries))
    log.sync()
    snapshot(log, 10, b"v")
    return log


def runner_of(machine: KeyValueStateMachine, log: DiskLog, dropped: list[str] | None = None) -> MachineRunner:
    drop = [].append if dropped is None else dropped.append
    return MachineRunner(machine, log, b"", publish=lambda _message: None, drop=drop)


async def test_peers_that_restore_a_snapshot_vote_and_answer(tmp_path: Path) -> None:
    """While peers that have just started restore their snapshots they elect a leader, keep it, answer questions about
    the log, and take entries onto their disks; these are answered when the state machine is complete."""
    peers = tuple(Peer(number, f"tcp://127.0.0.1:{reserved_port()}") for number in "12")
    machines = [GatedMachine(), GatedMachine()]
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                RaftPeer(NodeSettings(peer_id=peer.id), fill(tmp_path / peer.id, peers, peer.id), machine, url=peer.url)
            )
            for peer, machine in zip(peers, machines, strict=True)
        ]
        await until(lambda: any(peer.status().role is Role.LEADER for peer in running))
        client = await stack.enter_async_context(AsyncRaftClient([peer.url for peer in peers]))
        info = await client.log_info()
        assert (info.last_applied, info.last_index >= 11) == (0, True)
        leader = next(peer for peer in running if peer.status().role is Role.LEADER)
        term, steps = leader.status().term, machines[0].steps
        appended = asyncio.create_task(client.append(KeyValueCodec.set("new", "value")))
        stack.callback(appended.cancel)
        await until(lambda: min(peer.status().durable_index for peer in running) > info.last_index)
        await until(lambda: machines[0].steps > steps + 100)
        assert (leader.status().term, leader.status().applied_index, appended.done()) == (term, 0, False)
        for machine in machines:
            machine.is_open = True
        index = await appended
        await until(lambda: min(peer.status().applied_index for peer in running) >= index)
        for machine in machines:
            assert [machine.get(key) for key in (b"0000", b"0999", b"after", b"new")] == [b"v", b"v", b"11", b"value"]


async def test_a_snapshot_of_something_else_ends_the_start(tmp_path: Path) -> None:
    """A peer whose snapshot its state machine cannot read does not start, and says which one it needs."""
    peers = (Peer("1", f"tcp://127.0.0.1:{reserved_port()}"),)
    log = open_log(tmp_path, peers)
    log.write(Persist(hard_state=HardState(1), entries=(entry(1, b"x"),)))
    log.sync()
    with log.new_snapshot() as writer:
        writer.write(b"\xc1 no MessagePack")
        meta = SnapshotMeta(1, 1, writer.size, log.configurations[-1])
        writer.finish(meta)
    log.compact(meta)
    peer = RaftPeer(NodeSettings(peer_id="1"), log, KeyValueStateMachine(), url=peers[0].url)
    with pytest.raises(StorageError, match="start the peer with the one that made it"):
        await peer.start()
    await peer.close()


def test_what_comes_with_a_snapshot_waits_for_its_end(tmp_path: Path) -> None:
    """Entries and questions that come with a snapshot, or while it is restored, wait until its last step."""
    answers: list[object] = []
    with fill(tmp_path, ALONE, "1") as log:
        machine = GatedMachine()
        runner = runner_of(machine, log)
        meta = log.snapshot
        reads = (ReadGranted(_question(answers), 11),)
        entries = tuple(log.entries(10, 11, 1000))
        assert runner.carry_out(Ready(restore=meta, apply=entries, reads=reads), 0.0) is None
        assert runner.carry_out(Ready(reads=(ReadGranted(_question(answers), 11),)), 0.0) is None
        assert (machine.last_applied, answers, runner.is_restoring) == (0, [], True)
        machine.is_open = True
        applied = None
        while applied is None:
            applied = runner.carry_out(Ready(), 0.0)
        assert (applied, machine.last_applied, runner.is_restoring, runner.restored_snapshots) == (11, 11, False, 1)
        assert answers == [[b"\x0b", b"\x01", b"11"]] * 2


def test_a_newer_snapshot_does_not_change_the_one_that_is_restored(tmp_path: Path) -> None:
    """A snapshot that takes the place of the one that is being restored, file and all, changes nothing in it."""
    with fill(tmp_path, ALONE, "1") as log:
        machine = GatedMachine()
        runner = runner_of(machine, log)
        assert runner.carry_out(Ready(restore=log.snapshot), 0.0) is None
        newer = snapshot(log, 11, b"newer")
        assert len([name for name in tmp_path.iterdir() if name.name.startswith("snapshot-")]) == 1
        machine.is_open = True
        restored = [_restored(runner)]
        older = machine.get(b"0500")
        runner.carry_out(Ready(restore=newer), 0.0)
        restored.append(_restored(runner))
        assert (restored, older, machine.get(b"0500")) == ([10, 11], b"v", b"newer")


def test_a_peer_that_ends_gives_up_what_it_restores(tmp_path: Path) -> None:
    """A peer that is closed half-way leaves no file open, and the state as it was."""
    with fill(tmp_path, ALONE, "1") as log:
        machine = GatedMachine()
        runner = runner_of(machine, log)
        before = len(list(Path("/proc/self/fd").iterdir()))
        runner.carry_out(Ready(restore=log.snapshot), 0.0)
        runner.close()
        assert (len(list(Path("/proc/self/fd").iterdir())), machine.last_applied) == (before, 0)


def _restored(runner: MachineRunner) -> int:
    while (applied := runner.carry_out(Ready(), 0.0)) is None:
        assert runner.is_restoring
    return applied


def _question(answers: list[object]) -> Question:
    return Question(ClientDispatch(b"kv.get", b"", (b"after",)), answers.append)


@pytest.mark.parametrize(("size", "most"), [(1, 10_000), (10 * 1024 * 1024, 6)])
def test_questions_that_wait_are_bounded_in_number_and_bytes(tmp_path: Path, size: int, most: int) -> None:
    """Questions beyond 10,000, or beyond 64 MiB, are dropped and counted; there is room again when one is answered."""
    dropped: list[str] = []
    answers: list[object] = []
    message = ClientDispatch(b"kv.get", b"", (bytes(size),))
    with open_log(tmp_path, ALONE) as log:
        runner = runner_of(KeyValueStateMachine(), log, dropped)
        questions = [Question(message, answers.append) for _ in range(most + 1)]
        assert [runner.ask(question) for question in questions] == [True] * most + [False]
        assert dropped == ["too many questions"]
        for index in (1, None):  # answered, and dropped because the peer does not lead
            runner.carry_out(Ready(reads=(ReadGranted(questions.pop(0), index),)), 0.0)
            assert runner.ask(Question(message, answers.append))
        assert not runner.ask(Question(message, answers.append))
    assert len(answers) == 1
