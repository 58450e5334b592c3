"""Thousands of schedules of a hosted store, each from its seed: the host's connection is lost between any two steps,
requests are delivered again, the host crashes with or without what its disk had not finished, the broker forgets its
session, observers leave.

``tests/support/schedules.py`` says how many there are, and how one is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from host_schedule import run_schedule
from host_scripts import late_connection
from support.schedules import printed_by_two_processes, run_schedules


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_every_request_is_answered_and_takes_effect_once(record_property: Callable[[str, object], None]) -> None:
    """When it is calm every request has its answer, and one only; what is stored is what the answers say, the requests
    of a client took effect in their order, and observers were told of each change.
    """
    run_schedules(
        "hosts on a foreign broker",
        run_schedule,
        record_property,
        long=100_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"requests": each.requests, **each.faults},
    )


def test_a_host_whose_connection_comes_too_late_says_nothing() -> None:
    """What is asked there is answered by the next host."""
    assert late_connection() == []


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from host_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(8)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
