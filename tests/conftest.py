"""Fixtures of several folders: both shells, servers, scripted peers, Spark, and real software that may be missing."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings as hypothesis_settings
from support.schedules import DAY, SCALE, SEED
from support.shells import SHELLS, Shell

import statestore_client
from statestore_client.server import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.scripted_peers import ScriptedCluster

_TESTS = Path(__file__).parent

# An example that takes 300 ms says that the machine is busy, not that the code is wrong.
hypothesis_settings.register_profile("without deadlines", deadline=None)
hypothesis_settings.load_profile("without deadlines")


def pytest_configure() -> None:
    """A program that was started in the background ignores Ctrl-C, and hands that on; tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With STATESTORE_REQUIRE_TOOLS set, as in CI, a skip is a failure: no program or package may be missing there."""
    report = yield
    if report.skipped and os.environ.get("STATESTORE_REQUIRE_TOOLS") and item.get_closest_marker("machine") is None:
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be missing: {report.longrepr}"
    return report


#: Of the test files of a folder that is given, each n-th runs.
_SHARE = int(os.environ.get("STATESTORE_TEST_SHARE", "1"))

#: Rooms whose tests run in CI only: they take long, or need what a machine may not have.
_CI_ROOMS = frozenset({"docs", "examples", "faults", "interop", "raft_spark", "spark"})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick run imports nothing of a room that it runs nothing of: each worker would take seconds for that.

    With a share of 3, a third of the files have their turn each day; one that is named itself, always.
    """
    if collection_path.suffix != ".py" or not collection_path.is_relative_to(_TESTS):
        return None
    if (zlib.crc32(str(collection_path.relative_to(_TESTS)).encode()) - DAY) % _SHARE:
        return True
    if config.option.markexpr != "not ci" or not _is_of_ci(collection_path):
        return None
    return "mark.quick" not in collection_path.read_text("utf-8")


def _is_of_ci(path: Path) -> bool:
    return path.relative_to(_TESTS).parts[0] in _CI_ROOMS


def pytest_report_header() -> str:
    """What repeats this run, with the tests that have their turn in it."""
    return f"STATESTORE_TEST_SCALE={SCALE:g} STATESTORE_TEST_SEED={SEED} STATESTORE_TEST_SHARE={_SHARE}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Says which tests are CI's, which of them have their turn today, and begins with those that take longest."""
    turns: Counter[str] = Counter()
    for item in items:
        if (days := _days(item)) > 1:
            # The cases of a function in their order; each function begins elsewhere. The long run has all of them.
            function = item.nodeid.partition("[")[0]
            turn = turns[function] + zlib.crc32(function.encode())
            if SCALE > 1 or (turn - DAY) % days:
                item.add_marker(pytest.mark.long)
            turns[function] += 1
        is_long = item.get_closest_marker("long") is not None
        if is_long or (_is_of_ci(item.path) and item.get_closest_marker("quick") is None):
            item.add_marker(pytest.mark.ci)
    items.sort(key=_turn)


def _days(item: pytest.Function) -> int:
    """In how many days the test has its turn once: three for jobs of Spark, if no mark says otherwise."""
    if (turns := item.get_closest_marker("turns")) is not None:
        return int(turns.args[0])
    return 3 if "spark" in item.fixturenames and item.get_closest_marker("quick") is None else 1


def _turn(item: pytest.Function) -> int:
    """Spark first, of which one worker runs all; then what takes long, as do simulations, which use their budget."""
    if "spark" in item.fixturenames:
        return 0
    return 1 if any(item.get_closest_marker(name) for name in ("slow", "scaled")) else 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With ``--dist loadfile`` the tests of a file share its fixtures and stay with one worker, and all of Spark with
    its one session. Not ``loadgroup``: with pytest 9.2 it groups nothing (pytest-xdist, issue 1386).
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "spark" if file.startswith(("tests/spark/", "tests/raft_spark/")) else file

    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have to say in figures, a table of simulated schedules, and in the last line what was skipped."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = [
        (report.nodeid.partition("@")[0], name, value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if report.when == "call"
    ]
    if figures := [f"{nodeid}: {text}" for nodeid, name, text in found if name == "figures"]:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
    ran = [r for r in reports if isinstance(r, pytest.TestReport) and r.when == "call" and "turns" in r.keywords]
    if names := [report.nodeid.partition("@")[0].partition("[") for report in ran]:
        terminalreporter.section(f"had their turn on day {DAY}")
        for function in sorted({function for function, _, _ in names}):
            cases = sorted(case.removesuffix("]") for name, _, case in names if name == function)
            if not any("-paho" in case for case in cases):
                terminalreporter.write_line(f"{function}: {', '.join(cases)}".removesuffix(": "))
        over_paho = [case for _, _, case in names if "-paho" in case]
        terminalreporter.write_line(f"and {len(over_paho)} cases over paho")
    if rows := [json.loads(row) for _, name, row in found if name == "schedules"]:
        terminalreporter.section("simulated schedules")
        form = "{:<26} {:>9} {:>26} {:>7} {:>5}  {}".format
        terminalreporter.write_line(form("kind", "schedules", "seeds", "seconds", "found", "what happened in them"))
        for *row, totals in sorted(rows):
            terminalreporter.write_line(form(*row, ", ".join(f"{name} {count}" for name, count in totals.items())))
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    if reasons:
        counts = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{reasons.total()} skipped ({counts})")


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say something at the end of the whole run, whether the test passes or fails."""

    def say(text: str) -> None:
        record_property("figures", text)

    return say


@pytest.fixture(scope="session")
def executor() -> Iterator[ThreadPoolExecutor]:
    """Threads for the calls of blocking clients; more than any test has calls at once."""
    with ThreadPoolExecutor(max_workers=256, thread_name_prefix="test") as pool:
        yield pool


#: Blocking and asyncio over each driver. What differs between drivers has tests of its own, over all four in each run.
_OVER_PAHO = (pytest.mark.ci, pytest.mark.turns(2))
_SHELLS = [
    pytest.param(names, id="-".join(names), marks=() if names[1] == "native" else _OVER_PAHO) for names in SHELLS
]


@pytest.fixture(params=_SHELLS)
def shell(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """The test runs once for each shell, and in CI over the driver of paho as well: one of the two shells a day."""
    return Shell(*request.param, executor)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A new, empty server in a thread of its own."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def peers() -> Iterator[ScriptedCluster]:
    """Three scripted ØMQ Raft peers, of which "1" leads."""
    from support.scripted_peers import ScriptedCluster

    with ScriptedCluster() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of all folders: a process holds one Spark context, and Java takes seconds to start.

    Two cores; a task may fail twice before its job fails, so that retries would show. With STATESTORE_SPARK_CONNECT set
    it is a session of Spark Connect, for which the tests marked ``classic`` are nothing.
    """
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from support.spark import require_java

    from statestore_client.spark import local_session

    require_java()
    _let_workers_import_the_packages()
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    if os.environ.get("STATESTORE_SPARK_CONNECT"):
        from support.spark import connect_session

        opened = connect_session("tests", cores="2,3", config=config)
    else:
        opened = local_session("tests", cores="2,3", config=config, log_level="OFF")
    with opened as session:
        yield session


def _let_workers_import_the_packages() -> None:
    """Workers do not inherit pytest's sys.path; installed packages need none of this."""
    home = str(Path(statestore_client.__file__).parent.parent)
    if "site-packages" not in home:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))


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


@pytest.fixture
def remains_of_loops() -> Iterator[None]:
    """What a closed event loop leaves behind is collected while the test's filters for warnings are in force."""
    yield
    gc.collect()
