"""What ``statestore`` and ``zmqraft`` have in common."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raft_client.cli import exits as raft_exits
from raft_client.cli import streams as raft_streams
from statestore_client.cli import exits, streams
from statestore_client.server import EmbeddedServer


def test_both_tools_have_the_same_exit_codes() -> None:
    """Each exit code has one name and one number in both tools."""
    ours = {name: getattr(exits, name) for name in exits.__all__}
    theirs = {name: getattr(raft_exits, name) for name in raft_exits.__all__}
    assert ours | theirs == theirs | ours
    assert len({*(ours | theirs).values()}) == len(ours | theirs)


@pytest.mark.parametrize(("tool", "variable"), [("statestore_client", "_STATESTORE"), ("raft_client", "_ZMQRAFT")])
def test_shells_complete_commands_and_options(tool: str, variable: str) -> None:
    """Both tools print a completion script for bash that completes commands and options."""
    name, command = variable[1:].lower(), [sys.executable, "-m", f"{tool}.cli"]
    for words, expected in ((f"{name} wa", "plain,watch"), (f"{name} get --ti", "plain,--timeout")):
        asked = {f"{variable}_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(command, capture_output=True, env=os.environ | asked, timeout=60)
        assert done.stdout.decode().split() == [expected]
    asked = {f"{variable}_COMPLETE": "bash_source"}
    done = subprocess.run(
        [sys.executable, "-m", f"{tool}.cli"], capture_output=True, env=os.environ | asked, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"complete -o nosort" in done.stdout


@pytest.mark.parametrize("colourless", [False, True])
def test_no_color_is_obeyed(statestore_server: EmbeddedServer, colourless: bool) -> None:
    """Output on a terminal has colours, unless NO_COLOR is set (no-color.org)."""
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    if colourless:
        environment["NO_COLOR"] = "1"
    terminal, inside = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "statestore_client.cli",
        "bench",
        "--url",
        statestore_server.url,
        "--operations",
        "100",
        "--rounds",
        "1",
        "--json",
    ]
    try:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=inside, env=environment) as process:
            os.close(inside)
            shown = b""
            with contextlib.suppress(OSError):  # the end of a terminal
                while some := os.read(terminal, 65536):
                    shown += some
            assert process.wait(60) == 0
    finally:
        os.close(terminal)
    assert b"\x1b[" in shown
    assert (re.search(rb"\x1b\[[0-9;]*3[0-8]", shown) is None) == colourless


def test_both_tools_treat_standard_streams_alike() -> None:
    """The module for standard streams is the same text in both packages, because neither may import the other."""
    ours, theirs = (Path(module.__file__).read_text("utf-8") for module in (streams, raft_streams))
    assert ours.replace("statestore_client", "raft_client") == theirs
