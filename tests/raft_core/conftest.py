"""A cluster in memory and a client of it."""

from __future__ import annotations

import pytest
from raft_network import ClientDriver, SimCluster


@pytest.fixture
def cluster() -> SimCluster:
    return SimCluster()


@pytest.fixture
def client(cluster: SimCluster) -> ClientDriver:
    return ClientDriver(cluster)
