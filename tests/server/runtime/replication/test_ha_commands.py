"""``statestore ha`` on servers that run: what they are, and another one that is active."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from replicated_servers import KEY, Servers, replication, servers, value_of
from support.server_processes import ReplicatedServer
from support.waiting import until

from raft_client import AsyncRaftClient, CompactionError
from raft_client._common import exits
from statestore_client.server.cluster import entries, fence
from statestore_client.server.cluster.entries import FORMAT
from statestore_client.server.cluster.interface import Role
from statestore_client.server.runtime.replication import liveness

_SILENT = "no answer; is its machine there, and is this its address for servers?"


async def _ha(tmp_path: Path, *arguments: str, key: bytes = KEY) -> tuple[int, str]:
    """Exit code and output."""
    file = tmp_path / "key"
    file.write_bytes(key)
    file.chmod(0o600)
    command = [sys.executable, "-m", "statestore_client.cli", "ha", *arguments, "--cluster-key-file", str(file)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def _addresses(pair: Servers) -> list[str]:
    return [replication(server).url for server in pair.by_id.values()]


async def test_status_names_the_active_server(tmp_path: Path) -> None:
    """In a table, and as JSON; a server that is not there makes it a negative answer."""
    async with servers("a", "b") as pair:
        code, output = await _ha(tmp_path, "status", *_addresses(pair))
        assert code == 0
        assert [line.split()[:3] for line in output.splitlines()[1:]] == [["a", "active", "1"], ["b", "standby", "1"]]
        code, output = await _ha(tmp_path, "status", _addresses(pair)[0], "127.0.0.1:1", "--json")
        assert code == 1
        found, missing = map(json.loads, output.splitlines())
        assert (found["id"], found["role"], found["listeners"]) == ("a", "active", ["b"])
        assert missing["internal"] == "127.0.0.1:1"
        assert missing["error"].startswith("no server of a log at 127.0.0.1:1: connection refused; is it running")


async def test_machines_that_are_gone_are_asked_side_by_side(tmp_path: Path, figures: Callable[[str], None]) -> None:
    """Each costs a second and a half, and all of them the same one: as when the line of an operator is cut."""
    with ExitStack() as gone:
        silent = [gone.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        async with servers("a") as pair:
            await pair.active()
            began = monotonic()
            addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in silent]
            code, output = await _ha(tmp_path, "status", *addresses, *_addresses(pair))
            took_s = monotonic() - began
    lines = output.splitlines()[1:]
    assert code == 1
    assert lines[:4] == [f"{address}: no server of a log at {address}: {_SILENT}" for address in addresses]
    assert lines[4].split()[:2] == ["a", "active"]
    figures(f"{took_s:.1f} s")
    assert took_s < 25.0  # one and a half, and the start of the command; one after the other it was forty


async def test_a_server_that_cannot_be_reached_is_told_without_error_numbers(tmp_path: Path) -> None:
    """A name that nobody knows is another mistake than a port where nothing listens."""
    code, output = await _ha(tmp_path, "hand-over", "no-such-host.invalid:8049")
    assert (code, "no-such-host.invalid:8049: no name server knows this host" in output) == (exits.NO_CONNECTION, True)
    code, output = await _ha(tmp_path, "hand-over", "localhost:1")
    assert (code, "localhost:1: connection refused; is it running" in output) == (exits.NO_CONNECTION, True)
    assert "Errno" not in output


async def test_hand_over_and_back(tmp_path: Path) -> None:
    """Clients do not lose anything; one that is not active has nothing to hand over."""
    async with servers("a", "b") as pair:
        first, second = pair.by_id.values()
        async with pair.client(first) as client:
            await client.set("k", "1")
            code, output = await _ha(tmp_path, "hand-over", _addresses(pair)[0])
            assert (code, output) == (0, "b is active now, in epoch 2; a stands by\n")
            await until(lambda: replication(second).role is Role.ACTIVE)
            await client.set("k", "2")
            code, output = await _ha(tmp_path, "hand-over", _addresses(pair)[0])
            assert (code, output) == (1, "statestore: it is not active: ask b\n")
            code, output = await _ha(tmp_path, "hand-over", _addresses(pair)[1], "--to", "a")
            assert code == 0, output
            await until(lambda: replication(first).role is Role.ACTIVE)
            assert await value_of(client) == b"2"


@pytest.mark.ci
async def test_promote_needs_force(tmp_path: Path) -> None:
    """It deposes a server that lives."""
    async with servers("a", "b") as pair:
        standby = pair.by_id["b"]
        code, output = await _ha(tmp_path, "promote", replication(standby).url)
        assert code == 2
        assert "--force" in output
        code, output = await _ha(tmp_path, "promote", replication(standby).url, "--force")
        assert code == 0, output
        await until(lambda: replication(standby).role is Role.ACTIVE)


async def _told(client: AsyncRaftClient) -> int:
    """Up to where the log's peer was told that nobody needs it: 1 at least, by this."""
    while True:
        try:
            return await client.trim(1)
        except CompactionError:  # nothing is applied yet
            await asyncio.sleep(0.01)


