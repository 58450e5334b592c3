"""What came out, as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from rich.table import Table

from .flights import Expected, FlightState

__all__ = ["Tally", "differences", "summary_table"]


@attrs.define
class Tally:
    """Counted along the way."""

    events: int = 0
    writes: int = 0
    write_seconds: float = 0.0
    stale_rejected: int = 0
    stale_accepted: int = 0
    watched_changes: int = 0
    seconds: float = 0.0

    @property
    def writes_per_s(self) -> float:
        """Over the time of the micro-batches: Spark's reduction of the events is in it."""
        return self.writes / self.write_seconds if self.write_seconds else 0.0


def differences(expected: Expected, actual: Mapping[str, FlightState | None], stored: Iterable[str]) -> list[str]:
    """The tail numbers whose state is wrong, missing, or should not be there.

    ``actual`` is what the look-up found for the aircraft of the input; ``stored`` are all aircraft in the state store.
    """
    everything = expected.states.keys() | actual.keys() | set(stored)
    return sorted(t for t in everything if t not in expected.states or actual.get(t) != expected.states[t])


def summary_table(tally: Tally, expected: Expected, wrong: list[str]) -> Table:
    """The table at the end of the demo."""
    table = Table("", "count", title="Flights of 2013 → the latest state of each aircraft", title_justify="left")
    table.columns[1].justify = "right"
    for name, count in (
        ("events", f"{tally.events:,}"),
        ("events without a tail number", f"{expected.without_tail_number:,}"),
        ("aircraft", f"{len(expected.states):,}"),
        ("writes", f"{tally.writes:,}"),
        ("writes/s", f"{tally.writes_per_s:,.0f}"),
        ("changes seen by the watcher", f"{tally.watched_changes:,}"),
        ("rejected stale writes", f"{tally.stale_rejected:,}"),
        ("stale writes that got through", f"{tally.stale_accepted:,}"),
        ("differences", f"{len(wrong):,}"),
        ("seconds", f"{tally.seconds:.0f}"),
    ):
        table.add_row(name, count)
    return table
