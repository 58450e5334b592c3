"""Whether what a seed gives depends on the process that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["printed_by_two_processes"]


def printed_by_two_processes(folder: Path, program: str) -> set[bytes]:
    """What a program that imports from this folder prints: one text, if other hashes (and so other orders in sets) make
    no difference."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": str(n), "PYTHONPATH": path},
            capture_output=True,
            check=True,
        ).stdout
        for n in range(2)
    }
