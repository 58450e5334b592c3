"""Thousands of schedules of failures in meshes of sites, each from its seed: in the end all stores are equal.

``KVSTORE_SEED`` is the first seed and ``KVSTORE_SCHEDULES`` the number of schedules. Each has a line, ring, star or
random mesh of 3 to 200 sites whose clocks drift, with loss, delay, cut and held connections, reconnects, restarts and
deaths.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from schedules import on_all_cores
from seeded_schedules import printed_by_two_processes
from sites_schedule import Outcome, run_schedule

_SEED = int(os.environ.get("KVSTORE_SEED", "1"))
_SCHEDULES = int(os.environ.get("KVSTORE_SCHEDULES", "10000"))
_CHUNK = 50


def _replay(outcome: Outcome) -> str:
    command = (
        f"KVSTORE_SEED={outcome.seed} KVSTORE_SCHEDULES=1 python -m pytest tests/server/kvstore/simulation -k schedules"
    )
    return f"{outcome.violations[0]}\n    replay: {command}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_schedules_end_with_equal_stores(figures: Callable[[str], None]) -> None:
    """When it is calm all stores that can reach each other are equal; nothing goes in circles or twice to one peer, own
    keys never expire, and an update takes at most two messages on each connection.
    """
    began = time.monotonic()
    failed: list[Outcome] = []
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    calm_s = 0.0
    for outcome in on_all_cores(run_schedule, range(_SEED, _SEED + _SCHEDULES), at_once=_CHUNK):
        if outcome.violations:
            failed.append(outcome)
        totals.update(schedules=1, sites=outcome.sites, messages=outcome.messages)
        faults.update(outcome.faults)
        calm_s = max(calm_s, outcome.calm_s)
    took = time.monotonic() - began
    figures(f"{dict(totals)}, {took:.0f} s; equal after at most {calm_s:.1f} s of calm; faults: {dict(faults)}")
    assert not failed, f"{len(failed)} schedules failed:\n" + "\n".join(_replay(outcome) for outcome in failed[:5])


@pytest.mark.slow
def test_large_meshes(figures: Callable[[str], None]) -> None:
    """The same with as many sites as few have, and a mesh that falls into two halves each time."""
    sizes = (45, 60, 80, 100) * max(1, _SCHEDULES // 10_000)
    faults: Counter[str] = Counter()
    failed: list[Outcome] = []
    for outcome in on_all_cores(partial(_sized, sizes), range(len(sizes)), at_once=1):
        faults.update(outcome.faults)
        if outcome.violations:
            failed.append(outcome)
    figures(f"{len(sizes)} meshes of {min(sizes)} to {max(sizes)} sites; faults: {dict(faults)}")
    assert not failed, [(outcome.seed, outcome.sites, outcome.violations[0]) for outcome in failed]


def _sized(sizes: tuple[int, ...], number: int) -> Outcome:
    return run_schedule(_SEED + number, sizes[number])


def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from sites_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(20)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
