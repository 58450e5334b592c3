"""Snapshots between peers, and what may be compacted (Raft, §5; facts §1.4, InstallSnapshot)."""

from __future__ import annotations

import random

import pytest
from memory_log import MemoryLog
from node_cluster import OURS, NodeCluster, make_id, peers_of

from raft_client.server.node.node import RaftNode
from raft_client.server.node.ready import Answer, Ask, HardState, Persist, Ready, Request, Role, SnapshotMeta
from raft_client.server.node.settings import NodeSettings
from raft_client.server.node.state import NodeState
from raft_client.wire.client_requests import Outcome, RequestUpdate, UpdateReply
from raft_client.wire.configuration import ConfigChange, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry, SnapshotChunk
from raft_client.wire.peer_messages import AppendEntries, InstallSnapshot, SnapshotReply, TimeoutNow, TimeoutNowReply

NODE: frozenset[str] = frozenset()


def entry(index: int, term: int) -> LogEntry:
    return LogEntry.of(b"x", term=term, index=index, request_id=LogEntry(0, make_id(index)).request_id)


def chunk(offset: int, data: bytes, *, size: int = 6, index: int = 5, term: int = 1) -> InstallSnapshot:
    """Of the snapshot of the leader b."""
    return InstallSnapshot(b"test", "b", 2, SnapshotChunk(index, term, offset, size, data))


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 2500])
@pytest.mark.parametrize("capabilities", [OURS, NODE])
def test_a_follower_that_lacks_compacted_entries_gets_the_snapshot(capabilities: frozenset[str], size: int) -> None:
    """A follower that lacks compacted entries gets the snapshot in chunks, then the entries after it, and applies
    nothing twice."""
    cluster = NodeCluster(capabilities=capabilities, max_message_bytes=1000)
    leader, other, follower = cluster.elected()
    cluster.isolate(follower)
    for number in range(20):
        cluster.update(b"%d" % number)
    data = bytes(range(256)) * 10
    index = cluster.compact(leader, data[:size])
    assert index == cluster.compact(other, data[:size]) == 20
    cluster.update(b"after")
    cluster.heal()
    cluster.run(1.5)
    assert [meta.index for meta in cluster.restored[follower]] == [index]
    assert cluster.logs[follower].snapshot_data == data[:size]
    assert cluster.data(follower)[-1] == b"after"
    assert cluster.logs[follower].log == cluster.logs[other].log
    cluster.update(b"more")
    cluster.run(0.3)
    assert cluster.data(follower)[-1] == b"more"


def test_a_snapshot_that_is_replaced_on_its_way_begins_again() -> None:
    """A snapshot that is replaced while it is sent begins again, so that no chunks of two are mixed."""
    cluster = NodeCluster(max_message_bytes=1000)
    leader, follower, _ = cluster.elected()
    cluster.isolate(follower)
    for number in range(20):
        cluster.update(b"%d" % number)
    cluster.compact(leader, b"1" * 5000)
    seen = 0

    def third(ask: Ask) -> bool:
        nonlocal seen
        seen += isinstance(ask.message, InstallSnapshot)
        return seen >= 3 and isinstance(ask.message, InstallSnapshot)

    cluster.lost = third
    cluster.heal()
    cluster.run(0.2)
    for number in range(100):
        cluster.update(b"%d" % number)
    cluster.run(0.1)
    cluster.compact(leader, b"2" * 5000)
    cluster.lost = lambda _: False
    cluster.run(1.5)
    assert cluster.logs[follower].snapshot_data == b"2" * 5000
    assert cluster.logs[follower].log == cluster.logs[leader].log


def test_the_chunks_of_a_snapshot_and_its_end() -> None:
    """Each chunk's reply waits for the disk, and a chunk that is not expected is answered with the expected offset."""
    cluster = NodeCluster()
    assert cluster.ask("a", chunk(3, b"def"), b"\x01") == [SnapshotReply(2, 0)]
    assert cluster.ask("a", chunk(0, b"abc"), b"\x02") == [SnapshotReply(2)]
    assert cluster.ask("a", chunk(5, b"f"), b"\x03") == [SnapshotReply(2, 3)]
    cluster.hold_disk("a")
    assert cluster.ask("a", chunk(3, b"def"), b"\x04") == []
    assert cluster.restored["a"] == []
    cluster.release_disk("a")
    cluster.settle()
    assert cluster.answers[-1].message == SnapshotReply(2)
    assert cluster.logs["a"].snapshot_data == b"abcdef"
    assert [meta.index for meta in cluster.restored["a"]] == [5]
    assert cluster.nodes["a"].commit_index == 5


def test_another_leaders_snapshot_begins_again() -> None:
    """A snapshot of another leader begins again, since the same index, term and size may have other bytes."""
    cluster = NodeCluster()
    cluster.ask("a", chunk(0, b"abc"), b"\x01")
    other = InstallSnapshot(b"test", "c", 3, SnapshotChunk(5, 1, 3, 6, b"DEF"))
    assert cluster.ask("a", other, b"\x02") == [SnapshotReply(3, 0)]


