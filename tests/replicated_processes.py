"""Servers of one log as processes: ``statestore serve --log``, on peers in a thread of the test."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from collections.abc import Callable
from random import Random

import attrs

from statestore_client.server.runtime.replication.internal_handshake import ClientHello
from statestore_client.server.runtime.replication.liveness import dial

__all__ = ["ReplicatedServer", "ReplicatedServers"]

TIMEOUT_S = 60.0  # on a machine that does other things as well
_OPTIONS = ("--port", "0", "--metrics-port", "0")


@attrs.define(eq=False)
class ReplicatedServer:
    """One of them; it can be started again."""

    id: str
    log: str
    process: asyncio.subprocess.Process | None = None
    port: int = 0
    metrics_port: int = 0
    internal_port: int = 0

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Returns when its router are open."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statestore_client.cli", "serve", *_OPTIONS, "--log", self.log, "--id", self.id,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = [await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT_S) for _ in range(3)]
        ports = [re.search(rb":(\d+)(/metrics)?$", line.strip()) for line in lines]
        assert all(ports), lines
        self.port, self.metrics_port, self.internal_port = (int(found[1]) for found in ports if found)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        """Returns when it is gone."""
        if self.is_running and self.process is not None:
            self.signal(number)
            await self.process.communicate()

    async def begin_snapshot(self) -> None:
        """Into the log."""
        await self.ask("snapshot")

    async def ask(self, purpose: str) -> None:
        """As ``statestore ha`` does: ``snapshot``, ``promote``, or ``hand-over``. Returns when that is answered."""
        reader, writer = await dial(f"127.0.0.1:{self.internal_port}", ClientHello(purpose, ""), b"")
        await reader.readline()
        writer.close()

    async def is_active(self) -> bool:
        """Whether it says that it is. One that stands still says nothing."""
        writer = None
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
                writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
                return b" 200 " in await reader.readline()
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()


class ReplicatedServers:
    """All of them; :attr:`port` is that of one that runs, another one each time."""

    def __init__(
        self, log: str, random: Random, *ids: str, make: Callable[[str, str], ReplicatedServer] = ReplicatedServer
    ) -> None:
        self.servers = {server_id: make(server_id, log) for server_id in ids}
        self._random = random
        #: Those that stand still.
        self.paused: set[ReplicatedServer] = set()

    @property
    def port(self) -> int:
        awake = [each for each in self.servers.values() if each.is_running and each not in self.paused]
        return self._random.choice(awake).port

    async def start_all(self) -> None:
        for server in self.servers.values():
            if not server.is_running:
                await server.start()

    async def active(self) -> ReplicatedServer:
        """Waits until exactly one says so: one that stood still does not know at once that it is not any more."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            awake = [each for each in self.servers.values() if each.is_running and each not in self.paused]
            active = [each for each in awake if await each.is_active()]
            if len(active) == 1:
                return active[0]
            await asyncio.sleep(0.01)
        raise AssertionError("no server is active, or several are")

    async def end_all(self) -> None:
        for server in self.servers.values():
            if server in self.paused:
                server.signal(signal.SIGCONT)
            await server.end(signal.SIGKILL)
