"""A cluster of Node peers (npm zmq-raft) and ours, each a process of its own that can be killed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from raft_cluster import RaftCluster

__all__ = ["MixedCluster"]


class MixedCluster(RaftCluster):
    """As :class:`RaftCluster`; the peers of ``ours`` are ``zmqraft serve``."""

    def __init__(
        self,
        directory: Path,
        *,
        ours: set[str],
        size: int = 3,
        environment: Callable[[str], Mapping[str, str]] = lambda _peer: {},
    ) -> None:
        super().__init__(directory, size=size, environment=environment)
        self.ours = ours

    def launch(self, peer: str) -> None:
        """Start a peer without waiting."""
        if peer not in self.ours:
            super().launch(peer)
            return
        members = [f"--peer={member}={self.urls[member]}" for member in self._members]
        command = [sys.executable, "-m", "raft_client.cli", "serve", "--id", peer, *members, "--verbose"]
        command += ["--machine", "broadcast", "--publish", self.pub_urls[peer], "--data", str(self._directory / peer)]
        self._run(peer, command)