def test_a_snapshot_of_what_is_committed_here_is_passed_over() -> None:
    """For a snapshot of what is committed here, the leader is sent to its end, and nothing changes."""
    cluster = NodeCluster()
    five = tuple(entry(index, 1) for index in range(1, 6))
    cluster.ask("a", AppendEntries(b"test", "b", 2, 0, 0, 5, five), b"\x01")
    assert cluster.ask("a", chunk(0, b"abc"), b"\x02") == [SnapshotReply(2, 6)]
    assert cluster.ask("a", chunk(6, b""), b"\x03") == [SnapshotReply(2)]
    assert cluster.logs["a"].snapshot is None


def test_entries_that_are_being_written_and_a_snapshot() -> None:
    """A snapshot that arrives while the disk writes entries that it replaces gives the same end."""
    cluster = NodeCluster()
    cluster.hold_disk("a")
    cluster.ask("a", AppendEntries(b"test", "b", 2, 0, 0, 0, tuple(entry(i, 2) for i in range(1, 8))), b"\x01")
    cluster.ask("a", chunk(0, b"abcdef", term=1), b"\x02")
    cluster.ask("a", AppendEntries(b"test", "b", 2, 5, 1, 5, (entry(6, 2),)), b"\x03")
    cluster.release_disk("a")
    cluster.settle()
    assert [cluster.logs["a"].term_at(index) for index in (5, 6, 7)] == [1, 2, None]
    assert cluster.nodes["a"].status().durable_index == 6
    cluster.ask("a", AppendEntries(b"test", "b", 2, 6, 2, 6), b"\x04")
    assert [each.index for each in cluster.applied["a"]] == [6]


def test_the_log_may_be_compacted_up_to_the_last_configuration() -> None:
    """After compaction up to the last configuration the leader appends that again, because snapshots have none."""
    cluster = NodeCluster()
    leader, follower, _ = cluster.elected()
    assert cluster.nodes[leader].prepare_compaction() == 0
    for number in range(10):
        cluster.update(b"%d" % number)
    assert cluster.nodes[leader].prepare_compaction() == 0
    cluster.run(0.2)
    assert cluster.logs[leader].log[-1].kind is EntryKind.CONFIG
    assert cluster.nodes[leader].prepare_compaction() == 10
    for _ in range(5):
        assert cluster.nodes[leader].prepare_compaction() == 10
        cluster.run(0.2)
    assert cluster.nodes[leader].status().last_index == 11
    assert cluster.nodes[follower].prepare_compaction() == 10


def test_request_ids_that_are_remembered_keep_the_log() -> None:
    """The log is kept as far as request ids are remembered, because a snapshot has none (facts §3: min(commitIndex,
    pruneIndex))."""
    cluster = NodeCluster()
    leader = cluster.elect()
    for number in range(10):
        cluster.update(b"%d" % number)
    cluster.nodes[leader].prepare_compaction()
    cluster.run(0.2)
    cluster.logs[leader].prune_index = 4
    assert cluster.nodes[leader].prepare_compaction() == 4


def test_a_peer_with_a_snapshot_and_no_configuration_after_it_does_not_stand() -> None:
    """The members that it remembers may be gone, and would elect it beside the present ones."""
    cluster = NodeCluster()
    cluster.ask("a", chunk(0, b"abcdef"))
    take_over = TimeoutNow(b"test", "b", 2)
    assert cluster.ask("a", take_over, b"\x07") == [TimeoutNowReply(2, started=False)]
    cluster.isolate("a")
    cluster.run(1.0)
    assert cluster.nodes["a"].role is Role.FOLLOWER
    cluster.stop("a")
    cluster.start("a")
    cluster.run(1.0)
    assert (cluster.nodes["a"].role, cluster.nodes["a"].term) == (Role.FOLLOWER, 2)


def test_it_stands_when_a_configuration_has_come() -> None:
    """A peer with a snapshot stands for election once a configuration has come, which our leaders append after each."""
    cluster = NodeCluster()
    cluster.ask("a", chunk(0, b"abcdef"))
    data = encode_config(ConfigChange(peers_of("abc")))
    config = LogEntry.of(data, term=2, kind=EntryKind.CONFIG, index=6)
    cluster.ask("a", AppendEntries(b"test", "b", 2, 5, 1, 5, (config,)), b"\x02")
    assert cluster.ask("a", TimeoutNow(b"test", "b", 2), b"\x07") == [TimeoutNowReply(3, started=True)]


