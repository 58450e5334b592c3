"""Counts and delays the fsync() and fdatasync() of a process that is started, with a small library in its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["CountedSyncs"]

_SOURCE: Final = Path(__file__).with_name("counted_syncs.c")


class CountedSyncs:
    """What to start processes with: ``environment(name)``. Keeps files in ``folder``. Needs a C compiler (``cc``)."""

    def __init__(self, folder: Path, *, delay_s: float = 0.0) -> None:
        self._folder, self._delay_s = folder, delay_s
        self._library = folder / "counted_syncs.so"
        if not self._library.exists():
            command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(_SOURCE), "-ldl"]
            subprocess.run(command, check=True, capture_output=True)

    def environment(self, name: str) -> dict[str, str]:
        """Variables for the process of this name. It is counted on when it is started again."""
        counter = self._folder / f"{name}.syncs"
        if not counter.exists():
            counter.write_bytes(bytes(8))
        return {
            "LD_PRELOAD": str(self._library),
            "SYNC_COUNT": str(counter),
            "SYNC_DELAY": str(round(1e6 * self._delay_s)),
        }

    def count(self, name: str) -> int:
        """How many calls the process has made."""
        return int.from_bytes((self._folder / f"{name}.syncs").read_bytes(), sys.byteorder)
