"""The page about state machines of one's own, from top to bottom: three processes, and a fourth one that joins."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.ports import reserved_port

from raft_client import RaftClient

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "raft-own-machine.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Any member may lead.
LEADS = re.compile(r" \*$", re.MULTILINE)


@contextlib.contextmanager
def started(command: list[str], directory: Path) -> Iterator[str]:
    """A process, and the first line that it prints. At the end it has to end when it is asked to."""
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.ci
def test_a_cluster_with_a_machine_of_ones_own_grows(tmp_path: Path) -> None:
    """Each command and each block of the page does what it shows; the newcomer, asked by itself, has the sum, and is
    needed and there when the first two members have ended."""
    text = PAGE.read_text()
    ports = {shown: str(reserved_port()) for shown in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", text)))}
    text = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)
    programs = {"python": [sys.executable], "zmqraft": [sys.executable, "-m", "raft_client.cli"]}
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == [
        "python", "console", "python", "output", "console", "console", "python", "output",
    ]  # fmt: skip
    (tmp_path / "counter.py").write_text(blocks[0][1])
    printed = ""
    shared = ""
    with ExitStack() as running:
        for kind, source in blocks[1:]:
            if kind == "output":
                assert printed == source
            elif kind == "python":
                shared += source
                done = subprocess.run([sys.executable, "-c", shared], capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, done.stderr
                printed, shared = done.stdout, "".join(f"{line}\n" for line in source.splitlines() if "import" in line)
            else:
                for command, shown in re.findall(r"^\$ (.*)\n((?:[^$].*\n)+)", source, re.MULTILINE):
                    program, *arguments = shlex.split(command.removesuffix(" &"))
                    words = [*programs[program], *arguments]
                    if command.endswith(" &"):
                        assert running.enter_context(started(words, tmp_path)) == shown
                    else:
                        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
                        assert (done.returncode, LEADS.sub("", done.stdout)) == (0, LEADS.sub("", shown)), done.stderr
        with RaftClient(f"tcp://127.0.0.1:{ports['8347']}") as log:
            assert [peer.id for peer in log.config(settled=True, timeout=30).peers] == ["1", "2", "3", "4"]
