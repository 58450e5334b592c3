"""What is done to a log to find out whether it keeps its promises. All of it raises ViolationError if it does not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

from log_history import History, ViolationError
from log_model import check_log
from support.disks import CrashError, FaultyDisk

from raft_client.errors import StorageDamagedError, StorageError
from raft_client.server.runtime.storage.backup import inspect_folder
from raft_client.server.runtime.storage.disk_log import Fsync

__all__ = [
    "check_flips",
    "crash_everywhere",
    "damaged",
    "fail_everywhere",
    "fail_syncs",
    "flips",
    "lived",
    "tear_everywhere",
]


def crash_everywhere(
    seed: int,
    steps: int,
    *,
    power: bool,
    stride: int = 1,
    fsync: Fsync = Fsync.GROUP,
    weights: tuple[int, ...] = History.weights,
) -> int:
    """Live, crash, be found again, crash while being found, live on; once for each operation. How often it crashed."""
    for number, crash_at in enumerate(range(seed % stride, 1_000_000, stride)):
        disk = FaultyDisk()
        disk.crash_at = crash_at
        history = History(seed, disk, fsync=fsync)
        history.weights = weights
        try:
            history.run(steps)
            return number
        except CrashError:
            pass
        chance = random.Random(f"{seed} {crash_at}")
        for _ in range(chance.choice((0, 1, 1, 3))):
            disk.crash_at = disk.operations + chance.randint(0, 25)
            if power:
                disk.lose_power(chance)
            try:
                history.open()
            except CrashError:
                continue
        history.find_again(chance if power else None)
        history.random = chance
        history.run(4)
        history.find_again(chance if power else None)
    raise AssertionError("it never ends")


def tear_everywhere(seed: int, steps: int, times: int) -> int:
    """The power fails before each sync of a segment, ``times`` times. How many jobs were torn in the middle."""
    whole = FaultyDisk()
    History(seed, whole).run(steps)
    syncs = [number for number, what in enumerate(whole.log) if what.startswith("sync 0")]
    torn = 0
    for crash_at in syncs:
        for time in range(times):
            disk = FaultyDisk()
            disk.crash_at = crash_at
            history = History(seed, disk)
            with suppress(CrashError):
                history.run(steps)
            chance = random.Random(f"{seed} {crash_at} {time}")
            disk.lose_power(chance)
            disk.heal()
            torn += inspect_folder(disk).torn_bytes > 0
            history.find_again(None)
            history.random = chance
            for _ in range(3):
                history.append()
                history.find_again(None)
            history.find_again(chance)
    return torn


def fail_everywhere(seed: int, steps: int, error: int, stride: int = 1) -> Iterator[tuple[History, str, StorageError]]:
    """The life of a log, once for each operation; that one fails. What failed, and how it was told."""
    for fail_at in range(seed % stride, 1_000_000, stride):
        disk = FaultyDisk()
        disk.fail_at, disk.error = fail_at, error
        history = History(seed, disk)
        try:
            history.run(steps)
        except StorageError as told:
            yield history, disk.log[fail_at], told
        else:
            assert disk.operations <= fail_at, disk.log[fail_at]
            return


def fail_syncs(seed: int, steps: int, error: int) -> None:
    """Each sync fails once. The log may tell or not; then it is opened again, lives on, and the power fails."""
    whole = FaultyDisk()
    History(seed, whole).run(steps)
    for fail_at in (number for number, what in enumerate(whole.log) if what.startswith("sync")):
        disk = FaultyDisk()
        disk.fail_at, disk.error = fail_at, error
        history = History(seed, disk)
        chance = random.Random(fail_at)
        try:
            history.run(steps)
        except StorageError:
            history.find_again(None)
            history.random = chance
            history.run(2)
        history.find_again(chance)


def lived(seed: int, steps: int = 30) -> History:
    """A log that was closed."""
    history = History(seed, FaultyDisk())
    history.run(steps)
    while len(history.disk.files) < 6:
        history.append()
        history.maintain()
    history.compact()
    for _ in range(5):
        history.append()
    assert history.log is not None
    history.log.close()
    history.disk.sync()
    return history


def flips(history: History, count: int) -> Iterator[tuple[str, int, int]]:
    """Each byte of the first ones, and of the last ones, of each file; and others by chance."""
    chance = random.Random(count)
    for name, data in sorted(history.disk.image().items()):
        ends = {*range(64), *range(len(data) - 64, len(data))}
        places = ends | {chance.randrange(len(data)) for _ in range(count)}
        yield from ((name, at, chance.randrange(8)) for at in sorted(places) if 0 <= at < len(data))


def damaged(disk: FaultyDisk, name: str, at: int, bit: int) -> FaultyDisk:
    """A copy with one bit changed."""
    other = FaultyDisk()
    for each, data in disk.image().items():
        file = other.open(each, create=True)
        file.write(data, 0)
        file.sync()
    other.sync()
    other.flip(name, at, bit)
    return other


def check_flips(seed: int, count: int) -> tuple[int, int]:
    """How many flipped bits were refused, and how many changed nothing."""
    history = lived(seed)
    refused = unchanged = 0
    for name, at, bit in flips(history, count):
        disk = damaged(history.disk, name, at, bit)
        before = disk.image()
        other = History(seed, disk)
        is_open = False
        try:
            log = other.open()
            is_open = True
            wrong = check_log(log, history.model, history.ids)
        except StorageError as error:
            refused += 1
            wrong = "" if not isinstance(error, StorageDamagedError) or error.file == name else f"blames {error.file}"
            if not is_open and disk.image() != before:
                wrong = "changed by who refused it"
        else:
            unchanged += 1
        if wrong:
            raise ViolationError(f"{name}, byte {at}, bit {bit}: {wrong}")
    return refused, unchanged
