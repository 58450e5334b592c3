"""Failovers beside real software: servers on the log of npm peers, and clients that know nothing of several servers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from random import Random

import pytest
from raft_cluster import RaftCluster
from replicated_processes import ReplicatedServers
from runtime_tools import needs_mosquitto

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import AsyncStateStoreClient

_TIMEOUT_S = 60

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


async def _fail_over(servers: ReplicatedServers) -> None:
    """Kill the active server; returns when the other one is."""
    active = await servers.active()
    await active.end(signal.SIGKILL)
    assert await servers.active() is not active


@pytest.mark.usefixtures("zmq_raft")
async def test_npm_peers_keep_the_log(tmp_path: Path) -> None:
    """Unmodified Node peers: what was acknowledged survives the active server, and then the leader of the log."""
    with RaftCluster(tmp_path) as cluster:
        servers = ReplicatedServers(",".join(cluster.urls.values()), Random(1), "a", "b")
        try:
            await servers.start_all()
            await servers.active()
            ports = ",".join(f"127.0.0.1:{server.port}" for server in servers.servers.values())
            async with AsyncStateStoreClient(f"mqtt://{ports}", request_timeout=_TIMEOUT_S) as client:
                first = await client.set("k", "1")
                await _fail_over(servers)
                second = await client.set("k", "2")
                cluster.kill(cluster.leader())
                third = await client.set("k", "3")
                item = await client.get("k")
            assert item is not None
            assert item.value == b"3"
            versions = [done.version for done in (first, second, third) if done.version is not None]
            assert versions == sorted(versions)
            assert len(set(versions)) == 3
        finally:
            await servers.end_all()


async def _mosquitto(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)


@needs_mosquitto
async def test_mosquitto_clients_go_through_a_failover() -> None:
    """``mosquitto_sub`` with a lasting session gets each message that ``mosquitto_pub`` was acknowledged, on both sides
    of a failover, though it knows one server only; a retained message is there, too.
    """
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster:
        servers = ReplicatedServers(cluster.url, Random(1), "a", "b")
        try:
            await servers.start_all()
            active = await servers.active()
            standby = next(server for server in servers.servers.values() if server is not active)
            port = ("-p", str(standby.port))
            subscriber = await _mosquitto("mosquitto_sub", *port, "-c", "-i", "sub", "-q", "1", "-t", "m/#")
            assert subscriber.stdout is not None
            publish = ("mosquitto_pub", *port, "-q", "1", "-t")
            retained = await _mosquitto(*publish, "m/0", "-m", "0", "-r")
            assert await asyncio.wait_for(retained.wait(), _TIMEOUT_S) == 0
            assert await asyncio.wait_for(subscriber.stdout.readline(), _TIMEOUT_S) == b"0\n"
            await _fail_over(servers)
            for number in ("1", "2"):
                done = await _mosquitto(*publish, f"m/{number}", "-m", number)
                assert await asyncio.wait_for(done.wait(), _TIMEOUT_S) == 0
            seen = [b"0\n"]
            while seen[-1] != b"2\n":
                seen.append(await asyncio.wait_for(subscriber.stdout.readline(), _TIMEOUT_S))
            assert list(dict.fromkeys(seen)) == [b"0\n", b"1\n", b"2\n"]  # QoS 1: perhaps twice
            subscriber.terminate()
            await subscriber.communicate()
            newcomer = await _mosquitto("mosquitto_sub", *port, "-t", "m/0", "-C", "1")
            output, _ = await asyncio.wait_for(newcomer.communicate(), _TIMEOUT_S)
            assert output == b"0\n"
        finally:
            await servers.end_all()
