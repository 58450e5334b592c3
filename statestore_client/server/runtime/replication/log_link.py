"""The replicated log through a ØMQ Raft client: entries in order, and appends that are tried until they are in.

A log has entries of its peers as well, such as new leaders' marks; those of servers are the ones that clients append.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from raft_client import AsyncRaftClient, Freshness, RaftError, RequestExpiredError, SnapshotChunk
from statestore_client.clocks import monotonic
from statestore_client.server.runtime.clock import system_clock
from statestore_client.server.runtime.observability.event_log import LOGGER
from statestore_client.server.runtime.replication.log_base import find_base
from statestore_client.server.runtime.replication.log_members import member_warning
from statestore_client.server.runtime.replication.request_clock import RequestClock
from statestore_client.server.runtime.turns import TURN_S

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from raft_client import AsyncSubscriber
    from raft_client import LogEntry as RaftEntry
    from statestore_client.server.cluster.entries import LogEntry
    from statestore_client.server.cluster.events import Append
    from statestore_client.server.runtime.replication.settings import ReplicaSettings

__all__ = ["LogLink", "LogReader"]

#: Own peers broadcast every 0.1 s, Node peers every 0.5 s.
_SILENCE_S: Final = 0.7
#: An append that has found no leader by then is told as failed, and sent again.
_APPEND_TIMEOUT_S: Final = 5.0
#: A leader that is there answers at once; `statestore ha status` waits for this.
_MEMBERS_TIMEOUT_S: Final = 0.5
#: After which a server that starts first says that it waits; then each time after the client's own time-out.
_FIRST_LEADER_TIMEOUT_S: Final = 1.5
#: Between two attempts to learn where the log ends.
_AGAIN_S: Final = 0.2


class LogReader(Protocol):
    """What reads the log."""

    def read(self, entries: list[tuple[int, bytes]]) -> None:
        """The next ones, with their indexes. What raises ends the server."""

    def caught_up(self) -> None:
        """What there was at the start has been read."""

    def append_failed(self, ticket: int) -> None:
        """It was given up, and may be in the log nevertheless."""

    def log_trimmed(self) -> None:
        """What comes next is there no longer: begin again, after the newest snapshot."""

    def log_failed(self, error: Exception) -> None:
        """Nothing can be read any more."""


class LogLink:
    """Of one life. Belongs to the event loop."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self._client = AsyncRaftClient(settings.raft)
        #: What to put right about the peers that this server was told of.
        self.warning: str = ""
        #: At the last look, see :meth:`look_at_members`.
        self.has_leader: bool = False
        self._request_clock = RequestClock()
        self._reader: LogReader | None = None
        self._subscriber: AsyncSubscriber | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def is_heard(self) -> bool:
        """Whether a leader has broadcast something lately, or may still: not after ``_SILENCE_S`` without."""
        return self._subscriber is not None and self._subscriber.state.freshness is not Freshness.SILENT

    async def find_base(self) -> tuple[int, LogEntry] | None:
        """See :func:`.log_base.find_base`. Waits for a leader. Raises what that does."""
        timeout = _FIRST_LEADER_TIMEOUT_S
        while True:
            try:
                await self._client.open(timeout)
                return await find_base(self._client)
            except TimeoutError as error:
                LOGGER.warning("no leader of the replicated log was found: %s", error)
                timeout = self._settings.raft.request_timeout
                await asyncio.sleep(_AGAIN_S)

    def open(self, reader: LogReader, after: int) -> None:
        """Begin to read after this index, when :meth:`find_base` has returned."""
        self._reader = reader
        self._start(self._follow(reader, after))

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Read and append nothing any more. Safe to call twice."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._subscriber is not None:
            await self._subscriber.close()
        await self._client.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _follow(self, reader: LogReader, after: int) -> None:
        try:
            end = await self._end_of_log()
            self._subscriber = self._client.subscribe(after, silence=_SILENCE_S)
            await self._subscriber.start()
            self._start(self.look_at_members())
            is_behind = end > after
            if not is_behind:
                reader.caught_up()
            await self._read(self._subscriber, reader, end, is_behind=is_behind)
        except Exception as error:  # noqa: BLE001 - whatever it is, this server cannot know any more what is valid
            if not self._is_closed:
                reader.log_failed(error)

    async def look_at_members(self) -> None:
        """Whether the log has a leader, and its members are the ones that this server was told of; without a leader,
        that is not known.
        """
        try:
            config = await self._client.config(timeout=_MEMBERS_TIMEOUT_S)
        except RaftError:
            self.has_leader = False
            return
        self.has_leader = True
        members = {each.id: each.url for each in config.peers}
        former, self.warning = self.warning, member_warning(self._settings, members)
        if self.warning not in ("", former):
            LOGGER.warning("%s", self.warning)

    async def _end_of_log(self) -> int:
        """What is committed and applied now. Waits for a leader."""
        while True:
            try:
                return (await self._client.log_info()).last_applied
            except TimeoutError as error:
                LOGGER.warning("no leader of the replicated log was found: %s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _read(self, subscriber: AsyncSubscriber, reader: LogReader, end: int, *, is_behind: bool) -> None:
        while True:
            batch = await subscriber.next_batch()
            if batch is None:
                continue
            if isinstance(batch, SnapshotChunk):
                reader.log_trimmed()
                return
            await self._hand_on(reader, batch)
            if is_behind and batch and batch[-1].index >= end:
                is_behind = False
                reader.caught_up()

    async def _hand_on(self, reader: LogReader, batch: Sequence[RaftEntry]) -> None:
        """Never for longer than a turn at once."""
        entries: list[tuple[int, bytes]] = []
        ends = monotonic() + TURN_S
        for entry in batch:
            if entry.is_state:
                entries.append((entry.index, entry.data))
                self._request_clock.observe(entry.request_id.seconds, system_clock())
            if len(entries) >= 64:
                reader.read(entries)
                entries = []
                if monotonic() >= ends:
                    await asyncio.sleep(0)
                    ends = monotonic() + TURN_S
        reader.read(entries)

    def trim(self, index: int) -> None:
        """Entries up to there are in a snapshot."""
        self._start(self.trim_now(index))

    async def trim_now(self, index: int) -> str:
        """The same. Returns why it was not done; nothing if it was."""
        try:
            await self._client.trim(index)
        except RaftError as error:
            LOGGER.info("the log was not trimmed: %s", error)
            return str(error)
        return ""

    # -- appending ----------------------------------------------------------------------------------------------------

    def append(self, append: Append) -> None:
        """In the order in which it is called, as long as the leader stays."""
        if not self._is_closed:
            self._start(self._append(append))

    async def _append(self, append: Append) -> None:
        request_id = self._request_clock.new_id(append.ticket, system_clock())
        try:
            index = await self._client.append(append.data, request_id, new_id=True, timeout=_APPEND_TIMEOUT_S)
        except RaftError as error:
            LOGGER.info("an append to the replicated log failed: %s", error)
            if isinstance(error, RequestExpiredError) and (advice := self._request_clock.refused(system_clock())):
                LOGGER.warning("%s", advice)
            if not self._is_closed and self._reader is not None:
                self._reader.append_failed(append.ticket)
        else:
            if self._subscriber is not None:
                self._subscriber.expect(index)
