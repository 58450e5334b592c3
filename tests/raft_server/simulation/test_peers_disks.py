"""Schedules in which the peers have the real log, on disks that fail and lose power: the node and its log together.

``RAFT_DISK_SCHEDULES`` is the number of schedules, ``RAFT_SEED`` the first seed.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from random import Random

import attrs
import pytest
from peers_deviations import Deviation
from peers_disk import DiskBackedLog
from peers_schedule import Plan, plan, run

from raft_client.server.runtime.storage.disk_log import DiskLog

_SEED = int(os.environ.get("RAFT_SEED", "1"))
_SCHEDULES = int(os.environ.get("RAFT_DISK_SCHEDULES", "200"))
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


def first_violation(count: int) -> tuple[Plan, str] | None:
    for seed in range(_SEED, _SEED + count):
        schedule = plan_with_failures(seed)
        if (violation := run(schedule).violation) is not None:
            return schedule, violation
    return None


@pytest.mark.slow
def test_peers_with_real_logs_keep_what_must_hold(logs: list[DiskBackedLog], figures: Callable[[str], None]) -> None:
    """Writes, syncs, renames and syncs of the directory fail, with EIO and without room, or are cut short by a loss of
    power: what is found afterwards is what was promised, and the cluster comes right."""
    assert first_violation(_SCHEDULES) is None
    failures = Counter(error for log in logs for error, _ in log.failures)
    ended = Counter(what for log in logs for _, what in log.failures)
    figures(f"{_SCHEDULES} schedules, {len(logs)} logs; errors {dict(failures)}; at {dict(ended)}")
    assert set(failures) == {0, errno.EIO, errno.ENOSPC}
    assert set(ended) >= {"write", "sync", "create", "replace", "sync of the directory"}


def test_a_log_that_syncs_nothing_is_found(logs: list[DiskBackedLog], monkeypatch: pytest.MonkeyPatch) -> None:
    """If what a peer has promised is not on its disk after a loss of power, a schedule shows it."""
    monkeypatch.setattr(DiskLog, "_sync_file", lambda _log: None)
    found = first_violation(200)
    assert found is not None
