"""Failovers beside real software: servers on the log of npm peers, and clients that know nothing of several servers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from rust_sdk import Change, RustClient
from support.raft_peers import RaftCluster
from support.server_clients import Paho, needs_mosquitto
from support.server_processes import ReplicatedServer, ReplicatedServers

from raft_client.server import BroadcastStateMachine, EmbeddedCluster
from statestore_client import AsyncStateStoreClient

_TIMEOUT_S = 60

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[ReplicatedServers]:
    """Two servers, on Python peers."""
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster:
        servers = ReplicatedServers(cluster.url, Random(1), "a", "b")
        try:
            await servers.start_all()
            yield servers
        finally:
            await servers.end_all()


async def _standby(servers: ReplicatedServers) -> ReplicatedServer:
    active = await servers.active()
    return next(server for server in servers.servers.values() if server is not active)


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
async def test_mosquitto_clients_go_through_a_failover(servers: ReplicatedServers) -> None:
    """``mosquitto_sub`` with a lasting session gets each message that ``mosquitto_pub`` was acknowledged, on both sides
    of a failover, though it knows one server only; a retained message is there, too.
    """
    port = ("-p", str((await _standby(servers)).port))
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


async def test_paho_clients_go_through_a_failover(servers: ReplicatedServers) -> None:
    """paho's own thread connects again and finds its session: each QoS 2 message comes once, in order."""
    standby = await _standby(servers)
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 300
    subscriber = await asyncio.to_thread(Paho, standby, "sub", properties=lasting)
    publisher = await asyncio.to_thread(Paho, standby, "pub", properties=lasting)
    try:
        await asyncio.to_thread(subscriber.subscribe, "m/#", qos=2)
        await asyncio.to_thread(publisher.publish, "m/1", b"before", 2)
        sent = [publisher.client.publish("m/2", b"on the way", 2)]
        await _fail_over(servers)
        for client in (subscriber, publisher):
            flags, _, _ = await asyncio.to_thread(client.connects.get, timeout=_TIMEOUT_S)
            assert flags.session_present
        sent.append(publisher.client.publish("m/3", b"after", 2))
        for each in sent:
            await asyncio.to_thread(each.wait_for_publish, _TIMEOUT_S)
            assert each.is_published()
        heard = [await asyncio.to_thread(subscriber.messages.get, timeout=_TIMEOUT_S) for _ in range(3)]
        assert [message.topic for message in heard] == ["m/1", "m/2", "m/3"]
        assert subscriber.messages.empty()
    finally:
        subscriber.close()
        publisher.close()


async def test_the_rust_sdk_goes_through_a_failover(rust_program: Path, servers: ReplicatedServers) -> None:
    """A key has its version, and a held lock is held, on both sides of a failover.

    The SDK ends every observation when a connection ends, so the application observes again, as the SDK asks for.
    """
    standby = await _standby(servers)
    async with AsyncStateStoreClient(f"mqtt://127.0.0.1:{standby.port}", request_timeout=_TIMEOUT_S) as ours:
        with RustClient(rust_program, standby.port, "rust-app") as rust:
            written = await asyncio.to_thread(rust.set, b"k", b"1")
            await asyncio.to_thread(rust.observe, b"k")
            token = await asyncio.to_thread(rust.lock, b"job", expiry_ms=60_000)
            await asyncio.to_thread(rust.set, b"guarded", b"1", token=token)

            await _fail_over(servers)
            item = await asyncio.to_thread(rust.get, b"k")
            assert (item.value, item.version) == (b"1", written.version)
            with pytest.raises(AssertionError, match="told of no change"):
                await asyncio.to_thread(rust.notification, b"k")
            await asyncio.to_thread(rust.observe, b"k")
            changed = await ours.set("k", b"2")
            heard = await asyncio.to_thread(rust.notification, b"k")
            assert heard == Change(b"k", b"2", str(changed.version))
            lock = ours.lock("job")
            assert await lock.holder() == b"rust-app"
            assert await lock.try_acquire() is None
            await asyncio.to_thread(rust.set, b"guarded", b"2", token=token)
            await asyncio.to_thread(rust.unlock, b"job")
            lease = await lock.acquire(timeout=_TIMEOUT_S)
            assert str(lease.fencing_token) > token
