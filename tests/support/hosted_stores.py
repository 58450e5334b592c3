"""A foreign broker, Debian's mosquitto, and ``statestore serve --broker`` on it, as processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import attrs

from support.ports import reserved_port

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

    async def page(self, path: str) -> tuple[int, str]:
        """Of its port for figures and probes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        text = (await asyncio.wait_for(reader.read(), TIMEOUT_S)).decode()
        writer.close()
        return int(text.split()[1]), text
