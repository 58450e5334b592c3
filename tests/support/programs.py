"""Programs that tests run in a process of their own, because they may hang, are killed, or need another interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

#: Far more than any of them takes, also on a busy machine.
_TIMEOUT_S = 90


def run_program(
    head: str, program: str, *options: str, within: Callable[..., list[str]] = lambda *command: [*command]
) -> str:
    """Run ``head`` and ``program``, which is indented, with these options of Python; returns what it said.

    A program that hangs, or fails, fails the test with that. ``within`` makes the command one that runs elsewhere.
    """
    command = within(sys.executable, "-X", "faulthandler", *options, "-c", head + textwrap.dedent(program))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            pytest.fail(f"hangs: {output}")
    assert process.returncode == 0, output
    return output
