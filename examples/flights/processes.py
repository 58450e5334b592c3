"""The servers of the demo as processes: the state store, and three peers of the log."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .failure import LOST, DemoError

__all__ = ["Server", "serving"]

_READY: Final = "listening on "
_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0


class Server:
    """A process that says where it listens. ``urls`` are what it said."""

    def __init__(self, name: str, arguments: list[str], *, lines: int = 1) -> None:
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603 - the commands of the installed packages
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the demo, which then ends its servers itself
        )
        self._lines = lines
        self.urls: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Raises :class:`DemoError`."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it was opened with a pipe
        too_late = threading.Timer(_START_TIMEOUT_S, self._process.kill)
        too_late.start()
        while len(self.urls) < self._lines and (line := stdout.readline()):
            if line.startswith(_READY):
                self.urls.append(line.removeprefix(_READY).strip())
        too_late.cancel()
        if len(self.urls) < self._lines:
            raise DemoError(f"{self.name} did not start; run it by hand to see why", LOST)

    def check(self) -> None:
        """Raises :class:`DemoError` when it has ended."""
        code = self._process.poll()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise DemoError(f"the process of {self.name} {how}", LOST)

    def close(self) -> None:
        """End it and wait."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, list[Server]]]:
    """The state store, which says its URL and that of its metrics, and three peers of the log."""
    with contextlib.ExitStack() as stack:

        def start(name: str, arguments: list[str], lines: int = 1) -> Server:
            server = Server(name, arguments, lines=lines)
            stack.callback(server.close)
            return server

        store = start("the state store", ["statestore_client.cli", "serve", "--port", "0", "--metrics-port", "0"], 2)
        members = {str(number): f"tcp://127.0.0.1:{port}" for number, port in enumerate(_free_ports(3), 1)}
        shared = [f"--peer={number}={url}" for number, url in members.items()]
        peers = [
            start(
                f"peer {number}", ["raft_client.cli", "serve", "--id", number, "--data", str(folder / number), *shared]
            )
            for number in members
        ]
        for server in (store, *peers):
            server.wait_until_ready()
        yield store, peers


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now, below those that the system gives to clients."""
    found: list[int] = []
    for port in range(20_000, 32_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise DemoError("this machine has no free ports between 20000 and 32000", LOST)
