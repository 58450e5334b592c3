"""The state of servers that share a log, as the data directory of one server.

The log is read as a server reads it that stands by, up to an entry of our own: everything that was acknowledged before
the export began is before it. That entry is a challenge, which changes nothing, so the servers go on, and what they
write meanwhile is in the log behind it.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from raft_client import AsyncRaftClient, HistoryOutrunError, RaftError, SnapshotPolicy
from raft_client import LogEntry as RaftEntry
from statestore_client.errors import ConnectionLostError, ReplicatedLogError
from statestore_client.server.cluster.entries import Challenge, Life, LogEntry, UnreadableLogError, encode
from statestore_client.server.cluster.interface import BatchReplicated, ClusterSettings, RowsRestored
from statestore_client.server.cluster.member import ClusterMember
from statestore_client.server.journal import TIME, Changes, Stream, StreamTables, Timeline, TimeRecord, WriteBatch, seal
from statestore_client.server.runtime.clock import monotonic_origin, system_clock
from statestore_client.server.runtime.replication.log_link import find_base
from statestore_client.server.runtime.storage.copying import check_new, write_directory

if TYPE_CHECKING:
    import os

    from raft_client import RaftSettings
    from statestore_client.server.cluster.fence import Fence

_INCARNATION_BITS: Final = 64
#: Until the log has a leader and has taken the entry.
_TIMEOUT_S: Final = 30.0
#: Each time that the log is trimmed under the reader, there is a newer snapshot to begin with.
_ATTEMPTS: Final = 5


@attrs.frozen
class Exported:
    """``records``: how many there are, by stream. ``index``: the entry of the log up to which they are those of the
    cluster, and ``epoch`` the one then.
    """

    records: dict[str, int]
    index: int
    epoch: int


async def export_directory(out: str | os.PathLike[str], log: RaftSettings) -> Exported:
    """Write the state of the servers that share this ``log`` into the new data directory ``out``. Servers may run, and
    a majority of the log's peers must.

    Raises DataDirectoryError and its kinds for a directory that is not new or cannot be written, ReplicatedLogError for
    a log without a state of servers, and ConnectionLostError if the log does not answer. Then there is no ``out``.
    """
    path = Path(out)
    check_new(path)
    try:
        async with AsyncRaftClient(log) as client:
            reader = await _read(client)
    except UnreadableLogError as error:
        raise ReplicatedLogError(f"the log is not of these servers, nothing was exported: {error}") from error
    except RaftError as error:
        raise ConnectionLostError(f"the log cannot be reached, nothing was exported: {error}") from error
    records = write_directory(path, reader.tables)
    counts = {name: count for name, count in records.items() if name != Stream.CLOCK.value}
    return Exported(counts, reader.index, reader.fence.epoch)


async def _read(client: AsyncRaftClient) -> _StateReader:
    for _ in range(_ATTEMPTS):
        reader = _StateReader(client)
        try:
            await reader.read()
        except HistoryOutrunError:
            continue
        return reader
    raise ReplicatedLogError("the log is trimmed faster than it can be read here: nothing was exported")


class _StateReader:
    """A life that reads the log, and never takes part: what its member would append is not sent."""

    def __init__(self, client: AsyncRaftClient) -> None:
        self.tables = StreamTables()
        self.index: int = 0  # of the last entry that was read
        self._client = client
        self._life = Life("ha export", secrets.randbits(_INCARNATION_BITS))
        self._member = ClusterMember(ClusterSettings(self._life), system_clock())

    @property
    def fence(self) -> Fence:
        return self._member.fence

    async def read(self) -> None:
        """All that was acknowledged before. Raises HistoryOutrunError if the log was trimmed meanwhile, other
        RaftErrors, UnreadableLogError and ReplicatedLogError.
        """
        base = await find_base(self._client)
        self._member = ClusterMember(ClusterSettings(self._life), system_clock(), base)
        self.index = self.fence.index
        await self._read_to((await self._client.log_info()).last_applied)
        self._check_begun()
        mark = LogEntry(self.fence.epoch, 1, self._life, self.fence.log_ms, self.fence.base, Challenge())
        await self._read_to(await self._client.append(encode(mark), timeout=_TIMEOUT_S))
        self._member.catch_up()
        if not self._member.is_ready:
            raise ReplicatedLogError("the newest snapshot in the log is not complete: nothing was exported")
        self._note_time()

    def _check_begun(self) -> None:
        if self.fence.is_unfinished:
            raise ReplicatedLogError("an import into this log did not come to its end: there is nothing to export")
        if not self.fence.epoch:
            raise ReplicatedLogError("no server has begun to use this log: there is nothing to export")

    async def _read_to(self, end: int) -> None:
        while self.index < end:
            async with self._client.entries(self.index, end - self.index, snapshot=SnapshotPolicy.REFUSE) as items:
                async for item in items:
                    if isinstance(item, RaftEntry):
                        self.index = item.index
                        if item.is_state:
                            self._receive(item.index, item.data)

    def _receive(self, index: int, data: bytes) -> None:
        self._member.receive(index, data, system_clock())
        for event in self._member.events:
            if isinstance(event, BatchReplicated | RowsRestored):
                self.tables.absorb(event.batch)
        self._member.events.clear()

    def _note_time(self) -> None:
        """As if a server had stopped now whose log time is the last one in the log. It may be later than that, by the
        ten seconds in which an active server writes something: nothing ends early.
        """
        now = system_clock()
        timeline = Timeline(self.fence.log_ms - now.monotonic * 1000)
        record = seal(Stream.CLOCK, TIME, TimeRecord.at(now, timeline, monotonic_origin()).fields(timeline))
        self.tables.absorb(WriteBatch((Changes(Stream.CLOCK, ((TIME, record),), ()),)))
