"""Spark's Python processes on their way from task to task.

Spark keeps them, also those that plan and commit writes, and has them call ``gc.collect()`` after each task
(``pyspark/daemon.py``). There is hardly any garbage: the collector looks through the objects of the imported modules.
With PySpark, PyArrow and pandas that takes 40 ms of a core, four times for each micro-batch: longer than a thousand
rows take to be written.
"""

from __future__ import annotations

import gc
import os
from typing import Final

__all__ = ["begin_task", "is_reused"]

#: The attempts of tasks that this process has begun, until it has begun two.
_begun: Final[set[int]] = set()


def is_reused() -> bool:
    """Whether this is a process of Spark that will get another task (``spark.python.worker.reuse``)."""
    return bool(os.environ.get("SPARK_REUSE_WORKER"))


def begin_task() -> None:
    """Keep what was imported out of all later collections. Call it first in each task, planning and commit; in a task,
    more than once does no harm.

    Once for each process, when its second task begins: all that a task needs is imported by then (pandas comes with the
    last line of the first one), and Spark has just collected the garbage. Reference counts free objects as before; only
    what is there at this moment and part of a cycle, the pooled client for one, stays until the process ends.
    """
    if len(_begun) == 2 or not is_reused():
        return
    from pyspark import TaskContext

    context = TaskContext.get()  # None where Spark plans and commits
    _begun.add(-1 - len(_begun) if context is None else context.taskAttemptId())
    if len(_begun) == 2:
        gc.freeze()
