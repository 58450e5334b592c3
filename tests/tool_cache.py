"""Where tests keep what they build from other projects' packages: outside the clone, once for all clones."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["tool_folder"]


def tool_folder(variable: str, name: str) -> Path:
    """The folder that the environment variable names, or ``name`` in the user's cache."""
    chosen = os.environ.get(variable)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else cache / "statestore-client-tests" / name
