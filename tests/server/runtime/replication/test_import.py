"""``statestore ha import``: what one server has left in its data directory becomes the beginning of a log."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from replicated_servers import KEY, Servers, replication, servers
from support.server_clients import Paho
from support.waiting import until

from raft_client import AsyncRaftClient, RaftSettings
from raft_client import errors as raft_errors
from raft_client._common import exits
from raft_client.server import AsyncEmbeddedCluster, BroadcastStateMachine
from statestore_client import AsyncStateStoreClient, ReplicatedLogError, StateStoreClient
from statestore_client.server import EmbeddedServer, ReplicaSettings
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.replication.exporting import export_directory
from statestore_client.server.runtime.replication.importing import import_directory
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings

_SHORT_S = 0.5
_LARGE = bytes(range(256)) * 8192  # 2 MiB: two entries of the log have no room for it


@asynccontextmanager
async def empty_log() -> AsyncIterator[AsyncEmbeddedCluster]:
    """A peer that has nothing."""
    async with AsyncEmbeddedCluster(1, machine=BroadcastStateMachine) as cluster:
        yield cluster


@asynccontextmanager
async def waiting_servers(cluster: AsyncEmbeddedCluster, *ids: str) -> AsyncIterator[list[Server]]:
    """Servers that do not begin with an empty log."""
    found = [
        Server(ServerSettings(log=ReplicaSettings(log=cluster.seeds, id=each, key=KEY, awaits_import=True)))
        for each in ids
    ]
    try:
        for each in found:
            await each.start()
        yield found
    finally:
        for each in found:
            await each.stop()


async def _import(directory: Path, *options: str) -> tuple[int, str]:
    """Exit code and output."""
    command = [sys.executable, "-m", "statestore_client.cli", "ha", "import", str(directory), *options]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def _fill(directory: Path) -> None:
    """Keys, one of which ends soon, a retained message, and a message that waits for the client of a session."""
    lasting = Properties(PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 300
    with EmbeddedServer(data=directory) as server:
        server.clock.advance(3600)  # log time is not wall time: deadlines are in the former
        with Paho(server, "away", properties=lasting) as client:
            client.subscribe("m/#", qos=2)
        with Paho(server) as client:
            client.publish("m/1", b"waits", 2)
            client.publish("kept", b"retained", 1, retain=True)
        with StateStoreClient(server.url) as store:
            store.set_many((f"key/{number}", str(number)) for number in range(1000))
            store.set("large", _LARGE)
            store.set("long", "1", expiry=300)
            store.set("short", "1", expiry=_SHORT_S)


def _begin(directory: Path) -> None:
    """A key is enough for what is refused."""
    with EmbeddedServer(data=directory) as server, StateStoreClient(server.url) as store:
        store.set("long", "1", expiry=300)


async def _check(server: Server) -> None:
    """All of that is there, but for what ends."""
    ends = time.monotonic() + 20
    async with AsyncStateStoreClient(server.urls[0]) as store:
        numbers = await _values(store, *(f"key/{number}" for number in range(1000)))
        assert numbers == [str(number).encode() for number in range(1000)]
        assert await _values(store, "large", "long") == [_LARGE, b"1"]
        while await _values(store, "short") != [None]:  # log time goes on when a server is active, from where it was
            assert time.monotonic() < ends


async def _values(store: AsyncStateStoreClient, *keys: str) -> list[bytes | None]:
    return [None if item is None else item.value for item in await store.get_many(keys)]


async def _active(of: list[Server]) -> Server:
    await until(lambda: [each for each in of if replication(each).role is Role.ACTIVE], "one is active")
    return next(each for each in of if replication(each).role is Role.ACTIVE)


@pytest.mark.ci
async def test_servers_go_on_from_a_data_directory(tmp_path: Path) -> None:
    """Those that followed, and one that comes later: with keys, sessions, what waits for them, and deadlines."""
    await asyncio.to_thread(_fill, tmp_path)
    async with empty_log() as cluster, waiting_servers(cluster, "a", "b") as both:
        async with AsyncRaftClient(cluster.url) as log:
            before = await log.log_info()
        assert [replication(each).commands.status()["awaits_import"] for each in both] == [True, True]
        code, output = await _import(tmp_path, "--log", cluster.url)
        assert code == exits.DONE, output
        assert "1003 keys" in output
        assert before.last_applied <= 1, "somebody has begun with the empty log"
        active = await _active(both)
        await _check(active)
        client = await asyncio.to_thread(Paho, active.endpoints, "away", clean_start=False)
        assert client.flags.session_present
        message = await asyncio.to_thread(client.message)
        assert (message.topic, message.payload) == ("m/1", b"waits")
        await asyncio.to_thread(client.subscribe, "kept")
        assert (await asyncio.to_thread(client.message)).payload == b"retained"
        await asyncio.to_thread(client.close)
        await active.stop()
        other = await _active([each for each in both if each is not active])
        await _check(other)
        async with waiting_servers(cluster, "c") as (third,):
            await other.stop()
            await _active([third])
            await _check(third)


@pytest.mark.ci
async def test_an_import_that_ends_early_leaves_nothing_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds a part: servers do not begin with it, nor by force, and another import says what to do."""
    await asyncio.to_thread(_fill, tmp_path)
    append, count = AsyncRaftClient.append, 0

    async def some_appends(client: AsyncRaftClient, *arguments: Any, **options: Any) -> int:
        nonlocal count
        count += 1
        if count > 3:
            raise raft_errors.RequestTimeoutError("the log does not answer")
        return await append(client, *arguments, **options)

    async with empty_log() as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(AsyncRaftClient, "append", some_appends)
            with pytest.raises(ReplicatedLogError, match="give them empty directories"):
                await import_directory(tmp_path, RaftSettings(seeds=cluster.url))
        code, output = await _import(tmp_path, "--log", cluster.url)
        assert code == exits.DATA
        assert "did not come to its end" in output
        with pytest.raises(ReplicatedLogError, match="nothing to export"):
            await export_directory(tmp_path / "out", RaftSettings(seeds=cluster.url))
        server = Server(ServerSettings(log=ReplicaSettings(log=cluster.seeds, id="a", key=KEY)))
        await server.start()
        try:
            assert replication(server).commands.status()["awaits_import"]
            assert replication(server)._listener is None, "it listens to an import, which has no address"
            assert not replication(server).promote()
            assert replication(server).role is Role.STANDBY
        finally:
            await server.stop()


