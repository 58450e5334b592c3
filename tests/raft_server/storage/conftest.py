"""A log for the tests of what keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from log_jobs import open_log

from raft_client.server.runtime.storage.disk_log import DiskLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    """A new one, of the peer "1" alone."""
    with open_log(tmp_path / "peer") as log:
        yield log
