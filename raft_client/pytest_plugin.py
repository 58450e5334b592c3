"""Fixtures for tests of programs that use a replicated log. Installed with the package; nothing to configure.

``raft_cluster``
    A running :class:`~raft_client.server.EmbeddedCluster` of one peer, new and empty for each test; give its ``url``
    away. ``@pytest.mark.raft_cluster(size=3)`` takes arguments for the cluster of a test: with three, one can be
    killed; with ``transport="ipc"``, it has Unix sockets in place of ports.
``raft_sync_client``
    A :class:`~raft_client.RaftClient` of it. Coroutines open their own: ``AsyncRaftClient(raft_cluster.url)``.

``-p no:raft_client`` turns all of it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from raft_client import RaftClient
    from raft_client.server import EmbeddedCluster

__all__ = ["pytest_configure", "raft_cluster", "raft_sync_client"]


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line(
        "markers", "raft_cluster(**options): arguments of EmbeddedCluster for the cluster of this test"
    )


@pytest.fixture
def raft_cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    """A cluster of one peer, which leads; on a free loopback port unless the marker says otherwise."""
    from raft_client.server import EmbeddedCluster  # loaded only by tests that ask for it

    marker = request.node.get_closest_marker("raft_cluster")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"@pytest.mark.raft_cluster takes options by name only, not {marker.args!r}")
    options = {"size": 1} | (marker.kwargs if marker is not None else {})
    with EmbeddedCluster(**options) as cluster:
        cluster.leader()
        yield cluster


@pytest.fixture
def raft_sync_client(raft_cluster: EmbeddedCluster) -> Iterator[RaftClient]:
    """A client of ``raft_cluster``."""
    from raft_client import RaftClient  # loaded only by tests that ask for it

    with RaftClient(raft_cluster.url, cluster=raft_cluster.cluster) as client:
        yield client
