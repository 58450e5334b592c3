"""What the sink does for the processes that Spark keeps from task to task."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_TASKS = """
import gc
from statestore_client.spark.writing import begin_task
before = gc.get_freeze_count()
for _ in range(3):
    begin_task()
    print(gc.get_freeze_count() > before)
"""


@pytest.mark.parametrize(
    ("reuse", "frozen"),
    [("1", [False, True, True]), (None, [False, False, False])],
)
def test_second_task_of_a_reused_worker_freezes_what_is_imported(reuse: str | None, frozen: list[bool]) -> None:
    """The second task of a reused worker freezes imported modules, so that Spark's collections skip them; a first one
    does not."""
    env = {name: text for name, text in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    if reuse is not None:
        env["SPARK_REUSE_WORKER"] = reuse
    done = subprocess.run([sys.executable, "-c", _TASKS], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [str(f) for f in frozen]


_WRITES = """
import gc
from statestore_client import ConnectionSettings
from statestore_client.spark.options import WriteOptions
from statestore_client.spark.writing import write_partition
before = gc.get_freeze_count()
for choice in ({choices}):
    write_partition((), ConnectionSettings(host="nowhere"), WriteOptions(gc_freeze=choice))
    print(gc.get_freeze_count() > before)
"""


@pytest.mark.parametrize(
    ("choices", "frozen"),
    [
        ("True, True", [False, True]),
        ("False, False, False", [False, False, False]),
        ("False, True, False, True", [False, False, False, True]),
    ],
)
def test_a_write_may_leave_the_garbage_collector_alone(choices: str, frozen: list[bool]) -> None:
    """With gcFreeze=false tasks are not even counted."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    env = os.environ | {"SPARK_REUSE_WORKER": "1"}
    code = _WRITES.format(choices=choices)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [str(f) for f in frozen]
