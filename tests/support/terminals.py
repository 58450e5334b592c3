"""What programs show on a terminal."""

from __future__ import annotations

import os
from contextlib import suppress


def read_to_end(terminal: int) -> bytes:
    """Read what comes until nobody has the other end any more, and close the terminal, or the pipe.

    A program that shows more than the terminal holds waits for its reader: read before you wait for the program.
    """
    shown = []
    try:
        with suppress(OSError):  # EIO is the end of a terminal
            while chunk := os.read(terminal, 65_536):
                shown.append(chunk)
    finally:
        os.close(terminal)
    return b"".join(shown)
