"""``statestore export`` and ``import`` that are interrupted or killed, or whose server is: with each kind of server."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.hosted_stores import ForeignBroker, HostedStoreProcess
from support.ports import reserved_port
from support.server_processes import ReplicatedServers
from support.terminals import read_to_end

from statestore_client import AsyncStateStoreClient, StateStoreClient
from statestore_client.cli.entries import UNKNOWN, entries
from statestore_client.cli.export_file import export_lines
from statestore_client.server import EmbeddedServer
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.replies import KeyEntry

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

STATESTORE = [sys.executable, "-m", "statestore_client.cli"]
#: Three batches of an import.
KEYS = [
    KeyEntry(
        b"k%06d\xff" % n,
        b"value %d" % n,
        UNKNOWN,
        10_000_000_000 + 1_000_000 * n if n % 3 == 0 else None,
        HlcTimestamp(1_696_374_425_000 + n, 0, "A") if n % 5 == 0 else None,
    )
    for n in range(9000)
]

Server = tuple[str, Callable[[], Awaitable[object]] | None]


class _Process:
    """``statestore serve`` on a port of its own."""

    def __init__(self, *options: str) -> None:
        self.port = reserved_port()
        self.options = options

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *STATESTORE, "serve", "--port", str(self.port), *self.options, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert re.match(rb"listening on mqtt", await self.process.stdout.readline())

    async def end(self) -> None:
        self.process.kill()
        await self.process.communicate()

    async def restart(self) -> None:
        await self.end()
        await self.start()


@asynccontextmanager
async def a_server(kind: str, folder: Path, require_tool: Callable[[str], str]) -> AsyncIterator[Server]:
    """Its URL, and what kills and starts it again, if it keeps its keys then."""
    if kind == "replicated":
        servers = ReplicatedServers.with_own_peers(folder, "a", "b", "c")
        try:
            await servers.start_all()
            yield servers.url, lambda: kill_active(servers)
        finally:
            await servers.end_all()
    elif kind == "hosted":
        broker = ForeignBroker(require_tool("mosquitto"), folder)
        await broker.start()
        host = HostedStoreProcess(broker.url, ("--data", str(folder / "data")))
        await host.start()

        async def restart() -> None:
            await host.end(signal.SIGKILL)
            await host.start()

        try:
            yield broker.url, restart
        finally:
            await host.end(signal.SIGKILL)
            await broker.end(signal.SIGKILL)
    else:
        server = _Process(*(("--data", str(folder / "data")) if kind == "durable" else ()))
        await server.start()
        try:
            yield f"mqtt://127.0.0.1:{server.port}", server.restart if kind == "durable" else None
        finally:
            await server.end()


async def kill_active(servers: ReplicatedServers) -> None:
    await (await servers.active()).end(signal.SIGKILL)


async def began(*arguments: str | Path) -> asyncio.subprocess.Process:
    """A command, with its input, output and errors."""
    words = [str(each) for each in arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIO_")}
    return await asyncio.create_subprocess_exec(
        *STATESTORE,
        *words,
        "--timeout",
        "60",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )


async def is_stored(url: str, number: int) -> None:
    """Returns as soon as this key is there."""
    async with AsyncStateStoreClient(url) as store:
        while await store.get(KEYS[number].key, timeout=60) is None:
            pass


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["single", "durable", "replicated", pytest.param("hosted", marks=pytest.mark.interop)])
async def test_transfers_that_are_killed_begin_again(
    kind: str, tmp_path: Path, require_tool: Callable[[str], str]
) -> None:
    """An import that is killed, interrupted with Ctrl-C, and whose server is killed in its middle, has stored all keys
    in the end; an export that is interrupted is not imported, and the next one has all.
    """
    file = tmp_path / "file"
    file.write_bytes(b"".join(export_lines(KEYS, b"*", values_only=False)))
    async with a_server(kind, tmp_path, require_tool) as (url, restart):
        load = ("import", "--url", url, "--json", file)
        killed = await began(*load)
        await is_stored(url, 10)
        killed.kill()
        await killed.communicate()
        assert killed.returncode == -signal.SIGKILL

        interrupted = await began(*load)
        await is_stored(url, 4100)
        interrupted.send_signal(signal.SIGINT)
        _, complaint = await interrupted.communicate()
        assert interrupted.returncode == 130, complaint
        assert b"of 9000 keys are there for certain; the same command goes on there" in complaint

        last = await began(*load)
        await is_stored(url, 8200)
        if restart is not None:
            await restart()
        out, complaint = await last.communicate()
        assert last.returncode == 0, complaint
        numbers = json.loads(out)
        assert numbers["stored"] + numbers["unchanged"] == numbers["keys"] == len(KEYS)
        assert numbers["unchanged"] > 2000
        await asyncio.to_thread(assert_all_are_there, url)

        cut = await began("export", "--url", url)
        assert cut.stdout is not None
        head = await cut.stdout.readline()
        cut.send_signal(signal.SIGINT)  # it waits for us: a pipe holds less than the file has
        (tmp_path / "cut").write_bytes(head + (await cut.communicate())[0])
        assert cut.returncode == 130
        refused = await began("import", "--url", url, tmp_path / "cut")
        _, complaint = await refused.communicate()
        assert refused.returncode == 6
        assert b"it has no end: the export was interrupted" in complaint

        whole = await began("export", "--url", url)
        out, complaint = await whole.communicate()
        assert whole.returncode == 0, complaint
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines[-1]["keys"] == len(KEYS)
        assert [line.get("fence") for line in lines[1:-1]] == [e.fence and str(e.fence) for e in KEYS]
        piped = await began("import", "--url", url, "-")
        told, complaint = await piped.communicate(out)
        assert (piped.returncode, told) == (0, b"stored 3000 keys; 6000 unchanged; all are as in the file\n"), complaint


def test_people_see_progress(statestore_server: EmbeddedServer, tmp_path: Path) -> None:
    """On a terminal standard error shows how far an export and an import are; standard output has what it should."""
    (tmp_path / "file").write_bytes(b"".join(export_lines(KEYS[:2000], b"*", values_only=False)))
    environment = {**os.environ, "TERM": "xterm"}
    for arguments, line in (("import", tmp_path / "file"), b"comparing"), (("export",), b"exporting, 2000 keys"):
        terminal, inside = pty.openpty()
        command = [*STATESTORE, *arguments, "--url", statestore_server.url]
        with (
            (tmp_path / "out").open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=inside, env=environment) as process,
        ):
            os.close(inside)
            shown = read_to_end(terminal)
        assert process.returncode == 0
        assert line in shown
        assert len((tmp_path / "out").read_bytes().splitlines()) == (1 if "import" in arguments else 2002)


def assert_all_are_there(url: str) -> None:
    """In every field; some time may have passed."""
    with StateStoreClient(url) as store:
        found = list(entries(store, b"*"))
    assert [(e.key, e.value, e.fence) for e in found] == [(e.key, e.value, e.fence) for e in KEYS]
    for one, other in zip(found, KEYS, strict=True):
        if one.expiry_ms is None or other.expiry_ms is None:
            assert one.expiry_ms is other.expiry_ms
        else:
            assert 0 <= other.expiry_ms - one.expiry_ms < 600_000
