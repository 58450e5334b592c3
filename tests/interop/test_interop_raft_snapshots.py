"""Snapshots between Node peers (npm zmq-raft 0.5.0) and ours: each kind installs what the other one made."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.raft_peers import MixedCluster

from raft_client import LogEntry, Peer, RaftClient, SnapshotChunk
from raft_client.server.node.ready import SnapshotMeta
from raft_client.server.runtime.storage.disk_log import DiskLog

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("zmq_raft"), pytest.mark.turns(2)]


#: So long that a snapshot comes in several chunks of 64 KiB, and that our log has a second segment: whole ones are
#: dropped.
ENTRY_BYTES = 8_000
ENTRIES, COMPACTED = 3_000, 2_500


def append(log: RaftClient, name: str, count: int = ENTRIES) -> None:
    log.append_many(f"{name} {n} ".encode().ljust(ENTRY_BYTES) for n in range(count))


def disk_of(cluster: MixedCluster, directory: Path, peer: str) -> DiskLog:
    """Of our peer, which has ended."""
    members = tuple(Peer(name, url) for name, url in cluster.urls.items())
    return DiskLog.open(directory / peer, peer_id=peer, ident=b"", peers=members)


def catch_up(cluster: MixedCluster, peer: str, last: int) -> dict[str, int]:
    """Wait until it has applied so much; what it says of its log."""
    cluster.until(lambda: (cluster.log_info(peer) or {}).get("applied", 0) >= last, f"{peer} is behind")
    return cluster.log_info(peer) or {}


def test_our_peer_installs_the_snapshot_of_a_node_leader(tmp_path: Path) -> None:
    """Our peer was away while the others compacted their logs: a Node leader sends it the snapshot, and then the
    entries after it, which it writes byte for byte; it also starts again with them."""
    with MixedCluster(tmp_path, ours={"3"}) as cluster, RaftClient(cluster.seeds, request_timeout=60) as log:
        append(log, "all", 10)
        cluster.kill("3")
        append(log, "without ours")
        served = [entry for entry in log.entries() if isinstance(entry, LogEntry)]
        for peer in ("1", "2"):
            catch_up(cluster, peer, COMPACTED)
            cluster.compact(peer, COMPACTED)
        cluster.start("3")
        append(log, "again", 10)
        served += [entry for entry in log.entries(len(served)) if isinstance(entry, LogEntry)]
        info = catch_up(cluster, "3", len(served))
        assert info["first"] == COMPACTED + 1
        cluster.kill("3")
        with disk_of(cluster, tmp_path, "3") as disk:
            snapshot = disk.snapshot
            assert snapshot is not None
            assert (snapshot.index, snapshot.term) == (COMPACTED, served[COMPACTED - 1].term)
            whole = b"".join(entry.data for entry in served[:COMPACTED] if entry.is_state)
            assert disk.read_snapshot(0, 1 << 30) == whole
            assert disk.entries(COMPACTED, len(served), 1 << 30) == served[COMPACTED:]
        cluster.start("3")
        append(log, "after its start", 10)
        catch_up(cluster, "3", len(served) + 10)


def compact(cluster: MixedCluster, directory: Path, peer: str, state: bytes) -> None:
    """Replace the log of our peer, which is down for it, by a snapshot, as it does itself after eight hours."""
    cluster.kill(peer)
    with disk_of(cluster, directory, peer) as disk:
        members = [each for each in disk.configurations if each.index <= COMPACTED][-1]
        meta = SnapshotMeta(COMPACTED, disk.term_at(COMPACTED) or 0, len(state), members)
        with disk.new_snapshot() as writer:
            writer.write(state)
            writer.finish(meta)
        disk.compact(meta)
        assert disk.first_index > 1
    cluster.start(peer)


def test_a_node_peer_installs_the_snapshot_of_our_leader(tmp_path: Path) -> None:
    """A Node peer was away while ours compacted their logs: our leader sends it the snapshot, and then the entries;
    when it leads, it serves the same bytes."""
    state = b"".join(b"%d;" % n for n in range(50_000))
    with MixedCluster(tmp_path, ours={"2", "3"}) as cluster, RaftClient(cluster.seeds, request_timeout=60) as log:
        append(log, "all", 10)
        cluster.kill("1")
        append(log, "without Node")
        for peer in ("2", "3"):
            catch_up(cluster, peer, COMPACTED)
        for peer in ("2", "3"):
            compact(cluster, tmp_path, peer, state)
        cluster.launch("1")
        append(log, "again", 10)
        served = [entry for entry in log.entries(COMPACTED) if isinstance(entry, LogEntry)]
        info = catch_up(cluster, "1", served[-1].index)
        assert (info["first"], info["snapshot_size"]) == (COMPACTED + 1, len(state))
        for _ in range(20):
            leader = cluster.leader()
            if leader == "1":
                break
            cluster.kill(leader)
            append(log, "election", 1)
            cluster.start(leader)
        assert leader == "1"
        items = list(log.entries(0))
        chunks = [item for item in items if isinstance(item, SnapshotChunk)]
        assert b"".join(chunk.data for chunk in chunks) == state
        assert [item.frame for item in items if isinstance(item, LogEntry)][: len(served)] == [e.frame for e in served]
