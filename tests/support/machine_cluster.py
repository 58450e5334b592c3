"""Three servers that share a log, each on a machine of its own, and what can happen to such a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import attrs

from support.namespaces import Machines

__all__ = ["NAMES", "PORT", "MachineCluster", "cluster_on", "outcomes", "running"]

NAMES: Final = ("a", "b", "c")
PORT: Final = 1883
_METRICS_PORT: Final = 9091
_TIMEOUT_S: Final = 60.0
_WRITER: Final = Path(__file__).parents[1] / "faults" / "steady_writer.py"


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command, which is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@attrs.define(eq=False)
class MachineCluster:
    """Made by :func:`cluster_on`."""

    machines: Machines
    folder: Path
    closing: contextlib.AsyncExitStack
    processes: dict[str, asyncio.subprocess.Process] = attrs.Factory(dict)

    @property
    def key_file(self) -> Path:
        """With the servers' secret."""
        return self.folder / "key"

    async def begin(self, name: str) -> None:
        """Start the server of this machine; it may wait for others."""
        nodes = ",".join(f"{each}={self.machines.addresses[each]}" for each in NAMES)
        command = self.machines.on(
            name, sys.executable, "-m", "statestore_client.cli", "serve", "--id", name, "--host", "0.0.0.0",
            "--port", str(PORT), "--insecure", "--cluster", nodes, "--cluster-key-file", str(self.key_file),
            "--data", str(self.folder / name), "--metrics-port", str(_METRICS_PORT),
        )  # fmt: skip
        self.processes[name] = await self.closing.enter_async_context(running(*command))

    async def takes_clients(self, name: str) -> None:
        """Wait until it does."""
        process = self.processes[name]
        assert process.stdout is not None
        for _ in range(3):  # what it says then
            assert await asyncio.wait_for(process.stdout.readline(), _TIMEOUT_S)

    async def kill(self, name: str) -> None:
        """Its process, with SIGKILL."""
        self.processes[name].kill()
        await self.processes[name].wait()

    def suspend(self, name: str) -> None:
        """All of its processes, which is one."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    async def figures(self, name: str) -> dict[str, float]:
        """What its ``/metrics`` say, without labels; nothing if it does not answer."""
        script = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[1], timeout=2).read())"
        url = f"http://127.0.0.1:{_METRICS_PORT}/metrics"
        process = await asyncio.create_subprocess_exec(
            *self.machines.on(name, sys.executable, "-c", script, url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        page, _ = await process.communicate()
        found = re.findall(r'^statestore_(log_\w+)(\{role="active"\})? (\S+)$', page.decode(), re.MULTILINE)
        return {figure: float(value) for figure, _label, value in found}

    async def active(self, but: str = "") -> str:
        """Wait until a server is, and return its name; ``but`` one that may still believe it."""
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            for name in NAMES:
                if name != but and (await self.figures(name)).get("log_role") == 1.0:
                    return name
        raise AssertionError("no server is active")

    async def is_whole(self) -> str:
        """Wait until two servers follow the active one, and have read what it has. Returns the active one's name."""
        until = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < until:
            active = await self.active()
            seen = [await self.figures(name) for name in NAMES]
            indexes = [each.get("log_index", -1.0) for each in seen]
            listening = seen[NAMES.index(active)].get("log_listening_servers")
            if listening == len(NAMES) - 1 and max(indexes) - min(indexes) < 1:
                return active
        raise AssertionError("a server does not follow")

    def url(self, *doors: str) -> str:
        """For a client that knows these machines, and tries them in this order."""
        return "mqtt://" + ",".join(f"{self.machines.addresses[name]}:{PORT}" for name in doors)

    def writing(self, *doors: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """A client on the machine ``client`` that sets one key after the other, see ``steady_writer.py``, and
        :meth:`url`.
        """
        return running(*self.machines.on("client", sys.executable, str(_WRITER), self.url(*doors)))


@contextlib.asynccontextmanager
async def cluster_on(machines: Machines, folder: Path) -> AsyncIterator[MachineCluster]:
    """All three take clients."""
    async with contextlib.AsyncExitStack() as closing:
        cluster = MachineCluster(machines, folder, closing)
        cluster.key_file.write_text(secrets.token_hex(32))
        cluster.key_file.chmod(0o600)
        for name in NAMES:
            await cluster.begin(name)
        for name in NAMES:
            await cluster.takes_clients(name)
        yield cluster


async def outcomes(writer: asyncio.subprocess.Process, seconds: float) -> list[tuple[float, str]]:
    """How long each write took that ended within so many seconds, and what became of it."""
    assert writer.stdout is not None
    ended: list[tuple[float, str]] = []
    until = time.monotonic() + seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while time.monotonic() < until:
                _, took_s, outcome = (await writer.stdout.readline()).decode().split(" ", 2)
                ended.append((float(took_s), outcome.strip()))
    return ended
