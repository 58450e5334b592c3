"""Where the ``zmqraft`` command begins: what has to be in force before the rest of it is imported.

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
        signal.signal(signal.SIGTERM, _end)  # until the peer has a handler of its own
    from raft_client.cli.app import main as run  # not before there is a handler

    run()


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing was acknowledged yet, and an exception could be lost: it would rise in the middle of any import."""
    del number, frame
    os._exit(0)
