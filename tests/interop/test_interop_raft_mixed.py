"""Node peers (npm zmq-raft 0.5.0) and ours in one cluster: each kind leads, is killed and comes back; logs agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.raft_peers import MixedCluster, why_not

from raft_client import LeasesUnsupportedError, LogEntry, Peer, RaftClient
from raft_client.server.runtime.storage.disk_log import DiskLog

pytestmark = pytest.mark.interop

#: In each round, and while a leader is killed.
APPENDS, APPENDS_OF_AN_ELECTION = 5_000, 500


@pytest.fixture(params=[{"3"}, {"2", "3"}], ids=["one is ours", "two are ours"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCluster]:
    """Two Node peers and one that is ours, or the other way round."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with MixedCluster(tmp_path, ours=request.param) as running:
        yield running


def append(log: RaftClient, round_name: str, acknowledged: dict[int, bytes], count: int = APPENDS) -> None:
    """Many at once; each index once, whoever leads meanwhile."""
    datas = [f"{round_name} {n}".encode() for n in range(count)]
    with ThreadPoolExecutor(32) as threads:
        for index, data in zip(threads.map(lambda data: log.append(data, timeout=60), datas), datas, strict=True):
            assert acknowledged.setdefault(index, data) == data


def checksum(entries: list[LogEntry]) -> str:
    whole = hashlib.sha256()
    for entry in entries:
        whole.update(entry.frame)
    return whole.hexdigest()


def lead(cluster: MixedCluster, log: RaftClient, wanted: set[str], acknowledged: dict[int, bytes]) -> None:
    """Kill leaders, with appends on their way, until one of ``wanted`` leads."""
    for attempt in range(20):
        leader = cluster.leader()
        if leader in wanted:
            return
        with ThreadPoolExecutor(1) as beside:
            name = f"election {attempt} to {sorted(wanted)}"
            appending = beside.submit(append, log, name, acknowledged, APPENDS_OF_AN_ELECTION)
            cluster.kill(leader)
            appending.result()
        cluster.start(leader)
    raise AssertionError(f"none of {sorted(wanted)} was elected")


@pytest.mark.turns(2)
def test_each_kind_leads_the_other_and_all_logs_agree(cluster: MixedCluster) -> None:
    """What is acknowledged is in the log once, at its index, whichever kind leads, and in the end all peers serve the
    same bytes."""
    acknowledged: dict[int, bytes] = {}
    ours, theirs = cluster.ours, set(cluster.urls) - cluster.ours
    with RaftClient(",".join(cluster.seeds)) as log:
        append(log, "begin", acknowledged)
        for wanted in (ours, theirs, ours):
            lead(cluster, log, wanted, acknowledged)
            append(log, f"led by {sorted(wanted)}", acknowledged)
        found = list(log.entries(timeout=60))
        assert {index: found[index - 1].data for index in acknowledged} == acknowledged
        assert sum(entry.is_state for entry in found) == len(acknowledged)
        for peer in cluster.urls:  # what Node peers have is compared through the log that they serve as the leader
            cluster.until(
                lambda peer=peer: (cluster.log_info(peer) or {}).get("last") == len(found), f"{peer} is behind"
            )  # type: ignore[misc]
        lead(cluster, log, theirs, acknowledged)
        served = list(log.entries(timeout=60))
        assert checksum(served[: len(found)]) == checksum(found)
        for peer in ours:
            cluster.until(
                lambda peer=peer: (cluster.log_info(peer) or {}).get("last") == len(served), f"{peer} is behind"
            )  # type: ignore[misc]
    members = tuple(Peer(peer, url) for peer, url in cluster.urls.items())
    for peer in ours:
        cluster.kill(peer)
        with DiskLog.open(cluster._directory / peer, peer_id=peer, ident=b"", peers=members) as stored:
            assert checksum(stored.entries(0, len(served), 2**30)) == checksum(served)


def test_no_lease_is_granted_beside_a_node_peer(tmp_path: Path) -> None:
    """The error names it, whichever kind leads; nothing of that is in the log."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    cluster = MixedCluster(tmp_path, ours={"2", "3"}, machine="key-value")
    with cluster, RaftClient(",".join(cluster.seeds)) as log:
        for wanted in (cluster.ours, {"1"}):
            lead(cluster, log, wanted, {})
            before = log.append(b"before", timeout=60)
            with pytest.raises(LeasesUnsupportedError, match=r"\b1 knows (no leases|none)\b.*Node peer"):
                log.kv.lease(60).start()
            log.append(b"after", timeout=60)
            assert [entry.data for entry in log.entries(before, timeout=60) if entry.is_state] == [b"after"]
