"""Servers with their own peers of the log, as three processes: they are killed, restarted one by one, and killed
together. Nothing that was acknowledged is lost.

``STATESTORE_CLUSTER_ROUNDS`` says how often the servers are killed and restarted one by one; each takes ten seconds.
Without it two of the three are killed together; the example of a failover (tests/examples) kills one.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from replicated_cluster import ClusterProcesses

from statestore_client import StateStoreClient
from statestore_client.cli import exits

_A_MEBIBYTE = 1 << 20
_ROUNDS = int(os.environ.get("STATESTORE_CLUSTER_ROUNDS", "0"))


class _Audit:
    """Keys that were acknowledged."""

    def __init__(self, store: StateStoreClient) -> None:
        self._store = store
        self.count = 0

    def set(self) -> None:
        """One more, as soon as somebody acknowledges it."""
        self._store.set(f"key/{self.count}", str(self.count), timeout=60)
        self.count += 1

    def check(self) -> None:
        for number in range(self.count):
            found = self._store.get(f"key/{number}", timeout=60)
            assert found is not None
            assert found.value == str(number).encode()


def _restart_one_by_one(cluster: ClusterProcesses, audit: _Audit) -> None:
    """Each is killed, and stopped as for an upgrade."""
    for _ in range(_ROUNDS):
        killed = cluster.active()
        cluster.end(killed, signal.SIGKILL)
        audit.set()
        cluster.start(killed)
        audit.set()
        for name in sorted(cluster.running):
            cluster.stop(name)
            audit.set()
            cluster.start(name)
            audit.set()


@pytest.mark.skipif(sys.platform != "linux", reason="a limit is set for another process")
def test_a_cluster_of_three_processes(tmp_path: Path) -> None:
    """They are killed at the same time, and go on; the active one, whose disk is full, ends with the reason."""
    cluster = ClusterProcesses(tmp_path)
    try:
        cluster.start(*("a", "b", "c") if _ROUNDS else ("a", "b"))  # any two are enough
        with cluster.client() as store:
            audit = _Audit(store)
            audit.set()
            _restart_one_by_one(cluster, audit)
            cluster.kill_all()
            cluster.start("a", "b")
            audit.check()
            assert audit.count == 1 + 8 * _ROUNDS
            full = cluster.running[cluster.active()]
            resource.prlimit(full.pid, resource.RLIMIT_FSIZE, (_A_MEBIBYTE, _A_MEBIBYTE))
            with pytest.raises(TimeoutError):
                store.set("long", bytes(2 * _A_MEBIBYTE), timeout=1)
            _, text = full.communicate(timeout=60)
            assert full.returncode == exits.DATA
            assert b"statestore: this server's peer of the log cannot go on: " in text
    finally:
        cluster.kill_all()
