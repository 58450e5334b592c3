"""``statestore serve --cluster`` three times, on this machine: servers as processes, each with its peer of the log."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from ports import reserved_port, reserved_ports
from waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.cli import exits
from statestore_client.server.runtime.replication.internal_handshake import ClientHello
from statestore_client.server.runtime.replication.liveness import dial

__all__ = ["ClusterProcesses"]

_PORTS = 3
_TIMEOUT_S = 60.0


class ClusterProcesses:
    """The servers ``a``, ``b`` and ``c``, at the same ports each time they start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = {name: reserved_port() for name in "abc"}
        self._cluster_ports = {name: reserved_ports(_PORTS) for name in "abc"}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Of a client that knows all of them."""
        return "mqtt://" + ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def nodes(self) -> str:
        return ",".join(f"{name}=127.0.0.1:{port}" for name, port in self._cluster_ports.items())

    def command(self, name: str) -> list[str]:
        return [
            sys.executable, "-m", "statestore_client.cli", "serve", "--port", str(self._ports[name]),
            "--cluster", self.nodes, "--id", name, "--data", str(self.directory / name),
        ]  # fmt: skip

    def start(self, *names: str) -> None:
        """At the same time. Returns when all of them take clients."""
        for name in names:
            self.running[name] = subprocess.Popen(self.command(name), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in names:
            output = self.running[name].stdout
            assert output is not None
            lines = [output.readline() for _ in range(2)]
            assert lines[1].startswith(b"listening for servers on 127.0.0.1:"), (lines, self.running[name].poll())

    def end(self, name: str, number: signal.Signals) -> tuple[int, bytes]:
        """Its exit code, and what it wrote to standard error."""
        process = self.running.pop(name)
        process.send_signal(number)
        _, text = process.communicate(timeout=_TIMEOUT_S)
        return process.returncode, text

    def status(self, name: str) -> bytes:
        """One line of JSON; empty if it cannot be asked."""
        return asyncio.run(self._ask(name))

    async def _ask(self, name: str) -> bytes:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                address = f"127.0.0.1:{self._cluster_ports[name] + 2}"
                reader, writer = await dial(address, ClientHello("status", "test"), b"")
                line = await reader.readline()
                writer.close()
        except OSError:
            return b""
        return line

    def active(self) -> str:
        """Waits until one of them is."""
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [name for name in self.running if b'"role": "active"' in self.status(name)]
            return len(found) == 1

        eventually(is_there, "one server is active")
        return found[0]

    def client(self) -> StateStoreClient:
        return StateStoreClient(self.url)

    def kill_all(self) -> None:
        for name in list(self.running):
            self.end(name, signal.SIGKILL)

    def stop(self, name: str) -> None:
        """As a machine that is upgraded does."""
        code, text = self.end(name, signal.SIGTERM)
        assert code == exits.DONE, text
