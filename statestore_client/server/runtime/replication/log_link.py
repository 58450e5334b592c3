"""The replicated log through a ØMQ Raft client: entries in order, and appends that are tried until they are in.

A log has entries of its peers as well, such as new leaders' marks; those of servers are the ones that clients append.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Protocol

from raft_client import (
    AsyncRaftClient,
    Freshness,
    RaftError,
    RequestExpiredError,
    RequestId,
    SnapshotChunk,
    SnapshotPolicy,
)
from raft_client import LogEntry as RaftEntry
from statestore_client.clocks import monotonic
from statestore_client.errors import ReplicatedLogError
from statestore_client.server.cluster.entries import Part, Snapshot, decode
from statestore_client.server.runtime.clock import system_clock
from statestore_client.server.runtime.fairness import SLICE_S
from statestore_client.server.runtime.observability.logs import LOGGER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from raft_client import AsyncSubscriber
    from statestore_client.server.cluster.clock_skew import ClockSkew
    from statestore_client.server.cluster.entries import Life, LogEntry
    from statestore_client.server.cluster.interface import Append
    from statestore_client.server.runtime.replication.settings import ReplicaSettings
    from statestore_client.wire.instant import Instant

# -- log base ----------------------------------------------------------------------------------------------------------
#
# Where to begin to read a log: at its newest complete snapshot, or at its beginning.
#
# Each entry names the newest complete snapshot that its writer knew, so the last entries tell. If all servers stopped
# right after the last part of a snapshot none does; then the whole log is looked through, which was trimmed before.


_TAIL: Final = 256


async def find_base(client: AsyncRaftClient) -> tuple[int, LogEntry] | None:
    """The first entry of that snapshot, with its index; None for a log that is read from its beginning.

    Raises UnreadableLogError for a log of something else, ReplicatedLogError for one that has lost what was in it, and
    what the client raises.
    """
    log = await client.log_info()
    end, first = log.last_applied, max(1, log.first_index)
    base = 0
    async for _, entry in entries_of_servers(client, max(first - 1, end - _TAIL), end):
        base = max(base, entry.base)
    if not base and first > 1:
        base = await _search(client, first - 1, end)
    if not base:
        return None
    async with aclosing(entries_of_servers(client, base - 1, base)) as entries:
        async for at, entry in entries:
            return at, entry
    raise ReplicatedLogError(f"the snapshot at {base} of the log is gone: the log was trimmed by something else")


async def entries_of_servers(
    client: AsyncRaftClient, after: int, end: int
) -> AsyncGenerator[tuple[int, LogEntry], None]:
    """Those that servers have appended, up to ``end``. Raises what the client raises, and UnreadableLogError."""
    if after >= end:
        return
    async with client.entries(after, end - after, snapshot=SnapshotPolicy.SKIP) as items:
        async for item in items:
            if isinstance(item, RaftEntry) and item.is_state:
                yield item.index, decode(item.data)


async def _search(client: AsyncRaftClient, after: int, end: int) -> int:
    """The last snapshot all of whose parts are there: only the writer of a valid one comes to its end."""
    base = 0
    begun: dict[tuple[Life, int], tuple[int, int]] = {}  # where, and the parts so far
    async for at, entry in entries_of_servers(client, after, end):
        body = entry.body
        if isinstance(body, Snapshot):
            begun[entry.life, body.index] = (at, 0)
        elif isinstance(body, Part):
            place, parts = begun.get((entry.life, body.index), (0, -1))
            if entry.seq == parts:
                begun[entry.life, body.index] = (place, parts + 1)
                base = place if body.is_end else base
    if not base:
        raise ReplicatedLogError("the log was trimmed, and no snapshot in it says what there was")
    return base


# -- log members -------------------------------------------------------------------------------------------------------
#
# Whether what a server was told of the log's peers is what the log says.
#
# The list of ``--cluster`` counts when a log begins; later the log says who its members are. A server with an old list
# works, until the peers that are in both are lost.


def member_warning(settings: ReplicaSettings, members: Mapping[str, str]) -> str:
    """What to put right at this server, whose log has these ``members``, ids with URLs. Empty if there is nothing."""
    if settings.peer is not None:
        name, faults = "--cluster", "; ".join(_differences(dict(settings.peer.members), members))
    elif settings.log_keys is not None:
        known = dict(settings.log_keys.peers)
        strangers = (f"it has no key of {each}, a member at {url}" for each, url in members.items() if url not in known)
        name, faults = "--log", "; ".join(strangers)
    else:
        return ""  # any one that is up names the others
    return f"{name} is not what the log says: {faults}. Start this server with the members of the log" if faults else ""


def _differences(told: Mapping[str, str], members: Mapping[str, str]) -> Iterator[str]:
    for each, url in told.items():
        if each not in members:
            yield f"it names {each}, which is not a member"
        elif members[each] != url:
            yield f"it has {each} at {url}, which is at {members[each]}"
    for each, url in members.items():
        if each not in told:
            yield f"it lacks {each}, a member at {url}"


# -- request clock -----------------------------------------------------------------------------------------------------
#
# Request ids of a server whose wall clock is wrong.
#
# The log's peers take an id only if its time is not more than a quarter of an hour in their future, or hours in their
# past. A server with such a clock could append nothing, and would never take over. So once an id was refused, its ids
# have the time of the log: that of the newest id in it, and what has passed since.


_NAMESPACE_BYTES = 16


class RequestClock:
    """Of one life."""

    def __init__(self) -> None:
        self._namespace = secrets.token_bytes(_NAMESPACE_BYTES)
        self._is_off = False
        self._newest: tuple[int, float] | None = None  # the time of an id, and when its entry came

    def observe(self, made_s: int, now: Instant) -> None:
        """An entry has arrived whose id has this time, in seconds since 1970."""
        self._newest = made_s, now.monotonic

    def refused(self, now: Instant) -> str:
        """An id was. Returns what to tell people, at the first time."""
        if self._is_off:
            return ""
        self._is_off = True
        known = self._seconds(now)
        if known is None:
            return "the log's peers refuse this server's clock, and there is nothing in the log to go by: set it right"
        off_s = now.wall_ms // 1000 - known
        direction = "ahead of" if off_s > 0 else "behind"
        return f"the wall clock is {abs(off_s)} s {direction} that of the log, which this server goes by: set it right"

    def new_id(self, number: int, now: Instant) -> RequestId | None:
        """For the append of this number, which no other has; None for one by the wall clock."""
        seconds = self._seconds(now) if self._is_off else None
        return None if seconds is None else RequestId.derive(self._namespace, number, seconds=seconds)

    def _seconds(self, now: Instant) -> int | None:
        if self._newest is None:
            return None
        made_s, came_at = self._newest
        return int(made_s + now.monotonic - came_at)


# -- log link ----------------------------------------------------------------------------------------------------------


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

    def __init__(self, settings: ReplicaSettings, skew: ClockSkew) -> None:
        """``skew`` is told of the clocks of those that write."""
        self._settings = settings
        self._skew = skew
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
        """See :func:`find_base`. Waits for a leader. Raises what that does."""
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
            await self._hand_on(reader, batch, is_new=not is_behind)
            if is_behind and batch and batch[-1].index >= end:
                is_behind = False
                reader.caught_up()

    async def _hand_on(self, reader: LogReader, batch: Sequence[RaftEntry], *, is_new: bool) -> None:
        """Never for longer than a turn at once. ``is_new``: they were made a moment ago."""
        entries: list[tuple[int, bytes]] = []
        ends = monotonic() + SLICE_S
        for entry in batch:
            if entry.is_state:
                entries.append((entry.index, entry.data))
                now = system_clock()
                self._request_clock.observe(entry.request_id.seconds, now)
                if is_new:
                    self._skew.observe(entry.request_id.seconds, now)
            if len(entries) >= 64:
                reader.read(entries)
                entries = []
                if monotonic() >= ends:
                    await asyncio.sleep(0)
                    ends = monotonic() + SLICE_S
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
