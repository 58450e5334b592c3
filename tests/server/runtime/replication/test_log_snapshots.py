"""Snapshots in the log: servers begin there, and what is before is trimmed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from replicated_servers import Servers, replication, servers, value_of
from support.server_processes import ReplicatedServer
from support.waiting import until

from raft_client import AsyncRaftClient, RaftSettings
from raft_client.server import StorageLimits
from raft_client.server.runtime.peer import RequestHorizon
from statestore_client import AsyncStateStoreClient
from statestore_client.server.cluster.entries import LogEntry
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.replication import exporting
from statestore_client.server.runtime.server import Server
from statestore_client.server.runtime.settings import ServerSettings

KEYS = {f"k{n}": b"%d" % n for n in range(300)}


async def _write(client: AsyncStateStoreClient) -> None:
    await client.set_many([*KEYS.items()])
    await client.delete("k0")


async def _snapshot(server: Server) -> int:
    """Let this server write one. Returns where it begins."""
    before = replication(server).commands.status()["base"]
    answer = await replication(server).commands.carry_out("snapshot", "")
    assert answer["done"]
    await until(lambda: replication(server).commands.status()["base"] != before, "the snapshot is complete")
    base = replication(server).commands.status()["base"]
    assert isinstance(base, int)
    return base


async def _check(client: AsyncStateStoreClient) -> None:
    found = dict(zip(KEYS, await client.get_many(list(KEYS)), strict=True))
    assert found.pop("k0") is None
    values = {key: None if item is None else item.value for key, item in found.items()}
    assert values == {key: value for key, value in KEYS.items() if key != "k0"}


@pytest.mark.parametrize("by", ["standby", "active"])
@pytest.mark.ci
async def test_a_server_begins_at_the_snapshot(by: str) -> None:
    """A third server has everything, although the first two are gone: keys, a lock, and what was written meanwhile."""
    async with servers("a", "b") as group:
        active, standby = await group.active(), await group.standby()
        async with group.client(active, request_timeout=0.5) as client:  # in the end its server is gone
            await _write(client)
            async with client.lock("lock", lease=30.0) as lease:
                writing = asyncio.ensure_future(_keep_writing(client))
                base = await _snapshot(standby if by == "standby" else active)
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                third = await group.start("c")
                assert replication(third).commands.status()["base"] == base
                assert replication(third).commands.status()["log_bytes"] < 1_000_000  # type: ignore[operator]
                for server in (standby, active):
                    await server.stop()
                await until(lambda: replication(third).role is Role.ACTIVE)
                async with group.client(third) as other:
                    await _check(other)
                    assert await other.get("busy") is not None
                    assert await other.lock("lock", lease=30.0).try_acquire() is None
                    assert lease.valid


async def _keep_writing(client: AsyncStateStoreClient) -> None:
    while True:
        await client.set("busy", "x")


@pytest.fixture
def hours_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request id is at once as old as one that nobody may repeat."""
    monkeypatch.setattr(RequestHorizon, "due", lambda _self, _now, wall_s, _newest_s: wall_s + 60.0)


