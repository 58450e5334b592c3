"""Where the ``statestore`` command begins: what has to be in force before the rest of it is imported.

The first process of a container ignores a signal that it has no handler for. Imports take a few tenths of a second,
and a SIGTERM that came meanwhile would be lost: whoever stops the container would wait for its time-out.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; errors become one line on standard error and an exit code."""
    if sys.argv[1:2] == ["serve"]:
        _take_signals()
    from statestore_client.cli.app import main as run  # not before there are handlers

    run()


def _take_signals() -> None:
    """Until the server has handlers of its own, SIGTERM ends the process as it ends a server, and SIGHUP does nothing:
    the files that it says to read again are still to be read.
    """
    signal.signal(signal.SIGTERM, _end)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing was begun yet, and an exception could be lost: it would rise in the middle of any import."""
    del number, frame
    os._exit(0)
