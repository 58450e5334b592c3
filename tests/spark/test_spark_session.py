"""A local session ends with its context, or with the program."""

from __future__ import annotations

import subprocess
import sys

import pytest

_NEVER_LEFT = """
from statestore_client.spark import local_session
entered = local_session(cores=1)
spark = entered.__enter__()
print(spark.version.count("."))
"""


@pytest.mark.turns(3)
@pytest.mark.usefixtures("spark")  # skips without Spark
def test_a_session_that_nobody_leaves_ends_with_the_program() -> None:
    """A program whose local session was never closed ends without hanging or an error, as in a notebook or a script."""
    run = subprocess.run([sys.executable, "-c", _NEVER_LEFT], capture_output=True, text=True, timeout=200, check=False)
    assert (run.returncode, run.stdout) == (0, "2\n"), run.stderr
    assert "Error" not in run.stderr
    assert "Exception" not in run.stderr
