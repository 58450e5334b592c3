"""Both shells of the raft client, and scripted peers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from raft_shells import RaftShell
from scripted_cluster import ScriptedCluster


@pytest.fixture(params=["sync", "aio"])
def raft(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> RaftShell:
    """The test runs once for each shell."""
    return RaftShell(request.param, executor)


@pytest.fixture
def peers() -> Iterator[ScriptedCluster]:
    """Three scripted peers, of which "1" leads."""
    with ScriptedCluster() as running:
        yield running
