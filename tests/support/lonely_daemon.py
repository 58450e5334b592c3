"""What starts Spark's Python workers, as ``pyspark.daemon`` does; these outlive their executor.

On one machine a worker ends with its executor, which Spark kills when it does not answer. On a machine that Spark does
not reach, it goes on. Here each worker has a session of its own, so that nobody's end is told to it.
``spark.python.daemon.module`` names this module.
"""

from __future__ import annotations

import os

from pyspark import daemon

_fork = os.fork


def _fork_into_session() -> int:
    pid = _fork()
    if pid == 0:
        os.setsid()
    return pid


if __name__ == "__main__":
    os.fork = _fork_into_session
    daemon.manager()
