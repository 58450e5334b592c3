"""A stream of log entries for one reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from raft_client.aio.engine import Engine
from raft_client.aio.waiters import OneReader, StreamWaiter
from raft_client.core.cursor import Cursor
from raft_client.core.entries import Batch, EntriesCall
from raft_client.core.request import Request
from raft_client.errors import ClientClosedError
from raft_client.wire.entries import LogEntry
from raft_client.wire.positions import Position
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["AsyncEntries"]


class AsyncEntries:
    """An iterator of log entries, and of snapshot chunks where the log was compacted. Made by ``entries()``.

    Nothing is asked before the first entry is wanted. To stop before the end, close it or use it as a context manager:
    the peer then stops sending. One reader at a time: a second one gets :class:`BusyError`.
    """

    def __init__(self, engine: Engine, call: EntriesCall, timeout: float | None) -> None:
        self._engine = engine
        self._call = call
        self._timeout = timeout
        self._request: Request | None = None
        self._waiter: StreamWaiter | None = None
        self._cursor = Cursor()
        self._one_reader = OneReader()
        self._closed = False

    @property
    def position(self) -> Position:
        """Behind the last item that was handed out; store it when you are done with that, and give it as ``after``.

        A snapshot counts when its last chunk was handed out; until then, it is the position before.
        """
        return self._cursor.position(self._call.taken)

    async def next_batch(self) -> Batch | None:
        """The next entries, as many as came together, or the next chunk of a snapshot; None at the end.

        For those who handle entries by the thousand: an iterator costs more per entry.
        """
        if self._closed:
            raise ClientClosedError("these entries are closed")
        with self._one_reader:
            await self._engine.give_way()
            return self._cursor.take_rest() or await self._next()

    async def _next(self) -> Batch | None:
        if self._request is None or self._waiter is None:
            self._request, self._waiter = self._engine.start(self._call)
        while (batch := self._engine.take(self._request, self._call)) is None:
            if self._waiter.is_over:
                self._end(self._waiter)
                return None
            await self._engine.wait(self._request, self._waiter, self._timeout)
        return batch

    async def _enter_next(self) -> bool:
        before = self._call.taken
        batch = await self.next_batch()
        if batch is not None:
            self._cursor.enter(batch, before)
        return batch is not None

    async def close(self) -> None:
        """Stop. The peer is told; what it has sent already is dropped.

        A read in another task ends with :class:`ClientClosedError`.
        """
        self._closed = True
        if self._request is not None and self._waiter is not None:
            self._engine.end(self._request, self._waiter, self._call.stop())

    def _end(self, waiter: StreamWaiter) -> None:
        self._closed = waiter.error is not None
        if waiter.error is not None:
            raise waiter.error

    async def __aiter__(self) -> AsyncIterator[LogEntry | SnapshotChunk]:
        # Faster than a call of __anext__ for each entry; what a loop leaves behind is there for the next one.
        for entry in self._cursor.rest:
            yield entry
        while await self._enter_next():
            for entry in self._cursor.rest:
                yield entry

    async def __anext__(self) -> LogEntry | SnapshotChunk:
        while True:
            for entry in self._cursor.rest:
                return entry
            if not await self._enter_next():
                raise StopAsyncIteration

    def __del__(self) -> None:
        # After a break out of a loop nobody closes it; the garbage collector may come at any time, so: not here.
        if self._request is not None and not self._request.is_done:
            self._engine.abandon(self._request, self._call.stop())

    def __repr__(self) -> str:
        if self._closed:
            state = "closed"
        elif self._waiter is None:
            state = "not started"
        else:
            state = "ended" if self._waiter.is_over else "open"
        return f"<{type(self).__name__} after {self.position}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
