"""A disk that fails, is full, or changes bits."""

from __future__ import annotations

import errno
import random

import attrs
import pytest
from log_audits import check_flips, damaged, fail_everywhere, fail_syncs, flips, lived
from log_history import History
from log_model import check_log
from support.disks import FaultyDisk

from raft_client.errors import StorageError, StorageFullError
from raft_client.server.node.ready import Persist
from raft_client.server.node.stored_log import HardState
from raft_client.server.runtime.storage.inspection import inspect_folder


@pytest.mark.parametrize(("error", "cls"), [(errno.EIO, StorageError), (errno.ENOSPC, StorageFullError)])
@pytest.mark.parametrize("seed", range(3))
def test_every_operation_may_fail(seed: int, error: int, cls: type[StorageError]) -> None:
    """A failing operation is reported as what it is, and nothing acknowledged is lost, even with a loss of power."""
    failed = set()
    for history, operation, told in fail_everywhere(seed, 24, error):
        failed.add(operation.split()[0])
        assert type(told) is cls, operation
        chance = random.Random(operation)
        for power in (None, chance):
            history.find_again(power)
            history.random = chance
            history.run(3)
        history.find_again(chance)
    assert failed >= {"names", "open", "create", "write", "sync", "replace", "read"}


@pytest.mark.parametrize("seed", range(3))
def test_a_failed_write_or_sync_is_final(seed: int) -> None:
    """After a failed write or sync the log takes and serves nothing until it is opened again."""
    seen = 0
    for history, operation, _ in fail_everywhere(seed, 20, errno.EIO, stride=3):
        log = history.log
        if log is None or operation.split()[0] in ("names", "open", "read") or "local" in operation:
            continue
        seen += 1
        before = history.disk.image()
        for call in (
            lambda log=log: log.write(Persist(hard_state=HardState(99))),
            log.sync,
            log.maintain,
            log.new_snapshot,
            lambda log=log: log.entries(0, 1, 1),
            lambda log=log: log.term_at(log.last_index + 1),
            lambda log=log: log.read_snapshot(0, 1),
            lambda log=log: log.index_of_request(bytes(12)),
        ):
            with pytest.raises(StorageError):
                call()
        log.close()
        assert history.disk.image() == before
    assert seen > 5


@pytest.mark.parametrize("seed", range(5))
def test_what_a_failed_sync_left_in_memory_becomes_durable(seed: int) -> None:
    """After a failed sync the system reads as if all was written; what the next start finds survives a later power
    failure."""
    fail_syncs(seed, 20, errno.EIO)


def test_a_snapshot_without_room_is_given_up() -> None:
    """A snapshot of the peer's own that does not fit on the disk is given up, and the log goes on."""
    history = History(1, FaultyDisk())
    history.run(10)
    assert history.log is not None
    writer = history.log.new_snapshot()
    history.disk.room = 1000
    with pytest.raises(StorageFullError):
        writer.write(bytes(70_000))
    history.disk.room = None
    writer.close()
    history.log.abort_snapshot()
    history.append()
    history.check()
    history.log.new_snapshot()


# -- bits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_is_refused_or_changes_nothing(seed: int) -> None:
    """A flipped bit in any file never makes the log serve another entry, vote, id or snapshot. A refusal to open
    changes nothing, and an error about damage names the file."""
    refused, unchanged = check_flips(seed, 150)
    assert refused > unchanged > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_is_found_by_an_inspection(seed: int) -> None:
    """An inspection finds a flipped bit also where no start reads, finds none in a whole log, and changes nothing."""
    history = lived(seed)
    before = history.disk.image()
    whole = inspect_folder(history.disk)
    assert not whole.problems
    assert (whole.hard_state, whole.last_index) == (history.model.hard_state, history.model.last_index)
    assert whole.snapshot == history.model.snapshot
    assert set(whole.stale) <= {"incoming.tmp"}
    assert not whole.torn_bytes
    last = max(name for name in before if name.endswith(".log"))
    missed = []
    for name, at, bit in flips(history, 40):
        disk = damaged(history.disk, name, at, bit)
        image = disk.image()
        try:
            found = inspect_folder(disk)
        except StorageError as error:
            pytest.fail(f"{name} {at}: {error}")
        assert disk.image() == image
        if not any(problem.file == name or name in problem.message for problem in found.problems):
            missed.append((name, at))
    # a byte that says nothing, and the last mark, which says nothing new
    harmless = {(name, at) for name in before for at in (8, 9, 10, 11)} | {
        (each, at) for each in whole.stale for at in range(90_000)
    }
    assert all((name, at) in harmless or name == last for name, at in missed), missed


@pytest.mark.parametrize("name", ["log", "index", "snapshot", "meta"])
def test_a_file_that_is_missing_is_missed(name: str) -> None:
    """A log with a missing or shortened file is refused, unless the other files hold all that it had."""
    history = lived(0)
    refused = 0
    for each in sorted(each for each in history.disk.image() if name in each):
        disk = damaged(history.disk, each, 0, 0)
        disk.remove(each)
        other = History(0, disk)
        model = attrs.evolve(history.model, forgot=name == "index")  # prune_index says that they are
        try:
            log = other.open()
        except StorageError:
            refused += 1
        else:
            assert name == "index" or log.first_index <= history.model.floor, each
            assert not check_log(log, model, history.ids), each
    assert refused or name == "index"
