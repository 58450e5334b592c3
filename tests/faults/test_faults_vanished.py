"""A machine is lost, not a process: its cable is pulled out, and no kernel closes a connection for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.namespaces import Machines

pytestmark = [pytest.mark.machine, pytest.mark.timeout(120)]

_SERVERS = ("a", "b", "c")
_TIMEOUT_S = 60.0
_PORT = 1883


@contextlib.asynccontextmanager
async def _running(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def _cluster(machines: Machines, folder: Path) -> AsyncIterator[None]:
    """Three servers, one on each machine; all take clients."""
    key_file = folder / "key"
    key_file.write_text(secrets.token_hex(32))
    key_file.chmod(0o600)
    nodes = ",".join(f"{name}={machines.addresses[name]}" for name in _SERVERS)
    processes: list[asyncio.subprocess.Process] = []
    async with contextlib.AsyncExitStack() as stack:
        for name in _SERVERS:
            command = machines.on(
                name, sys.executable, "-m", "statestore_client.cli", "serve", "--id", name, "--host", "0.0.0.0",
                "--port", str(_PORT), "--insecure", "--cluster", nodes, "--cluster-key-file", str(key_file),
                "--data", str(folder / name), "--metrics-port", "9091",
            )  # fmt: skip
            processes.append(await stack.enter_async_context(_running(*command)))
        for process in processes:
            assert process.stdout is not None
            for _ in range(3):  # what it says when it takes clients
                assert await asyncio.wait_for(process.stdout.readline(), _TIMEOUT_S)
        yield


async def _is_active(machines: Machines, name: str) -> bool:
    script = "import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=2)"
    command = machines.on(name, sys.executable, "-c", script, "http://127.0.0.1:9091/ready")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait() == 0


async def _active(machines: Machines) -> str:
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        for name in _SERVERS:
            if await _is_active(machines, name):
                return name
    raise AssertionError("no server is active")


async def _outcomes(writer: asyncio.subprocess.Process, seconds: float) -> list[tuple[float, str]]:
    """How long each write took that ended within so many seconds, and what became of it."""
    assert writer.stdout is not None
    outcomes: list[tuple[float, str]] = []
    until = time.monotonic() + seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while time.monotonic() < until:
                _, took_s, outcome = (await writer.stdout.readline()).decode().split(" ", 2)
                outcomes.append((float(took_s), outcome.strip()))
    return outcomes


@pytest.mark.parametrize("lost", ["active", "standby"])
async def test_a_client_goes_on_when_its_machine_is_lost(
    tmp_path: Path, lost: str, figures: Callable[[str], None]
) -> None:
    """The client is connected to the active server, or to a standby that passes it on."""
    with Machines(*_SERVERS, "client") as machines:
        async with _cluster(machines, tmp_path):
            active = await _active(machines)
            door = active if lost == "active" else next(name for name in _SERVERS if name != active)
            doors = [door, *(name for name in _SERVERS if name != door)]
            url = "mqtt://" + ",".join(f"{machines.addresses[name]}:{_PORT}" for name in doors)
            script = str(Path(__file__).with_name("steady_writer.py"))
            async with _running(*machines.on("client", sys.executable, script, url)) as writer:
                before = await _outcomes(writer, 2.0)
                assert before
                machines.cut(door)
                after = await _outcomes(writer, 4.0)
    errors = [outcome for _, outcome in before + after if outcome != "set"]
    assert not errors
    gap = max(took for took, _ in after)
    figures(f"{lost} machine lost: next acknowledged write after {gap:.2f} s")
    assert 0.3 < gap < 2.5  # 1.2 s and 0.9 s where nothing else runs
