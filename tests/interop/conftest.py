"""What tests beside real software share."""

from __future__ import annotations

import pytest
from raft_cluster import why_not


@pytest.fixture
def zmq_raft() -> None:
    """Skip, with the reason, where the npm package zmq-raft cannot be had."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
