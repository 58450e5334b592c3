"""Spark's Java process writes a lot to standard error; the demo's output is for reading."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["stderr_into"]


@contextlib.contextmanager
def stderr_into(file: Path) -> Iterator[None]:
    """Everything that is written to standard error meanwhile, by child processes started meanwhile for ever."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with file.open("wb") as log:
            os.dup2(log.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
