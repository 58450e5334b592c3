"""What tests of Spark need: Java, a session of Spark Connect, and the processes of a driver with its executors."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statestore_client.spark import JavaNotFoundError, find_java_home, register
from statestore_client.spark.session import _CONFIG, _end_java, _environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- java home ---------------------------------------------------------------------------------------------------------

# Tests of Spark are skipped where there is no Java.


def require_java() -> None:
    """Skip the test that calls it, with what is missing."""
    try:
        find_java_home()
    except JavaNotFoundError as error:
        pytest.skip(str(error))


# -- connect session ---------------------------------------------------------------------------------------------------

# A Spark Connect server in a Java process of this run, and a session of it.


@contextlib.contextmanager
def connect_session(name: str, *, cores: str, config: Mapping[str, str]) -> Iterator[SparkSession]:
    """What ``local_session`` is, with Spark Connect in between. The server listens on 127.0.0.1:15002."""
    from pyspark.sql import SparkSession

    wanted = {**_CONFIG, "spark.connect.grpc.binding.address": "127.0.0.1", "spark.log.level": "OFF", **config}
    with _environment():
        builder = SparkSession.builder.remote(f"local[{cores}]").appName(name)
        for key, value in wanted.items():
            builder = builder.config(key, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PySpark gives the server's settings to the session once more, in vain
            spark = builder.getOrCreate()
        register(spark)
        try:
            yield spark
        finally:
            spark.stop()
            _end_java()


# -- spark processes ---------------------------------------------------------------------------------------------------

# The processes of a Spark driver, as Linux lists them in /proc: Java, executors, and what runs Python for them.
#
# A driver that was started in a session of its own has all of them there, also when their parents have died. Each
# executor starts one process for Python, which starts the workers.


#: Of Spark: two executors, of which one that says nothing is soon taken for dead, and one that has nothing to do is
#: taken away. Workers outlive their executor; the folder of ``lonely_daemon`` has to be in PYTHONPATH.
IMPATIENT = {
    "spark.master": "local-cluster[2,1,1024]",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.heartbeatInterval": "500ms",
    "spark.network.timeout": "4s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "4000",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "10s",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.python.daemon.module": "support.lonely_daemon",
}
_PROC = Path("/proc")


def session_of(leader: int) -> Iterator[int]:
    """The processes of the session that this process leads. None where there is no /proc."""
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and os.getsid(int(entry.name)) == leader:
                yield int(entry.name)


def executors_of(leader: int) -> list[int]:
    """The Java processes of the executors."""
    found = []
    for pid in session_of(leader):
        with contextlib.suppress(OSError):
            if b"CoarseGrainedExecutorBackend" in (_PROC / str(pid) / "cmdline").read_bytes():
                found.append(pid)
    return found


def executor_of(worker: int) -> int:
    """The Java process of the executor that has started what has started the worker."""
    return int(_stat(int(_stat(worker)[1]))[1])


def has_ended(pid: int) -> bool:
    """Whether the process is no more; one that nobody has waited for is none, too."""
    try:
        return _stat(pid)[0] == "Z"
    except OSError:
        return True


def _stat(pid: int) -> list[str]:
    """The state, the parent, and more."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Those that have ended are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(leader: int) -> None:
    """The whole session, as a machine that loses its power; where there is no /proc, what is in the leader's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
    signal_all(list(session_of(leader)), signal.SIGKILL)
