"""The journal and the store on a disk that loses, tears, fails, fills up and changes bits; it is noticed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
from sim_disk_audit import DiskAuditError, Life, SmallStore, content_of, run
from support.disks import SimulatedDisk, SimulatedFile
from support.schedules import Mutants

from statestore_client.server.journal import DamagedRecordError
from statestore_client.server.runtime.storage import files
from statestore_client.server.runtime.storage.files import Contents, DatabaseWriter, Log
from statestore_client.server.runtime.storage.log_store import LogStore

_SEEDS = 300


@pytest.mark.ci
def test_nothing_that_was_acknowledged_is_lost_and_nothing_else_served() -> None:
    """Nothing acknowledged is lost and nothing else is served, whatever the disk does, and each kind of end occurs."""
    lives = _run_all()
    assert sum(life.restarts for life in lives) > 5 * _SEEDS
    refusals = sum(life.refusals for life in lives)
    assert _SEEDS // 4 < refusals < _SEEDS


def test_the_same_seed_is_the_same_life() -> None:
    """The same seed gives the same life, byte for byte, so that a fault can be found again."""
    one, other = run(7), run(7)
    assert {name: file.cache for name, file in one.disk.files.items()} == {
        name: file.cache for name, file in other.disk.files.items()
    }


def _run_all() -> list[Life]:
    return [run(seed) for seed in range(_SEEDS)]


# -- mutants: each is a mistake that somebody could make, and must be found --------------------------------------------

MUTANTS = Mutants()


@MUTANTS.instead(Log, "_append")
def _acknowledges_before_it_is_synced(_append: Any, log: Log, content: bytes) -> None:
    data = files.frame(log._seed, log.frames + 1, content)
    log.file.write(data, log.end)
    log.frames += 1
    log.end += len(data)


@MUTANTS.instead(SimulatedFile, "sync")
def _ignores_a_failed_sync(sync: Any, file: SimulatedFile) -> None:
    with suppress(OSError):
        sync(file)


@MUTANTS.instead(Contents, "_validate")
def _does_not_ask_how_far_the_log_had_come(validate: Any, contents: Contents) -> None:
    contents.database.mark = type(contents.database.mark)(0, 0)
    validate(contents)


@MUTANTS.instead(DatabaseWriter, "finish")
def _gives_the_new_database_its_name_too_early(finish: Any, writer: DatabaseWriter, mark: object) -> None:
    sync = writer._file.sync
    writer._file.sync = lambda: None  # type: ignore[method-assign]  # of this one file
    finish(writer, mark)
    writer._file.sync = sync  # type: ignore[method-assign]  # as above


@MUTANTS.instead(Log, "repair")
def _leaves_frames_alone_for_which_nothing_vouches(_repair: Any, log: Log, _frames_on_disk: int) -> None:
    if log.has_rest:
        log.file.truncate(log.end)
    log.file.sync()


@MUTANTS.instead(Log, "repair")
def _does_not_cut_off_what_a_crash_left(_repair: Any, log: Log, _frames_on_disk: int) -> None:
    """What a crash left of a frame stays, and the log goes on after it."""
    log.end = log.file.size


@MUTANTS.instead(LogStore, "_replace_database")
def _removes_the_old_log_before_the_new_database_is_there(
    replace: Any, store: LogStore, writer: DatabaseWriter, old: list[Log]
) -> None:
    for log in old:
        store._folder.remove(files.log_name(log.head.generation))
    store._folder.sync()
    replace(store, writer, old)


MUTANTS.replace("forgets_to_sync_the_directory", SimulatedDisk, "sync", lambda _disk: None)
MUTANTS.replace("takes_damage_in_the_middle_for_the_end", Log, "has_more_behind", False)
# Names that are removed are in no record's own checksum.
MUTANTS.replace(
    "does_not_check_contents", files, "crc32", lambda data, seed=0: crc32(data, seed) if len(data) == 12 else 0
)


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.ci
def test_a_careless_store_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit finds each deliberate mistake of the store."""
    MUTANTS[mutant][0](monkeypatch)
    with pytest.raises(DiskAuditError):
        _run_all()


# -- every byte --------------------------------------------------------------------------------------------------------


def _log(life: Life) -> Log:
    assert life._store is not None
    return life._store._logs[-1]


def _lives() -> Iterator[Life]:
    """With a short log; with a database and a log; in the middle of folding, with two logs and half a database."""
    for seed, works, is_wanted in (
        (1, 0, lambda names: names == {"statestore.db", "statestore-1.log"}),
        (2, 1, lambda names: "statestore-1.log" not in names and "statestore.db-new" not in names),
        (3, 1, lambda names: "statestore.db-new" in names),
    ):
        life = Life(seed)
        for _ in range(1000):
            life.change()
            if is_wanted(life.disk.names()) and len(life._states) > 3 and _log(life).frames > 1:
                break
            for _ in range(works):
                life.work()
        else:
            pytest.fail("it never comes to that")
        yield life


@pytest.mark.parametrize("number", range(3))
@pytest.mark.ci
def test_every_byte(number: int) -> None:
    """After a bit of any byte in any file changed, the content is the same, or the server refuses to start."""
    life = list(_lives())[number]
    expected, random_ = life._states[-1], random.Random(number)
    assert content_of(SmallStore(life.disk.copy(), bytes(16))) == expected
    refused = harmless = 0
    for name in sorted(life.disk.names()):
        for position in range(life.disk.files[name].size):
            disk = life.disk.copy()
            disk.flip(name, position, random_.randrange(8))
            try:
                assert content_of(SmallStore(disk, bytes(16))) == expected
                harmless += 1
            except DamagedRecordError:
                refused += 1
    assert refused > 1000
    assert harmless > 1000  # between the marks, and in a database that is not finished


@pytest.mark.ci
def test_every_length() -> None:
    """A log that is cut off anywhere, or missing, is refused, because acknowledged records are missing with it."""
    for life in _lives():
        for name in sorted(life.disk.names() - {"statestore.db-new"}):
            for length in range(life.disk.files[name].size):
                disk = life.disk.copy()
                del disk.files[name].cache[length:]
                with pytest.raises(DamagedRecordError):
                    SmallStore(disk, bytes(16))
            disk = life.disk.copy()
            disk.remove(name)
            with pytest.raises(DamagedRecordError):
                SmallStore(disk, bytes(16))
