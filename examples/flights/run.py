"""The demo from start to end."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from demo_program import Interrupted, interruptible, without_logs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raft_client import EntryKind, LogEntry, RaftClient, RaftError
from statestore_client import StateStoreClient, StateStoreError

from .driver import KEY_PREFIX, TERM_S
from .drivers import Driver
from .failure import DIFFERENT, LOST, DemoError
from .feed import Feed
from .flights import Event, FlightState, encode, expected_states, read_events
from .measuring import Observer, read_counts
from .picture import Mark, draw
from .prerequisites import check_prerequisites
from .processes import Server, serving
from .summary import Result, differences, summary_table
from .zombies import freeze_in_a_batch, wake

__all__ = ["run_demo"]

EVENTS: Final = 20_000
RATE: Final = 800
#: When so much of the events is in the log, the leading driver is killed, and the next one frozen.
_KILL_AT: Final = 0.25
_FREEZE_AT: Final = 0.6
_LOOK_S: Final = 0.05
_TIMEOUT_S: Final = 180.0

T = TypeVar("T")


def run_demo(
    *,
    events: int | None = None,
    rate: int | None = None,
    picture: Path = Path("flights"),
    console: Console | None = None,
) -> int:
    """Run the demo; returns an exit code.

    0 when all went as it must, 1 when something was lost, doubled or is wrong, 2 when something is not installed, 4
    when a server, a driver or a connection was lost, 128 + number after a signal. ``events`` are appended, ``rate`` a
    second. ``picture`` gets the suffixes .png and .svg. Leaves no process behind, also after Ctrl-C and SIGTERM.
    """
    console = console or Console()
    try:
        with interruptible(), without_logs(), tempfile.TemporaryDirectory(prefix="statestore-demo-") as folder:
            return _Demo(console, events or EVENTS, rate or RATE, picture).run(Path(folder))
    except Interrupted as error:
        return error.exit_code
    except (StateStoreError, RaftError, OSError) as error:
        return _failed(DemoError(f"{type(error).__name__}: {error}", LOST))
    except DemoError as error:
        return _failed(error)


def _failed(error: DemoError) -> int:
    Console(stderr=True).print(f"demo: {error}", style="bold red", markup=False, soft_wrap=True)
    return error.exit_code


class _Demo:
    def __init__(self, console: Console, events: int, rate: int, picture: Path) -> None:
        self._console = console
        self._count = events
        self._rate = rate
        self._picture = picture
        self._began = time.monotonic()
        self._marks: list[Mark] = []
        self._take_overs: dict[str, float] = {}
        self._watched: list[Server] = []
        self._drivers: list[Driver] = []

    def run(self, folder: Path) -> int:
        events = read_events(check_prerequisites(), self._count)
        with contextlib.ExitStack() as stack:
            store_server, peers = stack.enter_context(serving(folder))
            self._watched = [store_server, *peers]
            self._say(f"the state store is served by process {store_server.pid}, the log by three peers")
            url, metrics_url = store_server.urls
            seeds = ",".join(peer.urls[0] for peer in peers)
            store = stack.enter_context(StateStoreClient(url, client_id="demo"))
            feed = stack.enter_context(Feed(seeds, events, self._rate))
            self._observer = Observer(store, metrics_url, feed)
            self._feed = feed
            self._start = partial(self._start_driver, stack, url, seeds, folder)
            self._metrics_url = metrics_url
            self._stream(stack)
            result = self._compare(store, seeds, events)
        self._console.print(summary_table(result))
        for path in draw(self._observer.samples, self._marks, self._picture):
            self._say(f"the picture is {path}")
        for tail_number in result.wrong[:5]:
            self._say(f"{tail_number} has a wrong state")
        return 0 if result.is_good else DIFFERENT

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _stream(self, stack: contextlib.ExitStack) -> None:
        a, b = self._start("a"), self._start("b")
        self._say("two drivers start, each with a Spark session of its own")
        stack.enter_context(self._observer)
        progress = stack.enter_context(self._progress())
        self._bars = (
            progress,
            progress.add_task("in the log", total=self._count, rate=""),
            progress.add_task("in the state store", total=None, rate=""),
        )
        self._until(lambda: a.has_told("standing by") and b.has_told("standing by"), "both drivers are ready")
        self._feed.limit = int(self._count * _FREEZE_AT)
        self._feed.start()
        killed = self._until(
            lambda: self._leader() if self._feed.appended > self._count * _KILL_AT else None, "the kill"
        )
        standby = b if killed is a else a
        self._strike("kill -9", killed, standby, killed.kill)
        self._drivers.remove(killed)
        c = self._start("c")
        self._until(lambda: c.has_told("standing by") and self._feed.appended >= self._feed.limit, "the freeze")
        self._feed.limit = self._count
        self._freeze(standby, c)
        self._until(lambda: self._feed.is_done, "the log has all events")
        self._until(lambda: self._observer.marker()[0] >= self._feed.last_index, "the state store has all events")

    def _freeze(self, frozen: Driver, standby: Driver) -> None:
        """Longer than its term, in the middle of a batch; then it goes on, as if nothing had happened."""
        before = read_counts(self._metrics_url).refused
        while read_counts(self._metrics_url).refused == before:
            freeze_in_a_batch(frozen, self._metrics_url, self._check)
            self._strike("SIGSTOP", frozen, standby, lambda: None)
            self._mark(f"{frozen.name} wakes up")
            wake(frozen, self._check)
            frozen, standby = standby, frozen  # if it had nothing left to write, the other one is next

    def _strike(self, what: str, driver: Driver, standby: Driver, strike: Callable[[], None]) -> None:
        """Do it, and wait until the standby has written a batch."""
        self._mark(f"{what} {driver.name}")
        began, said = time.monotonic(), len(standby.told)
        strike()
        self._until(lambda: standby.has_told("leading", said), f"driver {standby.name} leads", but=driver)
        leads = next(told.at for told in standby.told[said:] if told.kind == "leading")
        self._until(lambda: standby.has_told("written", said), f"driver {standby.name} writes", but=driver)
        writes = next(told.at for told in standby.told[said:] if told.kind == "written")
        self._take_overs[f"{what} of driver {driver.name}: {standby.name} leads (lease {TERM_S:.0f} s)"] = leads - began
        self._take_overs[f"{what} of driver {driver.name}: {standby.name} has written"] = writes - began
        self._say(f"{what} of driver {driver.name}: driver {standby.name} leads after {leads - began:.1f} s")

    def _compare(self, store: StateStoreClient, seeds: str, events: list[Event]) -> Result:
        self._say("the same is computed without Spark and without the SDK")
        expected = expected_states(events)
        keys = list(store.scan(f"{KEY_PREFIX}*"))
        items = zip(keys, store.get_many(keys), strict=True)
        actual: dict[str, FlightState] = {
            key.decode().removeprefix(KEY_PREFIX): json.loads(item.value) for key, item in items if item is not None
        }
        with RaftClient(seeds) as log:
            entries = Counter(
                bytes(entry.data)
                for entry in log.entries()
                if isinstance(entry, LogEntry) and entry.kind is EntryKind.STATE
            )
        appended = Counter(map(encode, events))
        counts = read_counts(self._metrics_url)
        return Result(
            events=len(events),
            rows=sum(event["tailnum"] is not None for event in events),
            stored=self._observer.marker()[1],
            in_log=sum(entries.values()),
            missing_in_log=sum((appended - entries).values()),
            aircraft=len(actual),
            wrong=differences(expected, actual),
            refused=counts.refused,
            take_overs=self._take_overs,
            writes=counts.sets,
            seconds=time.monotonic() - self._began,
        )

    # -- around them ---------------------------------------------------------------------------------------------------

    def _start_driver(self, stack: contextlib.ExitStack, url: str, seeds: str, folder: Path, name: str) -> Driver:
        driver = Driver(name, ["-m", "flights.driver", url, seeds, name], folder)
        stack.callback(driver.close)
        self._drivers.append(driver)
        return driver

    def _leader(self) -> Driver | None:
        name = self._observer.last.leader
        return next((driver for driver in self._drivers if driver.name == name and driver.has_told("written")), None)

    def _until(self, condition: Callable[[], T | None], what: str, but: Driver | None = None) -> T:
        """What the condition gives as soon as it gives something. Raises :class:`DemoError`."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not (found := condition()):
            self._check(but)
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: not within {_TIMEOUT_S:.0f} s", LOST)
            time.sleep(_LOOK_S)
        return found

    def _check(self, but: Driver | None = None) -> None:
        """Whether all that is to run does, and the bars. Raises :class:`DemoError`."""
        for server in self._watched:
            server.check()
        for driver in self._drivers:
            if driver is not but:
                driver.check()
        self._feed.check()
        progress, log, stored = self._bars
        sample = self._observer.last
        progress.update(log, completed=self._feed.appended)
        leader = "nobody" if sample.leader is None else f"driver {sample.leader}"
        text = f"{leader} leads, {sample.counts.sets:,} SETs, {sample.counts.refused} refused"
        progress.update(stored, completed=sample.stored, total=self._count, rate=text)

    def _mark(self, text: str) -> None:
        self._marks.append(Mark(time.monotonic() - self._observer.began, text))

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _say(self, text: str) -> None:
        self._console.print(
            f"{time.monotonic() - self._began:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True
        )
