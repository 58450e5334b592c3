"""What servers of a log depend on goes wrong: the disks of the log's peers are full, a wall clock is wrong.

Nothing that was acknowledged is lost, and a line in the log says what it is.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from support.raft_peers import Peers
from support.server_processes import ReplicatedServer, ReplicatedServers

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import AsyncStateStoreClient, RequestTimeoutError, SetResult

_A_MEBIBYTE = 1 << 20
_HOUR_S = 3600

pytestmark = pytest.mark.timeout(180)


class _Logging(ReplicatedServer):
    """What it logs is kept."""

    errors: ClassVar[int | None] = asyncio.subprocess.PIPE


@pytest.mark.skipif(sys.platform != "linux", reason="a limit is set for another process")
async def test_the_disks_of_the_peers_are_full(tmp_path: Path) -> None:
    """The servers acknowledge nothing, and say that the log does not answer. They go on when there is room."""
    options = ("--machine", "broadcast")
    with Peers(tmp_path) as peers:
        for name in peers.urls:
            peers.start(name, *options)
        servers = ReplicatedServers(peers.url, Random(1), "a", "b", make=_Logging)
        try:
            await servers.start_all()
            async with AsyncStateStoreClient(servers.url) as store:
                await store.set("before", "1", timeout=60)
                for name in ("1", "2"):
                    resource.prlimit(peers.running[name].pid, resource.RLIMIT_FSIZE, (_A_MEBIBYTE, _A_MEBIBYTE))
                with pytest.raises(RequestTimeoutError):
                    await store.set("large", bytes(2 * _A_MEBIBYTE), timeout=1)
                for name in ("1", "2"):
                    await asyncio.to_thread(peers.running[name].wait, 60)
                with pytest.raises(TimeoutError):
                    await store.get("before", timeout=8)  # clients are let go after 5 s
                for name in ("1", "2"):
                    peers.end(name, signal.SIGKILL)
                    peers.start(name, *options)
                await store.set("after", "1", timeout=60)
                found = await store.get_many(["before", "after"], timeout=60)
                assert [item.value for item in found if item is not None] == [b"1", b"1"]
                for server in servers.servers.values():
                    assert server.is_running
            active = await servers.active()
            active.signal(signal.SIGTERM)
            _, text = await active.ended()
            assert b"the replicated log does not answer" in text
        finally:
            await servers.end_all()


@pytest.fixture
def shifted_clock(tmp_path: Path) -> Path:
    """A library that shifts the wall clock of a process."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("a C compiler (cc) and LD_PRELOAD are needed")
    library = tmp_path / "shifted_clock.so"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True, capture_output=True)
    return library


@pytest.mark.parametrize("shift_s", [-_HOUR_S, _HOUR_S], ids=["behind", "ahead"])
async def test_the_wall_clock_of_a_server_is_an_hour_off(shifted_clock: Path, shift_s: int) -> None:
    """It takes over: clients, whose clocks are right, are let write; versions go forward, locks go on and end in time.

    The next one, whose clock is right, goes on after it.
    """
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster:
        servers = ReplicatedServers(cluster.url, Random(1), "right", "wrong")
        wrong = servers.servers["wrong"]
        wrong.environment = {"LD_PRELOAD": str(shifted_clock), "CLOCK_SHIFT": str(shift_s)}
        written: list[SetResult] = []
        try:
            await servers.start_all("right")
            await servers.active()
            await servers.start_all("wrong")
            async with AsyncStateStoreClient(servers.url) as store, AsyncStateStoreClient(servers.url) as other:

                async def write() -> None:
                    """Also with a token, and with a clock that no version has moved."""
                    async with AsyncStateStoreClient(servers.url) as fresh:
                        written.append(await fresh.set("k", str(len(written)), timeout=60))
                    written.append(await store.set("guarded", "1", fencing_token=lease.fencing_token, timeout=60))

                async with store.lock("l", lease=5.0) as lease:
                    await store.set("short", "1", expiry=2.0)
                    await store.set("long", "1", expiry=300.0)
                    await write()
                    for _ in range(2):  # to the wrong one, and back
                        former = await servers.active()
                        await former.end(signal.SIGKILL)
                        await write()
                        assert await servers.active() is not former
                        await former.start()
                        await write()
                    assert not lease.ended.is_set()
                    assert await other.lock("l").holder() == lease.holder
                    async with asyncio.timeout(60):
                        while await other.get("short") is not None:  # noqa: ASYNC110 - nobody announces it
                            await asyncio.sleep(0.01)
                    assert await other.get("long") is not None
            versions = [each.version for each in written if each.version is not None]
            assert len(versions) == 10
            assert sorted(set(versions)) == versions
        finally:
            await servers.end_all()
