"""The demo from start to end."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo_program import Interrupted, interruptible, without_logs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statestore_client import ConnectionSettings, HlcTimestamp, Lease, StateStoreClient, StateStoreError
from statestore_client.spark import local_session

from .actors import StaleWriter, Watcher
from .failure import DIFFERENT, LOST, NOT_INSTALLED, DemoError
from .flights import FlightState, expected_states, unpack
from .pipeline import KEY_PREFIX, REPORT_KEY, SPARK_CONFIG, FlightPipeline
from .prerequisites import check_prerequisites
from .server import ServerProcess, serving
from .spark_log import stderr_into
from .summary import Tally, differences, summary_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["run_demo"]

LOCK: Final = "pipelines/flights"
LEASE_S: Final = 10.0
#: The aircraft with the most departures: there is something to see every month.
BUSIEST: Final = "N725MQ"
MONTHS: Final = 12
_REQUEST_TIMEOUT_S: Final = 3.0


def run_demo(*, months: int | None = None, watch_aircraft: str | None = None, console: Console | None = None) -> int:
    """Run the demo; returns an exit code.

    0 when all went as it must, 1 when a state differs or a stale write got through, 2 when something is not installed,
    4 when the server or its connection was lost, 128 + number after a signal. ``months`` takes only the first months;
    ``watch_aircraft`` is a tail number. Leaves no process behind, also after Ctrl-C and SIGTERM.
    """
    console = console or Console()
    try:
        with interruptible(), without_logs():
            return _Demo(console, months or MONTHS, watch_aircraft or BUSIEST).run()
    except Interrupted as error:
        return error.exit_code
    except DemoError as error:
        Console(stderr=True).print(f"demo: {error}", style="bold red", markup=False, soft_wrap=True)
        return error.exit_code


class _Demo:
    def __init__(self, console: Console, months: int, watched: str) -> None:
        self._console = console
        self._months = months
        self._watched = watched
        self._tally = Tally()
        self._doing = ""

    def run(self) -> int:
        started = time.monotonic()
        archive = check_prerequisites()
        with tempfile.TemporaryDirectory(prefix="statestore-demo-") as name, serving() as server:
            self._say(f"the state store is served by process {server.pid} at {server.url}")
            csv_file = unpack(archive, Path(name))
            with self._session(Path(name)) as spark, self._explained(server):
                actual, stored = self._work(spark, csv_file, server)
            self._say("the same is computed without Spark and without the SDK")
            expected = expected_states(csv_file, self._months)
        wrong = differences(expected, actual, stored)
        self._tally.seconds = time.monotonic() - started
        self._console.print(summary_table(self._tally, expected, wrong))
        for tail_number in wrong[:5]:
            self._say(f"{tail_number}: {actual.get(tail_number)} instead of {expected.states.get(tail_number)}")
        good = not wrong and not self._tally.stale_accepted and self._tally.events == expected.events
        return 0 if good and self._tally.stale_rejected else DIFFERENT

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _work(
        self, spark: SparkSession, csv_file: Path, server: ServerProcess
    ) -> tuple[dict[str, FlightState | None], set[str]]:
        """The pipeline; what the look-up reads at the end, and the tail numbers that are stored."""
        settings = ConnectionSettings.from_url(server.url, request_timeout=_REQUEST_TIMEOUT_S)
        with contextlib.ExitStack() as stack:
            self._doing = "the lock was acquired"
            other = stack.enter_context(StateStoreClient(settings, client_id="flights-other"))
            old_token = _token_of_an_earlier_holder(other)
            store = stack.enter_context(StateStoreClient(settings, client_id="flights-driver"))
            lease = stack.enter_context(store.lock(LOCK, lease=LEASE_S))
            self._say(f"the lock {LOCK} is ours; fencing token {lease.fencing_token}; an earlier holder's: {old_token}")
            pipeline = FlightPipeline(spark, csv_file, self._months, settings)
            watcher = stack.enter_context(Watcher(store, self._watched, self._say))
            stale = stack.enter_context(StaleWriter(other, old_token))
            stack.callback(_close_if_gone, server, store, other)
            self._write_months(pipeline, store, lease, stale)
            self._let_stale_writer_use_spark(pipeline, stale, old_token)
            self._say("all aircraft are read back with the look-up")
            actual = pipeline.read_back()
            stored = {key.decode().removeprefix(KEY_PREFIX) for key in store.scan(f"{KEY_PREFIX}*")}
            self._tally.watched_changes = watcher.changes
            return actual, stored

    def _write_months(
        self, pipeline: FlightPipeline, store: StateStoreClient, lease: Lease, stale: StaleWriter
    ) -> None:
        self._say("Spark reads the events")
        events = pipeline.events_by_month()
        with self._progress() as progress:
            bar = progress.add_task("writing", total=len(events), rows=0, rate=0.0)
            for month, rows in events.items():
                self._doing = f"month {month} was written"
                self._write_month(pipeline, store, lease, month)
                self._tally.events += rows
                progress.update(bar, advance=1, rows=self._tally.events, rate=self._tally.writes_per_s)
                stale.start()  # from now on there are keys for it to fail on

    def _write_month(self, pipeline: FlightPipeline, store: StateStoreClient, lease: Lease, month: int) -> None:
        states = pipeline.reduce(month)
        started = time.monotonic()
        # A token per micro-batch: a task left over from an earlier month could not overwrite this one's states.
        pipeline.write(states, lease.next_token())
        self._tally.write_seconds += time.monotonic() - started
        states.unpersist()
        report = store.get(REPORT_KEY)
        if report is not None:
            self._tally.writes += json.loads(report.value)["written"]

    def _let_stale_writer_use_spark(
        self, pipeline: FlightPipeline, stale: StaleWriter, old_token: HlcTimestamp
    ) -> None:
        self._say("the earlier holder tries to write a month with Spark and its old token")
        stale.stop()
        report = pipeline.write_stale(1, old_token)
        self._tally.stale_rejected = stale.rejected + report.rejected
        self._tally.stale_accepted = stale.accepted + report.written

    # -- around them ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _session(self, folder: Path) -> Iterator[SparkSession]:
        self._say("Spark starts")
        log = folder / "spark.log"
        with contextlib.ExitStack() as stack:
            try:
                with stderr_into(log):
                    session = local_session("flights", config=SPARK_CONFIG, log_level="OFF")
                    spark = stack.enter_context(session)
            except Exception as error:
                last_words = " ".join(log.read_text(errors="replace").split()[-60:])
                raise DemoError(f"Spark did not start: {error} {last_words}", NOT_INSTALLED) from error
            with interruptible():
                yield spark

    @contextlib.contextmanager
    def _explained(self, server: ServerProcess) -> Iterator[None]:
        """Turn what a broken connection looks like from here and from inside Spark into one line."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (StateStoreError, PySparkException, Py4JError) as error:
            ended = server.ended(wait_s=1.0)
            what = f"the state store's process {ended}" if ended else _last_line(error)
            raise DemoError(f"{what} while {self._doing}", LOST) from error

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("months, {task.fields[rows]:,} rows, {task.fields[rate]:,.0f} writes/s"),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _close_if_gone(server: ServerProcess, *clients: StateStoreClient) -> None:
    """Without a server nothing can be released or unwatched any more: do not wait for it."""
    if server.ended():
        for client in clients:
            client.close()


def _token_of_an_earlier_holder(other: StateStoreClient) -> HlcTimestamp:
    """A client holds the lock, loses it, and does not notice."""
    with other.lock(LOCK, lease=LEASE_S).acquire(_REQUEST_TIMEOUT_S) as lease:
        return lease.fencing_token


def _last_line(error: Exception) -> str:
    """What a Python error inside Spark was about: Spark puts whole tracebacks around it."""
    lines = [line for line in str(error).splitlines() if "Error: " in line]
    return lines[-1].strip() if lines else (str(error).splitlines() or [type(error).__name__])[0]
