"""The command line run in this process: its output bytes and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner
from support.scripted_peers import ScriptedCluster

from raft_client.cli.app import main


@click.command()
def program() -> None:
    """All of it, with what main() does about errors."""
    main()


class Done:
    """What a run left behind."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.out = out
        self.err = err.decode()

    def __repr__(self) -> str:
        return f"exit code {self.code}\n{self.out!r}\n{self.err}"


Run = Callable[..., Done]


@pytest.fixture
def bare_run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``zmqraft`` with an environment that names no peer."""
    for name in ("ZMQRAFT_SEEDS", "ZMQRAFT_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["zmqraft", *arguments])
        result = CliRunner().invoke(program, [], input=stdin)
        return Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)

    return run


@pytest.fixture
def run(bare_run: Run, peers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``zmqraft`` against the scripted peers, found through the environment."""
    monkeypatch.setenv("ZMQRAFT_SEEDS", peers.seeds)
    return bare_run
