"""Servers with their own peers of the log, as three processes: they are killed, restarted one by one, and killed
together. Nothing that was acknowledged is lost.

In the long run the servers are also killed and restarted one by one twenty times, ten seconds each; otherwise two of
the three are killed together; the example of a failover (tests/examples) kills one.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

import pytest
from support.schedules import SCALE
from support.server_processes import ReplicatedServers

from raft_client._common import exits
from statestore_client import AsyncStateStoreClient

pytestmark = pytest.mark.scaled

_A_MEBIBYTE = 1 << 20
_ROUNDS = 20 if SCALE >= 10 else 0


class _Audit:
    """Keys that were acknowledged."""

    def __init__(self, store: AsyncStateStoreClient) -> None:
        self._store = store
        self.count = 0

    async def set(self) -> None:
        """One more, as soon as somebody acknowledges it."""
        await self._store.set(f"key/{self.count}", str(self.count), timeout=60)
        self.count += 1

    async def check(self) -> None:
        for number in range(self.count):
            found = await self._store.get(f"key/{number}", timeout=60)
            assert found is not None
            assert found.value == str(number).encode()


async def _restart_one_by_one(servers: ReplicatedServers, audit: _Audit) -> None:
    """Each is killed, and stopped as for an upgrade."""
    for _ in range(_ROUNDS):
        killed = await servers.active()
        await killed.end(signal.SIGKILL)
        await audit.set()
        await killed.start()
        await audit.set()
        for server in servers.servers.values():
            server.signal(signal.SIGTERM)
            code, text = await server.ended()
            assert code == exits.DONE, text
            await audit.set()
            await server.start()
            await audit.set()


@pytest.mark.timeout(120 + 30 * _ROUNDS)
@pytest.mark.skipif(sys.platform != "linux", reason="a limit is set for another process")
async def test_a_cluster_of_three_processes(tmp_path: Path) -> None:
    """They are killed at the same time, and go on; the active one, whose disk is full, ends with the reason."""
    servers = ReplicatedServers.with_own_peers(tmp_path, "a", "b", "c")
    try:
        await servers.start_all(*() if _ROUNDS else ("a", "b"))  # any two are enough
        async with AsyncStateStoreClient(servers.url) as store:
            audit = _Audit(store)
            await audit.set()
            await _restart_one_by_one(servers, audit)
            await servers.end_all()
            await servers.start_all("a", "b")
            await audit.check()
            assert audit.count == 1 + 8 * _ROUNDS
            full = await servers.active()
            assert full.process is not None
            resource.prlimit(full.process.pid, resource.RLIMIT_FSIZE, (_A_MEBIBYTE, _A_MEBIBYTE))
            with pytest.raises(TimeoutError):
                await store.set("long", bytes(2 * _A_MEBIBYTE), timeout=1)
            code, text = await full.ended()
            assert code == exits.DATA
            assert b"statestore: this server's peer of the log cannot go on: " in text
    finally:
        await servers.end_all()
