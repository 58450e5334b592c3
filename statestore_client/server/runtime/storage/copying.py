"""A new data directory from records that are elsewhere: in a damaged directory, or in a replicated log.

Invariant: what has the name of the new directory is whole. It is made under another name, read again as a server reads
it, and renamed; with the other name no server starts. What a copy that was killed has left is removed by the next one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from raft_client._common.durable_files import SystemFolder, sync_folder
from statestore_client.errors import DataDamagedError, DataDirectoryError
from statestore_client.server.journal import ALL_STREAMS, Changes, WriteBatch
from statestore_client.server.runtime.storage.directory import UNFINISHED, DirectoryLock, erase_data, refusals
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.inspection import surveyed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from statestore_client.server.journal import StoredRecords, Stream, Subject

#: Bytes of the records of a batch: an entry of a log, and nobody who appends beside it waits for long.
_BATCH_BYTES: Final = 256 * 1024


def batches_of(records: StoredRecords, *, but: Collection[tuple[Stream, Subject]] = ()) -> Iterator[WriteBatch]:
    """All records, those of sessions before what belongs to these; without the ones named in ``but``."""
    for stream in ALL_STREAMS:
        rows: list[tuple[Subject, bytes]] = []
        size = 0
        for subject, record in records.load(stream):
            if (stream, subject) not in but:
                rows.append((subject, record))
                size += len(record)
            if size >= _BATCH_BYTES:
                yield WriteBatch((Changes(stream, tuple(rows), ()),))
                rows, size = [], 0
        if rows:
            yield WriteBatch((Changes(stream, tuple(rows), ()),))


def check_new(out: Path) -> None:
    """Raises DataDirectoryError unless a directory of this name can be made: an empty one may be there."""
    with refusals(out):
        if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
            raise DataDirectoryError(f"{out} is there already: give the name of a new directory")


def write_directory(out: Path, records: StoredRecords) -> dict[str, int]:
    """A data directory of the name ``out``, in which a server goes on with these records. Returns how many there are,
    by stream. Raises DataDirectoryError and its kinds.
    """
    check_new(out)
    out = out.resolve()
    unfinished = out.with_name(out.name + UNFINISHED)
    with refusals(unfinished):
        _remove_left(unfinished)
        storage = DiskStorage(unfinished)
        try:
            for batch in batches_of(records):
                storage.write(batch)
            storage.close()
            with surveyed(unfinished) as (finding, _):
                if finding.problem is not None:
                    raise DataDamagedError(f"what was written to {unfinished} cannot be read: {finding.problem}")
            unfinished.replace(out)
            sync_folder(out.parent)
        except BaseException:
            storage.close()
            _remove_left(unfinished)
            raise
    return finding.records


def _remove_left(unfinished: Path) -> None:
    """Of a copy that did not come to its end. Raises DataInUseError while it goes on."""
    if not unfinished.is_dir():
        return
    lock = DirectoryLock.existing(unfinished, SystemFolder(unfinished, read_only=True))
    if lock is not None:
        lock.close()
    erase_data(unfinished)
    unfinished.rmdir()
