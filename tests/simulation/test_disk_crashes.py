"""A crash before every single operation on the disk: in a first start, a batch, a fold, an end, and a later start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sim_disk_audit import SmallStore
from support.disks import CrashError, FaultyDisk, SimulatedDisk

from statestore_client.server.journal import Changes, Stream, WriteBatch

_IDENTITY = bytes(range(16))


class _Disk(FaultyDisk):
    """Counts what changes something on it."""

    def step(self, what: str) -> bool:
        return not what.startswith(("read ", "open ", "names")) and super().step(what)


def _batch(number: int) -> WriteBatch:
    """Each removes what another one put."""
    puts = tuple((b"%d-%d" % (number, each), b"%d" % number * 300) for each in range(3))
    return WriteBatch((Changes(Stream.KEYS, puts, (b"%d-0" % (number - 1), b"%d-1" % (number - 5))),))


def _expected(count: int) -> dict[object, bytes]:
    found: dict[object, bytes] = {}
    for number in range(count):
        (changes,) = _batch(number).changes
        for subject in changes.removals:
            found.pop(subject, None)
        found.update(changes.puts)  # type: ignore[arg-type]  # names and contents
    return found


def _live(disk: SimulatedDisk, count: int) -> Iterator[int]:
    """Lives of a server with so many batches, and how many are acknowledged."""
    done = 0
    while done < count:
        store = SmallStore(disk, _IDENTITY)
        if done % 2:
            store.forget()
        for _ in range(10):
            store.append(_batch(done))
            done += 1
            yield done
            if store.wants_work_when_quiet:
                store.work()
        store.finish()
        store.close()


@pytest.mark.parametrize("fails", ["kill", "power"])
def test_a_crash_before_every_operation(fails: str) -> None:
    """After a crash before any operation, and another during the next start, what was acknowledged is there, and the
    rest is there whole or not at all."""
    random_ = random.Random(fails)
    crashes = half = 0
    for crash_at in range(10_000):
        disk = _Disk()
        disk.crash_at = crash_at
        acknowledged = 0
        try:
            for done in _live(disk, 60):
                acknowledged = done
            break
        except CrashError:
            crashes += 1
        half += "statestore.db-new" in disk.files
        for _ in range(2):  # the next starts crash as well
            if fails == "power":
                disk.lose_power(random_)
            disk.crash_at = disk.operations + random_.randrange(12)
            with suppress(CrashError):
                SmallStore(disk, _IDENTITY).close()
        if fails == "power":
            disk.lose_power(random_)
        disk.heal()
        found = dict(SmallStore(disk, _IDENTITY).load(Stream.KEYS))
        assert found in (_expected(acknowledged), _expected(acknowledged + 1)), f"crash before operation {crash_at}"
    assert crashes > 200
    assert half > 10
