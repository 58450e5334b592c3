"""Peers that are Python packages, each in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import tempfile
import venv
from contextlib import ExitStack
from pathlib import Path

__all__ = ["install"]


def install(stack: ExitStack, requirement: str) -> Path | None:
    """The folder of its commands, ``python`` among them, until ``stack`` ends; prints why if it cannot be had."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-venv-")))
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", requirement]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        print(f"skipped: {requirement} cannot be installed: {made.stderr.strip().splitlines()[-1]}")
        return None
    return folder / "bin"
