"""Peers that may open no more files: connections of clients are files, too."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL

import pytest
from support.raft_peers import Peers
from support.waiting import eventually

from raft_client import RaftClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FEW = 60


class PoorPeers(Peers):
    """Each may have this many files open, at first or for good."""

    def __init__(self, directory: Path, limit: str) -> None:
        super().__init__(directory)
        self.limit = limit

    def command(self, name: str, *more: str) -> list[str]:
        return ["sh", "-c", f'ulimit {self.limit} {FEW}; exec "$0" "$@"', *super().command(name, *more)]

    def descriptors(self, name: str) -> int:
        return len(list(Path(f"/proc/{self.running[name].pid}/fd").iterdir()))


def test_a_leader_without_a_descriptor_leads_on(tmp_path: Path) -> None:
    """Idle connections take all descriptors of a leader whose follower is lost: it goes on with the other one, and has
    the first one back when it has a descriptor."""
    peers = PoorPeers(tmp_path, "-n")
    try:
        for name in peers.urls:
            peers.start(name)
        with RaftClient(peers.url) as log, ExitStack() as open_ones:
            index = log.append(b"x")
            for url in peers.urls.values():  # a follower that the leader has yet to connect to would stay unreachable
                eventually(lambda: log.log_info(url).last_index >= index, f"{url} has the entry")  # noqa: B023 - at once
            assert log.leader is not None
            leader = log.leader.id
            one, other = (name for name in peers.urls if name != leader)
            port = int(peers.urls[leader].rpartition(":")[2])
            for _ in range(2 * FEW):
                open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
            eventually(lambda: peers.descriptors(leader) >= FEW - 1, "the descriptors are in use")
            peers.end(one, SIGKILL)
            for _ in range(100):
                log.append(bytes(100_000))
            peers.start(one)
            open_ones.close()
            peers.end(other, SIGKILL)
            log.append(b"z", timeout=60)
            assert peers.running[leader].poll() is None
    finally:
        for name in list(peers.running):
            peers.end(name, SIGKILL)


def test_a_peer_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """``zmqraft serve`` raises the soft limit to the hard one, so that 60 clients are not the end."""
    peers = PoorPeers(tmp_path, "-S -n")
    try:
        peers.start("1")
        port = int(peers.urls["1"].rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * FEW)]
        eventually(lambda: peers.descriptors("1") > 2 * FEW, "they are all taken in")
        for connection in idle:
            connection.close()
    finally:
        peers.end("1", SIGKILL)
