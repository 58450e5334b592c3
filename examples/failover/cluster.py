"""Three processes ``statestore serve --cluster``: each on a machine with a cable if such can be made here, or all on
this one.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .machines import Machines

__all__ = ["Cluster", "ClusterError"]

_COMMAND: Final = (sys.executable, "-m", "statestore_client.cli")
_NAMES: Final = ("a", "b", "c")
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 15.0
#: MQTT, metrics, and three for the other servers: peer, broadcasts, internal address.
_PORTS_EACH: Final = 5


class ClusterError(Exception):
    """A server did not start, or none is active."""


class Cluster:
    """Leaves no process behind. ``machines`` are those of the names ``a``, ``b`` and ``c``, or None."""

    names: Final = _NAMES

    def __init__(self, folder: Path, machines: Machines | None = None) -> None:
        self._folder, self._machines = folder, machines
        self._hosts = dict.fromkeys(_NAMES, "127.0.0.1") if machines is None else machines.addresses
        self._first_port = dict(zip(_NAMES, _free_ports(len(_NAMES)), strict=True))
        self._nodes = ",".join(f"{name}={self._hosts[name]}:{port + 2}" for name, port in self._first_port.items())
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._key_file = folder / "cluster.key"
        self._key_file.write_text(secrets.token_hex(32))
        self._key_file.chmod(0o600)

    @property
    def url(self) -> str:
        """Of clients, with the addresses of all servers."""
        return "mqtt://" + ",".join(f"{self._hosts[name]}:{port}" for name, port in self._first_port.items())

    def command(self, name: str) -> list[str]:
        """What is run on the machine of this server, but for the interpreter."""
        host, port = self._hosts[name], self._first_port[name]
        return [
            *("serve", "--cluster", self._nodes, "--id", name, "--data", str(self._folder / name)),
            *("--cluster-key-file", str(self._key_file), "--host", host, "--port", str(port)),
            *("--metrics-host", host, "--metrics-port", str(port + 1)),
            *(() if self._machines is None else ("--insecure",)),  # this network has no other programs
        ]

    def hand_over_command(self, name: str) -> list[str]:
        """The same for the command that lets another server be the active one."""
        address = f"{self._hosts[name]}:{self._first_port[name] + 4}"
        return ["ha", "hand-over", address, "--cluster-key-file", str(self._key_file)]

    def start(self, *names: str) -> None:
        """At the same time; returns when all take clients. Raises ClusterError."""
        for name in names:
            with (self._folder / f"{name}.log").open("a") as log:
                command = [*_COMMAND, *self.command(name)]
                self._running[name] = subprocess.Popen(  # noqa: S603 - the command of the installed package
                    command if self._machines is None else self._machines.on(name, *command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the demo, which then ends the servers itself
                )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while waiting := [name for name in names if self._is_ready(name) is None]:
            if time.monotonic() > deadline or any(self._running[name].poll() is not None for name in waiting):
                text = (self._folder / f"{waiting[0]}.log").read_text()
                raise ClusterError(f"server {waiting[0]} did not start: {text.strip() or 'it says nothing'}")
            time.sleep(0.02)

    def active(self, but: str = "") -> str:
        """The name of the server that serves; ``but`` one that cannot be asked. Raises ClusterError."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            for name in self._running:
                if name != but and self._is_ready(name):
                    return name
            time.sleep(0.01)
        raise ClusterError("no server is active")

    def kill(self, name: str) -> None:
        """As ``kill -9``."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def hand_over(self, name: str) -> None:
        """``statestore ha hand-over``. Raises ClusterError."""
        command = [*_COMMAND, *self.hand_over_command(name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - as above
        if done.returncode:
            raise ClusterError(f"server {name} did not hand over: {(done.stderr or done.stdout).strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self, name: str) -> bool | None:
        """Whether it is active; None if it does not answer."""
        with contextlib.suppress(OSError):
            url = f"http://{self._hosts[name]}:{self._first_port[name] + 1}/ready"
            try:
                with urllib.request.urlopen(url, timeout=1.0):
                    return True
            except urllib.error.HTTPError:
                return False
        return None


def _free_ports(count: int) -> list[int]:
    """So many times the first of five in a row that nobody has now."""
    found: list[int] = []
    for port in range(20_000, 32_000, _PORTS_EACH):
        if len(found) < count and all(_is_free(each) for each in range(port, port + _PORTS_EACH)):
            found.append(port)
    if len(found) < count:
        raise ClusterError("this machine has no free ports between 20000 and 32000")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