@pytest.mark.ci
async def test_trim_needs_a_snapshot(tmp_path: Path) -> None:
    """Then the log's peer is told that nobody needs what is before it; without one the command says so."""
    async with servers("a") as pair:
        [address], [server] = _addresses(pair), pair.by_id.values()
        code, output = await _ha(tmp_path, "trim", address)
        assert code == 1
        assert "there is no snapshot in the log yet" in output
        code, output = await _ha(tmp_path, "snapshot", address)
        assert code == 0, output
        await until(lambda: replication(server).commands.status()["base"] != 0, "the snapshot is written")
        async with AsyncRaftClient(pair.cluster.url) as client:
            while await _told(client) == 1:  # noqa: ASYNC110 - the peer announces nothing
                await asyncio.sleep(0.01)  # the server trims by itself, once
            await pair.cluster.kill("1")  # it forgets what it was told then
            await pair.cluster.restart("1")
            assert await _told(client) == 1
            code, output = await _ha(tmp_path, "trim", address)
            assert code == 0, output
            assert await _told(client) > 1


class _FormerRelease(ReplicatedServer):
    """A server of this release, beside those of a later one."""

    errors = asyncio.subprocess.PIPE


@pytest.mark.ci
async def test_the_format_is_raised_when_all_servers_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know it is named before; afterwards such a server stops, and says why."""
    newer = FORMAT + 1
    async with servers("a", key=b"") as pair:
        [address], ha = _addresses(pair), partial(_ha, tmp_path, key=b"")
        code, output = await ha("format", str(newer), address)
        assert code == 1
        assert f"knows formats up to {FORMAT}" in output
        for module in (entries, fence, liveness):
            monkeypatch.setattr(module, "FORMAT", newer)  # the upgrade of a
        former = _FormerRelease("b", pair.cluster.url)
        await former.start()
        await until(lambda: replication(pair.by_id["a"]).formats == {"b": FORMAT}, "b listens")
        code, output = await ha("format", str(newer), address)
        assert code == 1
        assert f"b would stop, because of not knowing format {newer}" in output
        await former.end(signal.SIGKILL)
        await until(lambda: not replication(pair.by_id["a"]).formats, "b is gone")
        for _ in range(2):  # the second time there is nothing to do
            code, output = await ha("format", str(newer), address, "--json")
            assert code == 0, output
            assert json.loads(output)["format"] == newer
        code, output = await ha("format", str(FORMAT), address)
        assert code == 1
        assert "formats never go back" in output
        with pytest.raises(AssertionError):  # it says nothing before it ends
            await former.start()
        code, text = await former.ended()
        assert code == exits.DATA
        assert f"records of format {newer}; this program knows formats up to {FORMAT}: upgrade it".encode() in text


@pytest.mark.ci
async def test_only_the_active_server_raises_the_format(tmp_path: Path) -> None:
    """The others do not know who else there is."""
    async with servers("a", "b") as pair:
        code, output = await _ha(tmp_path, "format", str(FORMAT), _addresses(pair)[1])
        assert code == 1
        assert "it is not active" in output
        code, output = await _ha(tmp_path, "format", "0", _addresses(pair)[0])
        assert code == exits.USAGE


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:x", "7001"])
@pytest.mark.ci
async def test_what_is_not_an_address_is_refused(tmp_path: Path, address: str) -> None:
    """With what it must look like, before anything is sent."""
    code, output = await _ha(tmp_path, "status", address)
    assert code == exits.USAGE
    assert f"an address is the internal HOST:PORT of a server, not {address}" in output


@pytest.mark.parametrize("arguments", [["status"], ["hand-over"], ["promote", "--force"]])
@pytest.mark.ci
async def test_without_the_key_nobody_may(tmp_path: Path, arguments: list[str]) -> None:
    """The server says nothing, and the command says what is missing, or wrong."""
    async with servers("a") as pair:
        code, output = await _ha(tmp_path, *arguments, *_addresses(pair), key=b"another key, by mistake")
        assert code == (exits.NEGATIVE if arguments == ["status"] else exits.NOT_ADMITTED)
        assert "it has another key than" in output
        assert replication(pair.by_id["a"]).role is Role.ACTIVE
