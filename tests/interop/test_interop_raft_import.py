"""``zmqraft import-log``: folders that real Node peers (npm zmq-raft 0.5.0) wrote, and our peers in their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.raft_peers import MixedCluster, why_not

from raft_client import EntryKind, LogEntry, Peer, RaftClient
from raft_client.cli.app import cli
from raft_client.server.runtime.storage.disk_log import DiskLog

pytestmark = [pytest.mark.interop, pytest.mark.turns(2)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MixedCluster]:
    """Three Node peers, any of which can be started again as our peer."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with MixedCluster(tmp_path, ours=set()) as running:
        yield running


def replace(cluster: MixedCluster, directory: Path, peer: str, *, seeds: bool = True) -> DiskLog:
    """End a Node peer, import its folder, and put the result in its place. Returns the log, open."""
    if peer in cluster.running:
        cluster.kill(peer)
    members = [f"--peer={name}={url}" for name, url in cluster.urls.items()] if seeds else []
    arguments = ["import-log", str(directory / peer), str(directory / "new"), "--id", peer, *members]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (directory / peer).rename(directory / f"node-{peer}")
    (directory / "new").rename(directory / peer)
    cluster.ours.add(peer)
    peers = tuple(Peer(name, url) for name, url in cluster.urls.items())
    return DiskLog.open(directory / peer, peer_id=peer, ident=b"", peers=peers)


def append(log: RaftClient, name: str, count: int) -> dict[int, bytes]:
    return dict(zip(log.append_many(datas := [f"{name} {n}".encode() for n in range(count)]), datas, strict=True))


def test_node_peers_are_replaced_one_by_one(cluster: MixedCluster, tmp_path: Path) -> None:
    """Each Node peer is replaced by our peer with its log: the entries are byte for byte those that the Node peers
    served, with their request ids, term and vote, and in the end the cluster of our peers has everything."""
    with RaftClient(",".join(cluster.seeds), request_timeout=60) as client:
        written = append(client, "node", 20_000)
        for round_number, peer in enumerate(list(cluster.urls)):
            served = list(client.entries())
            cluster.until(lambda: (cluster.log_info(peer) or {}).get("last", 0) >= len(served), f"{peer} is behind")  # noqa: B023 - it is called at once
            term = (cluster.log_info(peer) or {})["term"]
            with replace(cluster, tmp_path, peer) as log:
                assert log.entries(0, len(served), 1 << 30) == served
                ids = [entry for entry in served if entry.is_state][::97]
                assert [log.index_of_request(entry.request_id.raw) for entry in ids] == [each.index for each in ids]
                assert log.hard_state.term >= term
            cluster.start(peer)
            written |= append(client, f"round {round_number}", 500)
        assert {entry.index: entry.data for entry in client.entries() if entry.is_state} == written


def test_a_compacted_folder_and_changed_members(cluster: MixedCluster, tmp_path: Path) -> None:
    """Of a folder whose log was compacted and whose cluster was changed, the snapshot, the members and the request ids
    before the snapshot are imported, too, and the members need not be given."""
    with RaftClient(",".join(cluster.seeds), request_timeout=60) as client:
        append(client, "before", 300)
        added = "4"
        cluster.launch(added)
        client.update_config([*client.config().peers, Peer(added, cluster.urls[added])])
        append(client, "after", 100)
        served: list[LogEntry] = list(client.entries())
        leader = cluster.leader()
        cluster.compact(leader, 350)
        with replace(cluster, tmp_path, leader, seeds=False) as log:
            snapshot = log.snapshot
            assert snapshot is not None
            assert (snapshot.index, snapshot.members_known) == (350, True)
            joined = b"".join(entry.data for entry in served if entry.index <= 350 and entry.kind is EntryKind.STATE)
            assert log.read_snapshot(0, 1 << 30) == joined
            assert log.entries(350, len(served), 1 << 30) == served[350:]
            found = [log.index_of_request(entry.request_id.raw) for entry in served if entry.is_state]
            assert found == [entry.index for entry in served if entry.is_state]
            assert {peer.id for peer in log.configurations[-1].change.new} == {"1", "2", "3", "4"}
        cluster.start(leader)
        append(client, "with ours", 200)
