"""Clusters for the documents about ØMQ Raft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.scripted_peers import ScriptedCluster


@pytest.fixture
def scripted_peers(peers: ScriptedCluster) -> list[str]:
    """The URLs of three peers in this process, with an empty log."""
    return [peer.url for peer in peers.peers.values()]


@pytest.fixture
def zmq_raft() -> Path:
    """The folder with the npm package zmq-raft. Skips with the reason when it cannot be had."""
    from support.raft_peers import install_zmq_raft, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    return install_zmq_raft()


@pytest.fixture
def our_peers() -> Iterator[list[str]]:
    """The URLs of three peers of this package, with an empty log."""
    from raft_client.server import EmbeddedCluster

    with EmbeddedCluster(3) as cluster:
        yield list(cluster.seeds)


@pytest.fixture
def real_peers(zmq_raft: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The URLs of three Node peers, with an empty log."""
    from support.raft_peers import RaftCluster

    with RaftCluster(tmp_path_factory.mktemp("peers")) as cluster:
        yield list(cluster.urls.values())
