"""A foreign broker, Debian's mosquitto, and ``statestore serve --broker`` on it, as processes: alone, or three that
share a log.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from random import Random

import attrs

from statestore_client.server.broker import Broker, BrokerLimits
from statestore_client.server.journal import Journal
from statestore_client.server.runtime.server import Server
from statestore_client.server.service.service import StateStoreService
from support.ports import reserved_port, reserved_ports
from support.proxy import Proxy

TIMEOUT_S = 60.0  # on a machine that does other things as well


@attrs.define(eq=False)
class ForeignBroker:
    """It can be started again, and then has the same port, and with ``is_persistent`` what it had."""

    program: str
    folder: Path
    is_persistent: bool = False
    port: int = attrs.field(factory=reserved_port)
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns when it listens."""
        config = self.folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "set_tcp_nodelay true"]
        if os.geteuid() == 0:
            lines.append("user root")
        if self.is_persistent:
            lines += ["persistence true", f"persistence_location {self.folder}/"]
        config.write_text("\n".join(lines) + "\n")
        self.process = await asyncio.create_subprocess_exec(
            self.program, "-c", str(config), stderr=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Returns when it is gone."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)
            await asyncio.wait_for(self.process.wait(), TIMEOUT_S)


@attrs.define(eq=False)
class HostedStoreProcess:
    """It can be started again."""

    url: str
    options: tuple[str, ...] = ()
    process: asyncio.subprocess.Process | None = None
    metrics_port: int = 0

    async def start(self, *, awaits: bool = True) -> None:
        """Returns when it takes requests, if it ``awaits`` that."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statestore_client.cli", "serve", "--broker", self.url, "--metrics-port", "0",
            *self.options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        if awaits:
            assert self.process.stdout is not None
            lines = [await asyncio.wait_for(self.process.stdout.readline(), TIMEOUT_S) for _ in range(2)]
            found = re.search(rb":(\d+)/metrics", lines[1])
            assert found is not None, lines
            self.metrics_port = int(found[1])

    async def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int | None, str]:
        """Returns when it is gone: its exit code, and what it logged."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> tuple[int | None, str]:
        """Waits for its end."""
        assert self.process is not None
        _, text = await asyncio.wait_for(self.process.communicate(), TIMEOUT_S)
        return self.process.returncode, text.decode()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def page(self, path: str) -> tuple[int, str]:
        """Of its port for figures and probes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            text = (await asyncio.wait_for(reader.read(), TIMEOUT_S)).decode()
        finally:
            writer.close()
        return int(text.split()[1]), text


class BrokerWithoutStore(Server):
    """Our own broker, which has no state store."""

    def build_state(self, journal: Journal | None) -> tuple[StateStoreService, Broker]:
        service, broker = super().build_state(journal)
        bare = Broker(random=Random(), limits=BrokerLimits(), journal=journal)
        del broker
        return service, bare


@attrs.define(eq=False)
class SharedStoreProcess(HostedStoreProcess):
    """One of several hosts that share a log, with a peer of it in its process. It has started when it listens for the
    others.
    """

    line: Proxy = attrs.field(kw_only=True)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def is_active(self) -> bool:
        """Whether it says that it takes requests. One that stands still says nothing."""
        try:
            async with asyncio.timeout(1.0):
                return (await self.page("/ready"))[0] == 200
        except (OSError, TimeoutError):
            return False


class SharedStore:
    """Three hosts of one store, each with its directory in this folder, and a line of its own to the broker."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        port = int(url.rpartition(":")[2])
        nodes = ",".join(f"{name}=127.0.0.1:{reserved_ports(3)}" for name in "abc")
        self.hosts = [
            SharedStoreProcess("", ("--cluster", nodes, "--id", name, "--data", str(folder / name)), line=Proxy(port))
            for name in "abc"
        ]
        #: Those that stand still.
        self.paused: set[SharedStoreProcess] = set()

    async def open(self) -> None:
        """Start all of them, at the same time: each waits for another one. Returns when one takes requests."""
        for host in self.hosts:
            await host.line.accept()
            host.url = host.line.url
        await asyncio.gather(*(host.start() for host in self.hosts))
        await self.active()

    async def active(self) -> SharedStoreProcess:
        """Waits until exactly one says that it is."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                awake = [host for host in self.hosts if host.is_running and host not in self.paused]
                found = [host for host in awake if await host.is_active()]
                if len(found) == 1:
                    return found[0]
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for host in self.hosts:
            if host.is_running:
                await host.end(signal.SIGKILL)
            await host.line.__aexit__(None, None, None)
