"""Schedules of failures for servers that share a log, each from its seed, with the real core: nothing is broken.

``CLUSTER_SEED`` is the first seed and ``CLUSTER_SCHEDULES`` the number of schedules. Each has clients and two or
three servers, whose clocks drift and whose wall clocks may be an hour off. Processes are killed, stand still, hang or
are suspended with their machines; links are cut, are slow, lose and double what they carry; the log is without a leader
or without room, gets snapshots and is trimmed.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from replicas_schedule import Outcome, run_schedule
from schedules import on_all_cores
from seeded_schedules import printed_by_two_processes

_SEED = int(os.environ.get("CLUSTER_SEED", "1"))
_SCHEDULES = int(os.environ.get("CLUSTER_SCHEDULES", "10000"))
_CHUNK = 50


def _run(seed: int) -> Outcome:
    gc.disable()  # it takes a tenth of the time, and there is little to find
    try:
        return run_schedule(seed)
    finally:
        gc.enable()


def _replay(outcome: Outcome) -> str:
    command = f"CLUSTER_SEED={outcome.seed} CLUSTER_SCHEDULES=1 python -m pytest tests/server/cluster/simulation -k all"
    return f"{outcome.violations[0]}\n    replay: {command}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_schedules_keep_what_must_hold(figures: Callable[[str], None]) -> None:
    """One server speaks at a time, nothing that was acknowledged is lost or done twice, each server comes to the same
    rows, versions and log time never go back, and clients are served when all is calm.
    """
    began = time.monotonic()
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    failed: list[Outcome] = []
    for outcome in on_all_cores(_run, range(_SEED, _SEED + _SCHEDULES), at_once=_CHUNK):
        totals.update(schedules=1, entries=outcome.entries, answers=outcome.answers, epochs=outcome.epochs)
        faults.update(outcome.faults)
        if outcome.violations:
            failed.append(outcome)
    took = time.monotonic() - began
    figures(f"{dict(totals)}, seeds from {_SEED}, {took:.0f} s; faults: {dict(faults)}")
    assert not failed, f"{len(failed)} schedules failed:\n" + "\n".join(map(_replay, failed[:5]))


def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from replicas_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(6)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