@pytest.mark.ci
async def test_a_log_that_servers_have_used_is_refused(tmp_path: Path) -> None:
    """They go on as before."""
    await asyncio.to_thread(_begin, tmp_path)
    async with servers("a") as pair:
        async with pair.client(await pair.active()) as client:
            await client.set("k", "1")
        code, output = await _import(tmp_path, "--log", pair.cluster.url)
        assert code == exits.DATA
        assert "the log is not empty" in output
        await _still_there(pair)


async def _still_there(pair: Servers) -> None:
    async with pair.client(await pair.active()) as client:
        assert await _values(client, "k", "long") == [b"1", None]


@pytest.mark.ci
async def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    """Nothing is written into it."""
    await asyncio.to_thread(_begin, tmp_path)
    async with empty_log() as cluster, AsyncRaftClient(cluster.url) as log:
        index = await log.append(b"something else")
        code, output = await _import(tmp_path, "--log", cluster.url)
        assert code == exits.DATA
        assert "not of these servers" in output
        assert (await log.log_info()).last_applied == index


def _use(directory: Path, using: ExitStack) -> None:
    _begin(directory)
    using.enter_context(EmbeddedServer(data=directory))


def _damage(directory: Path, _using: ExitStack) -> None:
    _begin(directory)
    [log] = directory.glob("statestore-*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def _leave_empty(directory: Path, _using: ExitStack) -> None:
    directory.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("prepare", "why"), [(_use, "in use"), (_damage, "is damaged"), (_leave_empty, "is not a data directory")]
)
@pytest.mark.ci
async def test_a_directory_that_cannot_be_imported(
    prepare: Callable[[Path, ExitStack], None], why: str, tmp_path: Path
) -> None:
    """The reason is said, and the log stays empty."""
    with ExitStack() as using:
        await asyncio.to_thread(prepare, tmp_path / "data", using)
        async with empty_log() as cluster, AsyncRaftClient(cluster.url) as log:
            code, output = await _import(tmp_path / "data", "--log", cluster.url)
            assert code == exits.DATA, output
            assert why in output
            assert (await log.log_info()).last_applied <= 1


@pytest.mark.ci
async def test_where_the_log_is_has_to_be_said(tmp_path: Path) -> None:
    """The address of the log is given in one way, not in two or none."""
    for options in ((), ("--log", "tcp://127.0.0.1:1", "--cluster", "a=x,b=y,c=z"), ("--log", "nonsense")):
        code, output = await _import(tmp_path, *options)
        assert code == exits.USAGE, output
