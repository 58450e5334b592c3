"""Peers that have real logs."""

from __future__ import annotations

from typing import Any

import pytest
from peers_cluster import Cluster
from peers_disk import DiskBackedLog

from raft_client.server.node.ready import Configuration


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[DiskBackedLog]:
    """All that were made."""
    made: list[DiskBackedLog] = []

    def make(world: Any, name: str, start: Configuration) -> DiskBackedLog:
        made.append(DiskBackedLog(name, start, world.stream("disk", name)))
        return made[-1]

    monkeypatch.setattr(Cluster, "make_log", staticmethod(make))
    return made
