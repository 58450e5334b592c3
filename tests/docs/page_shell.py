"""One bash for the commands of a page, one after the other, so that its variables and functions last."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["PageShell"]

_COMMAND_TIMEOUT_S: Final = 180.0  # some start Java


class PageShell:
    """In this directory and environment. The end of a command is found by a line that no command prints; each of them
    is killed after three minutes.
    """

    _END: Final = "-- end of the command --"

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-euo", "pipefail"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str, where: str) -> str:
        """The output of ``command``. Fails if it, or any command in it, fails."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # Without a standard input of their own, programs would read the commands that come next.
        self._bash.stdin.write(f"{{\n{command}\n}} </dev/null\nprintf '\\n%s\\n' '{self._END}'\n")
        self._bash.stdin.flush()
        lines = []
        watchdog = threading.Timer(_COMMAND_TIMEOUT_S, self._kill)
        watchdog.start()
        try:
            for line in self._bash.stdout:
                if line.rstrip("\n") == self._END:
                    return "".join(lines)
                lines.append(line)
        finally:
            watchdog.cancel()
        raise AssertionError(f"{where}: {command}\nended with code {self._bash.wait()} and said\n{''.join(lines)}")

    def close(self) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.close()
        self._kill()  # whatever a document left running in the background
        self._bash.wait()
        self._bash.stdout.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
