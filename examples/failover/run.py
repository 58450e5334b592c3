"""The demo from start to end."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
from demo_program import Interrupted, interruptible, without_logs
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .clients import Clients
from .cluster import Cluster, ClusterError
from .machines import Machines, NoMachinesError

__all__ = ["run_demo"]

LOST: Final = 1
NO_SERVER: Final = 4
_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.05


@attrs.frozen
class _Event:
    """What happened to the active server, and how long clients waited."""

    name: str
    before: str
    after: str
    gap_s: float


def run_demo(seconds: float = 2.0, *, has_own_network: bool = False, console: Console | None = None) -> int:
    """Run the demo; returns an exit code. ``seconds`` is how long there is load before and after each event.

    In a network of its own (:func:`enter_own_network`) each server has a machine, and the cable of one is pulled out.
    0 when all went as it must, 1 when something that was acknowledged is lost, 4 when no server answers, 128 + number
    after a signal. Leaves no process behind, also after Ctrl-C and SIGTERM.
    """
    console = console or Console()
    try:
        with (
            interruptible(),
            without_logs(),
            tempfile.TemporaryDirectory(prefix="statestore-ha-") as folder,
            Machines(*Cluster.names) if has_own_network else contextlib.nullcontext() as machines,
        ):
            return _Demo(console, seconds, machines).run(Path(folder))
    except Interrupted as error:
        return error.exit_code
    except (ClusterError, NoMachinesError) as error:
        Console(stderr=True).print(f"demo: {error}", style="bold red", markup=False, soft_wrap=True)
        return NO_SERVER


class _Demo:
    def __init__(self, console: Console, seconds: float, machines: Machines | None) -> None:
        self._console = console
        self._seconds = seconds
        self._machines = machines
        self._events: list[_Event] = []

    def run(self, folder: Path) -> int:
        began = time.monotonic()
        with Cluster(folder, self._machines) as cluster:
            for name in cluster.names:
                self._say(f"statestore {' '.join(cluster.command(name))}")
            cluster.start(*cluster.names)
            where = "on this machine" if self._machines is None else "on a machine of its own"
            self._say(f"three servers, each {where} and with a peer of the log; {cluster.active()} is active")
            with Clients(cluster.url) as clients:
                self._under_load(cluster, clients)
                clients.stop()
                self._say("everything that was acknowledged is read back")
                lost, has_seen_all = clients.lost(), clients.watcher_has_seen_all()
            self._console.print(self._table(clients, lost, cluster.active(), time.monotonic() - began))
        for error in clients.errors:
            self._say(f"a client gave up: {error}")
        return LOST if lost or clients.errors or not has_seen_all else 0

    def _under_load(self, cluster: Cluster, clients: Clients) -> None:
        with self._progress() as progress:
            task = progress.add_task("load", total=None, acknowledged=0, rate=0.0)
            self._load(progress, task, clients, "all servers run")
            killed = cluster.active()
            self._strike(cluster, clients, "kill -9", lambda: cluster.kill(killed))
            self._load(progress, task, clients, f"{killed} was killed")
            self._say(f"{killed} starts again")
            cluster.start(killed)
            active = cluster.active()
            self._say(f"statestore {' '.join(cluster.hand_over_command(active))}")
            self._strike(cluster, clients, "planned hand-over", lambda: cluster.hand_over(active))
            self._load(progress, task, clients, f"{active} has handed over")
            if self._machines is None:
                self._say("no cable is pulled out: this system lets you make no network namespaces")
                return
            lost, machines = cluster.active(), self._machines
            self._strike(cluster, clients, "cable out", lambda: machines.cut(lost))
            self._load(progress, task, clients, f"{lost} has no network")
            machines.mend(lost)
            self._load(progress, task, clients, f"{lost} is back")

    def _strike(self, cluster: Cluster, clients: Clients, name: str, strike: Callable[[], None]) -> None:
        before = cluster.active()
        since = time.monotonic()
        strike()
        after = before
        deadline = time.monotonic() + _TIMEOUT_S
        while after == before or not clients.have_gone_on(time.monotonic() - _LOOK_S):
            if time.monotonic() > deadline:
                raise ClusterError(f"nobody went on after {name} of {before}")
            time.sleep(_LOOK_S)
            after = cluster.active(but=before)
        event = _Event(name, before, after, clients.gap(since))
        self._events.append(event)
        self._say(f"{name} of {before}: {after} is active, no answer for {event.gap_s * 1000:.0f} ms")

    def _load(self, progress: Progress, task: TaskID, clients: Clients, text: str) -> None:
        """For a while, until all writers are answered."""
        began, count = time.monotonic(), clients.acknowledged
        while (passed := time.monotonic() - began) < self._seconds or not clients.have_gone_on(began):
            if passed > _TIMEOUT_S + self._seconds:
                raise ClusterError("no server answers")
            rate = (clients.acknowledged - count) / passed if passed else 0.0
            progress.update(task, description=text, acknowledged=clients.acknowledged, rate=rate)
            time.sleep(_LOOK_S)

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _progress(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[acknowledged]:,} SETs acknowledged, {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _table(self, clients: Clients, lost: int, active: str, seconds: float) -> Table:
        table = Table("", "", title="Three servers, one replicated log", title_justify="left")
        table.columns[1].justify = "right"
        for event in self._events:
            row = f"{event.name}, {event.before} → {event.after}: longest wait for an answer"
            table.add_row(row, f"{event.gap_s * 1000:,.0f} ms")
        kept = "kept" if clients.holder.error is None else "lost"
        for name, count in (
            ("acknowledged SETs", f"{clients.acknowledged:,}"),
            ("of those, lost", f"{lost:,}"),
            ("the lock, with one fencing token", kept),
            ("writes under it", f"{clients.holder.writes:,}"),
            ("changes seen by the watcher", f"{clients.watcher.changes:,}"),
            ("active in the end", active),
            ("seconds", f"{seconds:.0f}"),
        ):
            table.add_row(name, count)
        return table

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
