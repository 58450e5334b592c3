"""Thousands of schedules of failures, each from its seed, with the real node: nothing that must hold is broken.

``tests/support/schedules.py`` says how many there are. One that fails is cut down to the deviations that it needs;
``PYTHONPATH=tests python tests/raft_server/simulation/peers_schedule.py SEED``
traces it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from peers_schedule import Outcome, plan, run, shrink
from support.schedules import printed_by_two_processes, run_schedules


def _run(seed: int) -> Outcome:
    return run(plan(seed))


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_all_schedules_keep_what_must_hold(record_property: Callable[[str, object], None]) -> None:
    """Safety at every step, durability to the end, and a commit soon after everything healed."""
    run_schedules(
        "peers of the log",
        _run,
        record_property,
        long=100_000,
        violation=lambda outcome: outcome.violation,
        counts=lambda each: {"messages": each.messages, "entries": each.applied, "elections": each.leaders},
        explain=lambda seed: f"seed {seed}, {shrink(plan(seed))}",
    )


#: An id of an entry that a snapshot replaced was remembered; a message arrived at the process after the one that it was
#: sent to. Both were faults of the simulation: disks and connections do neither. The third was a fault of the node: a
#: configuration that a leader appended while its clock was ahead made the peer believe that clock when it started.
@pytest.mark.parametrize("seed", [65749, 76577, 8656])
def test_a_schedule_that_failed_once_fails_no_more(seed: int) -> None:
    """Schedules that only long runs had found are part of every run."""
    assert run(plan(seed)).violation is None


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """In any process: with other hashes, and so other orders in sets."""
    program = "from peers_schedule import plan, run; print([run(plan(seed)).digest for seed in range(30)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
