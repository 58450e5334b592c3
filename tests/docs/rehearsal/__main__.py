"""``python -m rehearsal``, in the folder ``tests/docs``, with ``examples`` on the path."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import attrs
import click
from failover.machines import Machines, enter_own_network
from rich.console import Console
from rich.table import Table

from rehearsal.incidents import INCIDENTS, Incident, SkipIncident
from rehearsal.page import RUNBOOK, Page, PageError
from rehearsal.scene import NAMES, IncidentError, Scene


@attrs.frozen
class _Outcome:
    incident: str
    seen_by: str
    mended_by: str
    seconds: float
    is_failed: bool = False


@click.command("rehearse")
@click.argument("only", nargs=-1, metavar="[INCIDENT]...")
def main(only: tuple[str, ...]) -> None:
    """Play the INCIDENTs, all ten without one, and mend each with the commands of the runbook: exit code 1 if one is
    not seen as the page says, or not mended. Where this system makes no network namespaces nothing is played.
    """
    chosen = [each for each in INCIDENTS if not only or each.__name__ in only]
    if len(chosen) < len(set(only)):
        raise click.UsageError(f"the incidents are {', '.join(each.__name__ for each in INCIDENTS)}")
    console = Console(width=160)
    if not enter_own_network(sys.executable, "-m", "rehearsal", *only):
        console.print("skipped: this system lets you make no network namespaces, which the machines are")
        return
    with Machines(*NAMES) as machines:
        outcomes = [_play(each, machines, console) for each in chosen]
    console.print(_table(outcomes))
    sys.exit(any(each.is_failed for each in outcomes))


def _play(incident: Incident, machines: Machines, console: Console) -> _Outcome:
    name, began = incident.__name__.replace("_", " "), time.monotonic()
    console.rule(f"{name}: {(incident.__doc__ or '').strip()}")
    scene = None
    try:
        with (
            tempfile.TemporaryDirectory(prefix="statestore-") as folder,
            Scene(Path(folder), machines, lambda words: Page(RUNBOOK, words), console) as scene,
        ):
            began = time.monotonic()
            incident(scene)
            return _Outcome(name, ", ".join(scene.seen), "; ".join(scene.mended), time.monotonic() - began)
    except SkipIncident as error:
        return _Outcome(name, f"skipped: {error}", "", time.monotonic() - began)
    except (IncidentError, PageError, AssertionError) as error:
        console.print(f"{name} FAILED: {error}", style="bold red", markup=False)
        seen = ", ".join(scene.seen) if scene is not None else ""
        return _Outcome(name, seen, f"FAILED: {str(error).splitlines()[0]}", time.monotonic() - began, is_failed=True)


def _table(outcomes: list[_Outcome]) -> Table:
    table = Table("Incident", "Seen by", "Mended by", "Seconds", title="Rehearsal of the runbook", title_justify="left")
    table.columns[3].justify = "right"
    for each in outcomes:
        style = "bold red" if each.is_failed else ""
        table.add_row(each.incident, each.seen_by, each.mended_by, f"{each.seconds:.0f}", style=style)
    return table


if __name__ == "__main__":
    main()
