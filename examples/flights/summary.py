"""What came out, as numbers."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from rich.table import Table

from .flights import FlightState

__all__ = ["Result", "differences", "summary_table"]


@attrs.frozen
class Result:
    """Counted at the end."""

    events: int
    #: Those with a tail number: each becomes a row of the query.
    rows: int
    #: Rows that went into the state store, by the marker.
    stored: int
    #: Entries of the log, without the cluster's own, and events that are not among them.
    in_log: int
    missing_in_log: int
    aircraft: int
    #: Aircraft whose state is wrong, missing, or should not be there.
    wrong: list[str]
    refused: int
    take_overs: dict[str, float]
    writes: int
    seconds: float

    @property
    def lost(self) -> int:
        return max(0, self.rows - self.stored) + self.missing_in_log

    @property
    def doubled(self) -> int:
        return max(0, self.stored - self.rows) + self.in_log + self.missing_in_log - self.events

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.wrong) and self.refused > 0


def differences(expected: Mapping[str, FlightState], actual: Mapping[str, FlightState]) -> list[str]:
    """The tail numbers whose state is wrong, missing, or should not be there."""
    return sorted(t for t in expected.keys() | actual.keys() if actual.get(t) != expected.get(t))


def summary_table(result: Result) -> Table:
    """The table at the end of the demo."""
    table = Table("", "", title="Flights of January 2013 → the latest state of each aircraft", title_justify="left")
    table.columns[1].justify = "right"
    for what, seconds in result.take_overs.items():
        table.add_row(what, f"{seconds:.1f} s")
    for name, count in (
        ("events in the log", f"{result.in_log:,}"),
        ("of those, with an aircraft", f"{result.rows:,}"),
        ("aircraft", f"{result.aircraft:,}"),
        ("SETs of the state store", f"{result.writes:,}"),
        ("refused writes of zombies", f"{result.refused:,}"),
        ("lost", f"{result.lost:,}"),
        ("doubled", f"{result.doubled:,}"),
        ("differences", f"{len(result.wrong):,}"),
        ("seconds", f"{result.seconds:.0f}"),
    ):
        table.add_row(name, count)
    return table
