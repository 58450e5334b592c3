"""Clusters for the documents about ØMQ Raft."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The scripted peers and the cluster of real ones live beside the tests that need them most.
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("raft_behaviour", "interop")]


@pytest.fixture
def scripted_peers() -> Iterator[list[str]]:
    """The URLs of three peers in this process, with an empty log."""
    from scripted_cluster import ScriptedCluster

    with ScriptedCluster() as cluster:
        yield [peer.url for peer in cluster.peers.values()]


@pytest.fixture
def zmq_raft() -> Path:
    """The folder with the npm package zmq-raft. Skips with the reason when it cannot be had."""
    from raft_cluster import install_zmq_raft, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return install_zmq_raft()


@pytest.fixture
def real_peers(zmq_raft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URLs of three real peers, with an empty log."""
    from raft_cluster import RaftCluster

    with RaftCluster(tmp_path_factory.mktemp("peers")) as cluster:
        yield list(cluster.urls.values())
