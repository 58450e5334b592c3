"""The data directory of one server, copied into the empty log of servers that share one.

The copy is an epoch of its own, whose format is "unfinished": servers that follow the log take over nothing from it.
When all is there and was read back, the format is raised to the one of the records, and the epoch is given up. So what
an import that was interrupted leaves behind is a log that no server goes on from, and not a part of the state.

Source: ``docs/decisions/replicated-server.md``.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import AsyncRaftClient, RaftError
from statestore_client.errors import ConnectionLostError, DataDamagedError, ReplicatedLogError
from statestore_client.server.cluster.campaign import log_time
from statestore_client.server.cluster.entries import (
    FORMAT,
    UNFINISHED,
    BatchPiece,
    Claim,
    HandOver,
    Life,
    LogEntry,
    NewFormat,
    UnreadableLogError,
    encode,
    pack_batch,
    pieces,
)
from statestore_client.server.cluster.fence import Fence
from statestore_client.server.journal import TIME, Stream, Timeline, TimeRecord
from statestore_client.server.runtime.clock import monotonic_origin, system_clock
from statestore_client.server.runtime.replication.log_link import entries_of_servers
from statestore_client.server.runtime.storage.copying import batches_of
from statestore_client.server.runtime.storage.directory import refusals
from statestore_client.server.runtime.storage.disk_storage import DiskStorage
from statestore_client.server.runtime.storage.inspection import check

if TYPE_CHECKING:
    import os

    from raft_client import RaftSettings
    from statestore_client.server.cluster.entries import Body
    from statestore_client.server.journal import StoredRecords

_INCARNATION_BITS: Final = 64
#: Of one entry, and until the log has a leader.
_TIMEOUT_S: Final = 30.0
_BEGIN_ANEW: Final = "stop the peers, give them empty directories, and import again"


@attrs.frozen
class Imported:
    """``records``: how many the directory had, by stream. ``index``: the last entry of the copy."""

    records: dict[str, int]
    index: int


async def import_directory(directory: str | os.PathLike[str], log: RaftSettings) -> Imported:
    """Copy what a server without a log has left in its data ``directory``, which stays as it is. The peers must run.

    Raises DataDirectoryError and its kinds for a directory that is in use, damaged or of a newer release,
    ReplicatedLogError for a log that is not empty, and ConnectionLostError if the log does not answer.
    """
    path = Path(directory)
    finding = check(path)
    if finding.problem is not None:
        raise DataDamagedError(f"the data in {path} is damaged: {finding.problem}. Nothing was imported")
    storage = DiskStorage(path, create=False)
    try:
        async with AsyncRaftClient(log) as client:
            with refusals(path):
                index = await _LogWriter(client, _timeline(storage)).copy(storage)
    except RaftError as error:
        raise ConnectionLostError(f"the log cannot be reached, nothing was imported: {error}") from error
    finally:
        storage.close()
    return Imported({name: count for name, count in finding.records.items() if name != Stream.CLOCK.value}, index)


def _timeline(storage: StoredRecords) -> Timeline:
    """Deadlines end when they would have ended if the server had been started again."""
    now, last = system_clock(), TimeRecord.last(storage)
    return Timeline.begin(now) if last is None else Timeline.after(last, monotonic_origin(), now)


class _LogWriter:
    """The life that owns the epoch of the copy."""

    def __init__(self, client: AsyncRaftClient, timeline: Timeline) -> None:
        self._client = client
        self._timeline = timeline
        self._life = Life("import", secrets.randbits(_INCARNATION_BITS))
        self._fence = Fence()

    async def copy(self, storage: StoredRecords) -> int:
        """Returns the index of the last entry. Raises RaftError if nothing was appended."""
        log = await self._client.log_info()
        await self._read(log.last_applied)
        self._check_empty(is_trimmed=log.first_index > 1)
        claim = Claim("", UNFINISHED, 0, system_clock().wall_ms)
        await self._read(await self._append(0, claim))
        self._check_owner(0)
        try:
            return await self._go_on(storage)
        except RaftError as error:
            raise ReplicatedLogError(
                f"the import did not come to its end: {error}. If no server becomes active: {_BEGIN_ANEW}"
            ) from error

    async def _go_on(self, storage: StoredRecords) -> int:
        seq = index = 0
        for batch in batches_of(storage, but=((Stream.CLOCK, TIME),)):  # which is that of the directory's own clock
            for data, is_last in pieces(pack_batch(batch)):
                seq += 1
                index = await self._append(seq, BatchPiece(data, is_last))
        await self._read(index)
        self._check_owner(seq)
        await self._append(seq + 1, NewFormat(FORMAT))
        return await self._append(seq + 2, HandOver())

    async def _append(self, seq: int, body: Body) -> int:
        log_ms = log_time(self._timeline, system_clock())
        entry = LogEntry(1, seq, self._life, log_ms, 0, body)
        return await self._client.append(encode(entry), timeout=_TIMEOUT_S)

    async def _read(self, end: int) -> None:
        """Judge the entries up to there, as all servers do."""
        try:
            async for index, entry in entries_of_servers(self._client, self._fence.index, end):
                self._fence.receive(index, entry)
        except UnreadableLogError as error:
            raise ReplicatedLogError(f"the log is not empty, and not of these servers: {error}") from error

    def _check_owner(self, seq: int) -> None:
        """All that was written so far is valid."""
        if (self._fence.owner, self._fence.seq) != (self._life, seq):
            raise ReplicatedLogError("a server has begun to use this log meanwhile: nothing was imported")

    def _check_empty(self, *, is_trimmed: bool) -> None:
        fence = self._fence
        if fence.is_unfinished:
            raise ReplicatedLogError(f"an import into this log did not come to its end: {_BEGIN_ANEW}")
        if fence.epoch or is_trimmed:
            what = f"servers have used it, in epoch {fence.epoch}" if fence.epoch else "it was trimmed"
            raise ReplicatedLogError(
                f"the log is not empty: {what}. It takes peers with empty directories, and servers that have not begun "
                "(serve --await-import)"
            )
