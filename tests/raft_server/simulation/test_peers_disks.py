"""Schedules in which the peers have the real log, on disks that fail and lose power: the node and its log together.

``tests/support/schedules.py`` says how many there are, and how one is repeated.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import pytest
from peers_deviations import Deviation
from peers_disk import DiskBackedLog
from peers_schedule import Outcome, Plan, plan, run
from support.schedules import SCALE, run_schedules

from raft_client.server.runtime.storage.disk_log import DiskLog

_FAILURES = 8


def plan_with_failures(seed: int) -> Plan:
    """The schedule of this seed, and disks that fail all the time."""
    schedule = plan(seed)
    chances = Random(seed)
    failures = [
        Deviation(
            round(chances.uniform(0.0, schedule.profile.length_s), 3),
            "fail_disk",
            (chances.choice(schedule.profile.python_peers), f"{chances.uniform(0.02, 0.3):.3f}", "0.5"),
        )
        for _ in range(_FAILURES)
    ]
    return attrs.evolve(schedule, deviations=tuple(sorted([*schedule.deviations, *failures])))


def run_with_failures(seed: int) -> Outcome:
    """Run the schedule of this seed on disks that fail."""
    return run(plan_with_failures(seed))


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_peers_with_real_logs_keep_what_must_hold(
    logs: list[DiskBackedLog], record_property: Callable[[str, object], None], figures: Callable[[str], None]
) -> None:
    """Writes, syncs, renames and syncs of the directory fail, with EIO and without room, or are cut short by a loss of
    power: what is found afterwards is what was promised, and the cluster comes right."""
    run_schedules(
        "peers with failing disks",
        run_with_failures,
        record_property,
        long=5_000,
        violation=lambda outcome: outcome.violation,
        here=True,  # ``logs`` are of this process
    )
    failures = Counter(error for log in logs for error, _ in log.failures)
    ended = Counter(what for log in logs for _, what in log.failures)
    figures(f"{len(logs)} logs; errors {dict(failures)}; at {dict(ended)}")
    if SCALE < 1:
        return  # too few for all kinds
    assert set(failures) == {0, errno.EIO, errno.ENOSPC}
    assert set(ended) >= {"write", "sync", "create", "replace", "sync of the directory"}


def test_a_log_that_syncs_nothing_is_found(logs: list[DiskBackedLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """If what a peer has promised is not on its disk after a loss of power, a schedule shows it."""
    monkeypatch.setattr(DiskLog, "_sync_file", lambda _log: None)
    assert any(run_with_failures(seed).violation for seed in range(1, 200))
