"""What tests of the commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from site_processes import Links, SiteProcess

from raft_client.server.loop_thread import LoopThread


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
