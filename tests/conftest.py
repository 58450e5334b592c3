"""Fixtures of several folders: both shells, servers, and real software that may be missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from shells import SHELLS, Shell

from statestore_client.server import EmbeddedServer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With STATESTORE_REQUIRE_TOOLS set, as in CI, a skip is a failure: no program or package may be missing there."""
    report = yield
    if report.skipped and os.environ.get("STATESTORE_REQUIRE_TOOLS") and item.get_closest_marker("machine") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for the calls of blocking clients; more than any test has calls at once."""
    with ThreadPoolExecutor(max_workers=256, thread_name_prefix="test") as pool:
        yield pool


@pytest.fixture(params=SHELLS, ids=["-".join(names) for names in SHELLS])
def shell(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """The test runs once for each shell."""
    return Shell(*request.param, executor)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A new, empty server in a thread of its own."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """The path of a program. Without it the test is skipped; with STATESTORE_REQUIRE_TOOLS set, it fails."""

    def require(name: str) -> str:
        path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin")
        if path is None:
            missing = f"{name} is not installed"
            if os.environ.get("STATESTORE_REQUIRE_TOOLS"):
                pytest.fail(missing)
            pytest.skip(missing)
        return path

    return require
