"""Clusters for the tests of streams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raft_client import RaftClient
from raft_client.server import EmbeddedCluster


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Three peers with an empty log."""
    from raft_client.server.runtime.storage.disk_log import Fsync

    with EmbeddedCluster(3, fsync=Fsync.OFF) as running:
        yield running


@pytest.fixture
def log(cluster: EmbeddedCluster) -> Iterator[RaftClient]:
    """A client of these peers."""
    with RaftClient(cluster.url) as client:
        yield client


@pytest.fixture
def target() -> Iterator[RaftClient]:
    """A client of one peer, of another cluster."""
    from raft_client.server.runtime.storage.disk_log import Fsync

    with EmbeddedCluster(1, fsync=Fsync.OFF) as running, RaftClient(running.url) as client:
        yield client