def test_a_state_machine_that_lost_its_state_is_restored_first() -> None:
    """A state machine that lacks what was compacted is restored from the snapshot at the start."""
    cluster = NodeCluster("a")
    cluster.run(0.1)
    for number in range(10):
        cluster.update(b"%d" % number)
    index = cluster.compact("a")
    cluster.stop("a")
    cluster.applied["a"].clear()
    cluster.start("a")
    cluster.run(0.1)
    assert [meta.index for meta in cluster.restored["a"]] == [index]
    last = cluster.nodes["a"].status().last_index
    assert [each.index for each in cluster.applied["a"]] == [*range(index + 1, last + 1)]


def test_a_hard_state_that_is_older_than_the_log_is_refused() -> None:
    """A hard state that is older than the log is refused, because a vote may have been lost with the newer one."""
    cluster = NodeCluster("")
    log = cluster.logs["a"] = MemoryLog(peers_of("abc"))
    log.do(Persist(HardState(1), entries=(entry(1, 2),)))
    with pytest.raises(ValueError, match="older than the log"):
        cluster.start("a")


def test_a_snapshot_is_restored_when_it_is_durable_and_not_when_it_can_be_read() -> None:
    """A snapshot is restored only when it is durable, because a log may show what is not on the disk yet."""
    cluster = NodeCluster()
    cluster.hold_disk("a")
    cluster.ask("a", chunk(0, b"abcdef"))
    held = cluster.held["a"]
    assert held is not None
    cluster.logs["a"].do(held)
    cluster.nodes["a"].tick(cluster.now, cluster.wall_s)
    cluster.settle()
    assert cluster.restored["a"] == []
    cluster.held["a"] = Persist()
    cluster.release_disk("a")
    cluster.settle()
    assert [meta.index for meta in cluster.restored["a"]] == [5]


def test_a_leader_whose_log_has_no_configuration_after_its_snapshot_appends_one() -> None:
    """A leader whose log has no configuration after its snapshot, as a Node peer may leave it, appends one."""
    cluster = NodeCluster("")
    for name in "abc":
        log = cluster.logs[name] = MemoryLog(peers_of("abc"))
        log.do(Persist(HardState(1)))
        if name != "c":
            log.compact(SnapshotMeta(5, 1, 3, log.start), b"abc")
    for name in "abc":
        cluster.start(name)
    cluster.run(1.5)
    assert cluster.leader != "c"
    assert [entry.kind for entry in cluster.logs[cluster.leader].log] == [EntryKind.CONFIG]
    assert [meta.members_known for meta in cluster.restored["c"]] == [False]
    assert cluster.nodes["c"]._state.log.knows_configuration
    cluster.elect("c")


def test_a_snapshot_is_restored_rather_than_the_entries_before_it() -> None:
    """A peer that starts restores its snapshot, although entries before it are still on its disk."""
    log = MemoryLog(peers_of("a"))
    log.do(Persist(hard_state=HardState(1), entries=tuple(entry(index, 1) for index in range(1, 21))))
    meta = SnapshotMeta(10, 1, 5, log.start)
    log.cache.snapshot = meta
    node = sole_node(log)
    node.tick(1001.0, 1.7e9)
    done = carry_out(node, log)
    assert [ready.restore for ready in done if ready.restore is not None] == [meta]
    assert next(each.index for ready in done for each in ready.apply) == 11


def test_a_restored_snapshot_of_many_entries_answers_those_who_wait() -> None:
    """A leader that restores a snapshot of a million million entries answers the client that waits, without counting
    through them."""
    index = 10**12
    log = MemoryLog(peers_of("a"))
    log.do(Persist(hard_state=HardState(1)))
    log.compact(SnapshotMeta(index, 1, 5, log.start), b"state")
    node = sole_node(log)
    node.tick(1001.0, 1.7e9)
    persist = node.ready().persist
    assert persist is not None
    log.do(persist)
    node.advance(1001.0)
    assert node.role is Role.LEADER
    node.step(Request(b"client", make_id(1), RequestUpdate(b"test", b"data")), 1001.0, 1.7e9)
    node.applied(index, 1001.0)
    done = carry_out(node, log)
    answers = [output.message for ready in done for output in ready.send if isinstance(output, Answer)]
    last = max(each.index for ready in done for each in ready.apply)
    assert (answers[-1], last > index) == (UpdateReply(Outcome.COMMITTED, last), True)


def sole_node(log: MemoryLog) -> RaftNode:
    """Of a cluster of one, which has applied nothing."""
    settings = NodeSettings(peer_id="a", ident=b"test")
    return RaftNode(NodeState(settings, log, applied_index=0, rng=random.Random(1), now=1000.0, wall_s=1.7e9))


def carry_out(node: RaftNode, log: MemoryLog) -> list[Ready]:
    """Until it wants nothing more."""
    done = []
    while (ready := node.ready()) != Ready():
        done.append(ready)
        if ready.persist is not None:
            log.do(ready.persist)
            node.advance(1001.0)
        if ready.restore is not None:
            node.applied(ready.restore.index, 1001.0)
        if ready.apply:
            node.applied(ready.apply[-1].index, 1001.0)
    return done
