"""Servers of one log as processes: ``statestore serve --log``, on peers in a thread of the test, or ``--cluster``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import attrs

from statestore_client.server.runtime.replication.internal import ClusterSecret, Hello, dial
from support.ports import reserved_port, reserved_ports

__all__ = ["ClusterServer", "ReplicatedServer", "ReplicatedServers"]

TIMEOUT_S = 60.0  # on a machine that does other things as well


@attrs.define(eq=False)
class ReplicatedServer:
    """One of them; it can be started again, and then has the same port."""

    id: str
    log: str
    process: asyncio.subprocess.Process | None = None
    port: int = attrs.field(factory=reserved_port)
    metrics_port: int = 0
    internal_port: int = 0
    environment: dict[str, str] = attrs.field(factory=dict)

    #: Where it writes what it logs: to that of the test.
    errors: ClassVar[int | None] = None

    @property
    def options(self) -> tuple[str, ...]:
        return ("--log", self.log)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Returns when it takes clients."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statestore_client.cli", "serve", "--id", self.id,
            "--port", str(self.port), "--metrics-port", "0", *self.options,
            stdout=asyncio.subprocess.PIPE, stderr=self.errors, env={**os.environ, **self.environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = [await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT_S) for _ in range(3)]
        ports = [re.search(rb":(\d+)(/metrics)?$", line.strip()) for line in lines]
        assert all(ports), lines
        _, self.metrics_port, self.internal_port = (int(found[1]) for found in ports if found)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        """Returns when it is gone."""
        if self.is_running and self.process is not None:
            self.signal(number)
            await self.ended()

    async def ended(self) -> tuple[int | None, bytes]:
        """Waits for its end. Its exit code, and what it logged, if that is kept."""
        assert self.process is not None
        _, text = await asyncio.wait_for(self.process.communicate(), TIMEOUT_S)
        return self.process.returncode, text or b""

    async def begin_snapshot(self) -> None:
        """Into the log."""
        await self.ask("snapshot")

    async def ask(self, purpose: str) -> None:
        """As ``statestore ha`` does: ``snapshot``, ``promote``, or ``hand-over``. Returns when that is answered."""
        address = f"127.0.0.1:{self.internal_port}"
        stream, _ = await dial(address, Hello(purpose, "", address), ClusterSecret(b""))
        await stream.read_all()
        stream.transport.close()

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


@attrs.define(eq=False)
class ClusterServer(ReplicatedServer):
    """One with a peer of the log in its process. ``log`` names all of them."""

    data: Path = Path()

    errors: ClassVar[int | None] = asyncio.subprocess.PIPE

    @property
    def options(self) -> tuple[str, ...]:
        return ("--cluster", self.log, "--data", str(self.data))


class ReplicatedServers:
    """All of them; :attr:`port` is that of one that runs, another one each time."""

    def __init__(
        self, log: str, random: Random, *ids: str, make: Callable[[str, str], ReplicatedServer] = ReplicatedServer
    ) -> None:
        self.servers = {server_id: make(server_id, log) for server_id in ids}
        self._random = random
        #: Those that stand still.
        self.paused: set[ReplicatedServer] = set()

    @classmethod
    def with_own_peers(cls, folder: Path, *ids: str) -> ReplicatedServers:
        """Each keeps its part of the log in a directory of this folder."""
        nodes = ",".join(f"{server_id}=127.0.0.1:{reserved_ports(3)}" for server_id in ids)
        return cls(nodes, Random(1), *ids, make=lambda name, log: ClusterServer(name, log, data=folder / name))

    @property
    def url(self) -> str:
        """Of a client that knows the addresses of all."""
        return "mqtt://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers.values())

    @property
    def port(self) -> int:
        awake = [each for each in self.servers.values() if each.is_running and each not in self.paused]
        return self._random.choice(awake).port

    async def start_all(self, *ids: str) -> None:
        """Or these. At the same time: one with a peer of its own waits for another one."""
        chosen = [self.servers[server_id] for server_id in ids or self.servers]
        await asyncio.gather(*(server.start() for server in chosen if not server.is_running))

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
