"""Schedules of failures for servers that share a log, each from its seed, with the real core: nothing is broken.

``tests/support/schedules.py`` says how many there are, and how one is repeated. Each has clients and two or
three servers, whose clocks drift and whose wall clocks may be an hour off. Processes are killed, stand still, hang or
are suspended with their machines; links are cut, are slow, lose and double what they carry; the log is without a leader
or without room, gets snapshots and is trimmed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from replicas_schedule import Outcome, run_schedule, run_slow
from support.schedules import printed_by_two_processes, run_schedules

from statestore_client.server.cluster.ownership import Ownership


def _run(seed: int) -> Outcome:
    gc.disable()  # it takes a tenth of the time, and there is little to find
    try:
        return run_schedule(seed)
    finally:
        gc.enable()


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_all_schedules_keep_what_must_hold(record_property: Callable[[str, object], None]) -> None:
    """One server speaks at a time, nothing that was acknowledged is lost or done twice, each server comes to the same
    rows, versions and log time never go back, and clients are served when all is calm.
    """
    run_schedules(
        "servers that share a log",
        _run,
        record_property,
        long=100_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"entries": each.entries, "answers": each.answers, "epochs": each.epochs, **each.faults},
    )


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_a_slow_log_serves(record_property: Callable[[str, object], None]) -> None:
    """One server stays active and clients are answered, though no lease lasts until its entry is back."""
    run_schedules(
        "servers on a slow log",
        run_slow,
        record_property,
        long=20_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"entries": each.entries, "answers": each.answers, "epochs": each.epochs},
    )


def test_what_has_ended_untold_may_be_read_as_absent() -> None:
    """A short life ended, a read saw that, and the key was set again in the same batch: once taken for a stale read."""
    assert not run_slow(2103011408).violations


def test_a_server_that_needs_a_quick_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing without a lease."""
    monkeypatch.setattr(Ownership, "_is_known", lambda self, now, _: now < self._lease_until)
    assert any(run_slow(seed).violations for seed in range(1, 40))


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from replicas_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(6)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1
