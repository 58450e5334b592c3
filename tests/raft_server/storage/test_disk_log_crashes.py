"""A crash before every single operation on the disk, in random lives of a log."""

from __future__ import annotations

import pytest
from log_audits import crash_everywhere, tear_everywhere

from raft_client.server.runtime.storage.options import Fsync

STEPS = 24
OFTEN_INSTALLED = (20, 5, 10, 2, 60, 1, 5, 1, 1)


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("seed", range(6))
def test_a_crash_before_every_operation(seed: int, power: bool) -> None:
    """After a crash before any operation, and others in the next starts, what was synced is there, and the rest up to a
    point."""
    assert crash_everywhere(seed, STEPS, power=power) > 60


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.OFF])
def test_a_crash_of_the_process_with_other_settings(fsync: Fsync) -> None:
    """With any setting of syncs, a process that dies loses nothing."""
    assert crash_everywhere(7, STEPS, power=False, stride=3, fsync=fsync) > 20


def test_a_power_failure_when_each_entry_is_synced() -> None:
    """If each entry is synced, a power failure keeps what one sync for a job keeps."""
    assert crash_everywhere(8, STEPS, power=True, stride=3, fsync=Fsync.ALWAYS) > 20


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_is_torn(seed: int) -> None:
    """Of a torn job, of which any sectors may be on the disk, the first whole entries are there and nothing after
    them."""
    assert tear_everywhere(seed, STEPS, 6) >= 4


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_while_snapshots_are_installed(seed: int, power: bool) -> None:
    """After a crash during the installation of a snapshot, the log has the new or the old state, never a part of
    each."""
    assert crash_everywhere(seed, STEPS, power=power, weights=OFTEN_INSTALLED) > 60
