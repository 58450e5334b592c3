"""What tests of the commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from site_processes import Links, SiteProcess

from raft_client.server.embedded_peer import LoopThread
from statestore_client.cli.app import main


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., SiteProcess]]:
    """Makes sites; whatever runs in the end is killed."""
    made: list[SiteProcess] = []

    def make(name: str, *more: str) -> SiteProcess:
        made.append(SiteProcess(name, *more, log=tmp_path / f"{len(made)}.log"))
        return made[-1]

    yield make
    for each in made:
        each.__exit__()


@pytest.fixture
def links() -> Iterator[Links]:
    with LoopThread("links", "the links") as thread:
        links = Links(thread)
        yield links
        links.close()


@pytest.fixture
def here(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs ``statestore`` in this process, where the environment names no broker: exit code, output and complaint."""
    for name in os.environ:
        if name.startswith("AIO_") or name == "STATESTORE_URL":
            monkeypatch.delenv(name)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsysbinary.readouterr()
        monkeypatch.setattr(sys, "argv", ["statestore", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, complaint = capsysbinary.readouterr()
        return int(end.value.code or 0), out.decode(), complaint.decode()

    return run
