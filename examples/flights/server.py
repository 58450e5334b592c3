"""``statestore serve`` as a process of its own."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO, Final

from .failure import LOST, DemoError

__all__ = ["ServerProcess", "serving"]

_READY: Final = "listening on "
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0


class ServerProcess:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self, wait_s: float = 0.0) -> str | None:
        """How it ended, None if it still runs after ``wait_s`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        code = self._process.poll()
        if code is None:
            return None
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def serving() -> Iterator[ServerProcess]:
    """A server on a free port of the loopback interface, ended when the context is left."""
    command = [sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0"]
    process = subprocess.Popen(  # noqa: S603 - the command of the installed package
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which then ends the server itself
    )
    try:
        yield ServerProcess(process, _wait_until_ready(process))
    finally:
        _end(process)


def _wait_until_ready(process: subprocess.Popen[str]) -> str:
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - it was opened with a pipe
    deadline = time.monotonic() + _START_TIMEOUT_S
    while line := _read_line(stdout, deadline - time.monotonic()):
        if line.startswith(_READY):
            return line.removeprefix(_READY).strip()
    raise DemoError("`statestore serve` did not start; run it by hand to see why", LOST)


def _read_line(stdout: IO[str], timeout_s: float) -> str:
    """The next line, empty at the end of the output or of the time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        return stdout.readline() if selector.select(max(timeout_s, 0.0)) else ""


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
