"""Thousands of schedules of failures in meshes of sites, each from its seed: in the end all stores are equal.

``tests/support/schedules.py`` says how many there are, and how one is repeated. Each has a line, ring, star or
random mesh of 3 to 200 sites whose clocks drift, with loss, delay, cut and held connections, reconnects, restarts and
deaths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sites_schedule import run_schedule
from support.schedules import SCALE, SEED, printed_by_two_processes, run_schedules, scaled


@pytest.mark.timeout(3600)
def test_all_schedules_end_with_equal_stores(record_property: Callable[[str, object], None]) -> None:
    """When it is calm all stores that can reach each other are equal; nothing goes in circles or twice to one peer, own
    keys never expire, and an update takes at most two messages on each connection.
    """
    run_schedules(
        "meshes of sites",
        run_schedule,
        record_property,
        long=100_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"sites": each.sites, "messages": each.messages, **each.faults},
    )


@pytest.mark.ci
def test_large_meshes(figures: Callable[[str], None]) -> None:
    """The same with as many sites as few have, and a mesh that falls into two halves each time."""
    sizes = (45, 60, 80, 100) * scaled(1, 10) if SCALE >= 1 else (45,)
    outcomes = [run_schedule(SEED + number, size) for number, size in enumerate(sizes)]
    faults = sum((Counter(outcome.faults) for outcome in outcomes), Counter[str]())
    figures(f"{len(sizes)} meshes of {min(sizes)} to {max(sizes)} sites; faults: {dict(faults)}")
    failed = [(each.seed, each.sites, each.violations[0]) for each in outcomes if each.violations]
    assert not failed


def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from sites_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(20)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
