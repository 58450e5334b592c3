"""What the sink does for the processes that Spark keeps from task to task."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_TASKS = """
import gc
from statestore_client.spark.worker import begin_task
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
    """The collections that Spark makes after each task then skip the modules; a process of one task is left alone."""
    env = {name: text for name, text in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    if reuse is not None:
        env["SPARK_REUSE_WORKER"] = reuse
    done = subprocess.run([sys.executable, "-c", _TASKS], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == [str(f) for f in frozen]