async def _trimmed(group: Servers) -> int:
    """The first index that is left, when there is one."""
    async with AsyncRaftClient(group.cluster.url) as log:
        await log.append_many([msgpack.packb([1, 5, 0, n, "test", 1, 0, 0]) for n in range(1, 60)])  # challenges
        while (first := (await log.log_info()).first_index) <= 1:
            await log.append(msgpack.packb([1, 5, 0, 0, "test", 1, 0, 0]))  # the list of members follows the snapshot
    return first


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_what_is_before_a_snapshot_is_trimmed() -> None:
    """The log is short again; a new server finds the snapshot, also if no entry in the tail names it."""
    async with servers("a", "b", limits=StorageLimits(segment_entries=20)) as group:
        active, standby = await group.active(), await group.standby()
        async with group.client(active) as client:
            for _ in range(4):
                await _write(client)
            for number in range(60):
                await client.set("k1", b"%d" % number)
            await client.set("k1", b"1")
            await _snapshot(standby)
            first = await asyncio.wait_for(_trimmed(group), 20)
            assert first > 20
        third = await group.start("c")
        for server in (standby, active):
            await server.stop()
        await until(lambda: replication(third).role is Role.ACTIVE)
        async with group.client(third) as other:
            await _check(other)


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_the_log_is_kept_short_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to ask for it."""
    monkeypatch.setattr("statestore_client.server.cluster.snapshots._MIN_LOG_BYTES", 20_000)
    options: dict[str, Any] = {"limits": StorageLimits(segment_entries=20)}
    async with servers("a", "b", **options) as group:
        active = await group.active()
        async with group.client(active) as client:
            writing = asyncio.ensure_future(_keep_writing(client))
            first = await asyncio.wait_for(_trimmed(group), 20)
            assert first > 20
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_an_export_begins_at_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the rows of the snapshot and what was written after it, also if the log is trimmed while it
    begins to read.
    """
    async with servers("a", limits=StorageLimits(segment_entries=20)) as group:
        active = await group.active()
        async with group.client(active) as client:
            await client.set("k1", "older")
            for number in range(60):
                await client.set("count", b"%d" % number)
            writing = asyncio.ensure_future(_keep_writing(client))
            await _snapshot(active)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await client.set("busy", "newer")
            await _write(client)
            first = await asyncio.wait_for(_trimmed(group), 20)
            assert first > 20
        find_base, looks = exporting.find_base, 0

        async def too_early(log: AsyncRaftClient) -> tuple[int, LogEntry] | None:
            nonlocal looks
            looks += 1
            return await find_base(log) if looks > 1 else None  # as if there had been no snapshot yet

        monkeypatch.setattr(exporting, "find_base", too_early)
        await exporting.export_directory(tmp_path / "out", RaftSettings(seeds=group.cluster.url))
        assert looks == 2
        single = Server(ServerSettings(data=tmp_path / "out"))
        await single.start()
        try:
            async with AsyncStateStoreClient(single.urls[0]) as client:
                await _check(client)
                assert (await value_of(client, "busy"), await value_of(client, "count")) == (b"newer", b"59")
        finally:
            await single.stop()


class _Behind(ReplicatedServer):
    """A server in another process, which can stand still; what it logs is kept."""

    errors = asyncio.subprocess.PIPE


@pytest.mark.usefixtures("hours_pass")
@pytest.mark.ci
async def test_a_standby_that_is_too_far_behind_begins_again() -> None:
    """It stood still while the log was trimmed: it says so, reads the snapshot, and can take over with everything."""
    async with servers("a", key=b"", limits=StorageLimits(segment_entries=20)) as group:
        active = await group.active()
        behind = _Behind("b", group.cluster.url)
        await behind.start()
        try:
            await until(lambda: replication(active).listeners == ["b"], "b listens")
            behind.signal(signal.SIGSTOP)
            async with group.client(active) as client:
                await client.set("before", "1")
                await _write(client)
                async with AsyncRaftClient(group.cluster.url) as log:  # more than waits for b on its way
                    await log.append_many(
                        msgpack.packb([1, 2, 0, number, "test", 1, 0, 0, bytes(4096), True]) for number in range(4000)
                    )
                await _snapshot(active)
                await asyncio.wait_for(_trimmed(group), 60)
                behind.signal(signal.SIGCONT)
            await until(lambda: replication(active).listeners, "b listens again")
            await active.stop()
            await _active(behind)
            async with AsyncStateStoreClient(f"mqtt://127.0.0.1:{behind.port}") as client:
                await _check(client)
                item = await client.get("before")
                assert item is not None
        finally:
            behind.signal(signal.SIGTERM)
            _, text = await behind.ended()
        assert b"the log was trimmed" in text


async def _active(server: ReplicatedServer) -> None:
    async with asyncio.timeout(60):
        while not await server.is_active():  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0.01)
