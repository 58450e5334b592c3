"""The drivers as processes: started, killed, frozen, and what they tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import attrs

from .failure import LOST, NOT_INSTALLED, DemoError

__all__ = ["Driver", "Told"]

_STOP_TIMEOUT_S: Final = 20.0


@attrs.frozen
class Told:
    """What a driver said, and when (seconds, monotonic)."""

    at: float
    kind: str
    index: int | None
    keys: int


class Driver:
    """A process with a Spark session, whose words are collected by a thread. ``program`` is a module and arguments."""

    def __init__(self, name: str, program: list[str], folder: Path) -> None:
        self.name = name
        self.told: list[Told] = []
        self._log = folder / f"{name}.log"
        self._news = threading.Condition()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a program of this repository
                [sys.executable, *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
            )
        self._reader = threading.Thread(target=self._read, name=f"driver {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was opened with a pipe
        for line in self._process.stdout:
            words: dict[str, Any] = json.loads(line)
            with self._news:
                self.told.append(Told(time.monotonic(), words["kind"], words["index"], words["keys"]))
                self._news.notify_all()

    def has_told(self, kind: str, since: int = 0) -> bool:
        """Whether it said this after the first ``since`` words."""
        return any(told.kind == kind for told in self.told[since:])

    def wait_until_it_says(self, kind: str, timeout_s: float) -> bool:
        """Wait until this is the last that it said."""
        with self._news:
            return self._news.wait_for(lambda: bool(self.told) and self.told[-1].kind == kind, timeout_s)

    def wait_for_more(self, said: int, timeout_s: float) -> bool:
        """Wait until it has said more than so many words."""
        with self._news:
            return self._news.wait_for(lambda: len(self.told) > said, timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raises :class:`DemoError` when it has ended without being told to."""
        if (code := self._process.poll()) is not None:
            words = " ".join(self._log.read_text(errors="replace").split()[-60:])
            # One that never was ready lacks something that Spark needs.
            exit_code = LOST if self.has_told("ready") else NOT_INSTALLED
            raise DemoError(f"driver {self.name} ended with exit code {code}: {words}", exit_code)

    # -- what happens to it --------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """As ``kill -9`` of the driver. Its Java process and the workers end when they notice."""
        self._process.kill()
        self._process.wait()

    def freeze(self, family: list[int]) -> None:
        """Stop the driver, its Java process and Spark's workers, as a machine that stands still would.

        ``family`` is what :meth:`family` said a moment ago: to ask takes longer than a batch.
        """
        _signal_all(family, signal.SIGSTOP)
        while (now := self.family()) != family:  # until none was started meanwhile
            _signal_all(now, signal.SIGSTOP)
            family = now

    def wake(self) -> None:
        """Let all of them go on."""
        _signal_all(self.family(), signal.SIGCONT)

    def family(self) -> list[int]:
        """The process ids of the driver, its Java process and Spark's workers."""
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)  # noqa: S607
        parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
        family = [self._process.pid]
        for member in family:
            family += [pid for pid, parent in parents if parent == member]
        return family

    def close(self) -> None:
        """End it, properly if it can."""
        family = self.family() if self._process.poll() is None else []
        _signal_all(family, signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _signal_all(family, signal.SIGKILL)
            self._process.wait()
        self._reader.join(_STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
