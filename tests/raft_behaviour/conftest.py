"""Both shells of the raft client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from raft_shells import RaftShell


@pytest.fixture(params=["sync", "aio"])
def raft(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> RaftShell:
    """The test runs once for each shell."""
    return RaftShell(request.param, executor)
