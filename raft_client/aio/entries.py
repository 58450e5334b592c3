"""A stream of log entries for one reader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from raft_client.aio.engine import Engine
from raft_client.aio.waiters import StreamWaiter
from raft_client.core.entries import Batch, EntriesCall
from raft_client.core.request import Request
from raft_client.errors import ClientClosedError
from raft_client.wire.entries import LogEntry
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["Entries"]


class Entries:
    """An iterator of log entries, and of snapshot chunks where the log was compacted. Made by ``entries()``.

    Nothing is asked before the first entry is wanted. To stop before the end, close it or use it as a context manager:
    the peer then stops to send. One reader at a time.
    """

    def __init__(self, engine: Engine, call: EntriesCall, timeout: float | None) -> None:
        self._engine = engine
        self._call = call
        self._timeout = timeout
        self._request: Request | None = None
        self._waiter: StreamWaiter | None = None
        self._rest: Iterator[LogEntry | SnapshotChunk] = iter(())
        self._closed = False

    @property
    def position(self) -> int:
        """The index up to which everything has been received; resume after it."""
        return self._call.position

    async def next_batch(self) -> Batch | None:
        """The next entries, as many as came together, or the next chunk of a snapshot; None at the end.

        For those who handle entries by the thousand: an iterator costs more per entry.
        """
        if self._closed:
            raise ClientClosedError("these entries are closed")
        if self._request is None or self._waiter is None:
            self._request, self._waiter = self._engine.start(self._call)
        while (batch := self._engine.take(self._request, self._call)) is None:
            if self._waiter.is_over:
                self._end(self._waiter)
                return None
            await self._engine.wait(self._request, self._waiter, self._timeout)
        return batch

    async def close(self) -> None:
        """Stop. The peer is told; what it has sent already is dropped."""
        self._closed = True
        if self._request is not None:
            self._engine.cancel(self._request, self._call.stop())

    def _end(self, waiter: StreamWaiter) -> None:
        self._closed = waiter.error is not None
        if waiter.error is not None:
            raise waiter.error

    async def __aiter__(self) -> AsyncIterator[LogEntry | SnapshotChunk]:
        # Faster than a call of __anext__ for each entry; what a loop leaves behind is there for the next one.
        for entry in self._rest:
            yield entry
        while (batch := await self.next_batch()) is not None:
            self._rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)
            for entry in self._rest:
                yield entry

    async def __anext__(self) -> LogEntry | SnapshotChunk:
        while True:
            for entry in self._rest:
                return entry
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)

    def __del__(self) -> None:
        # After a break out of a loop nobody closes it; the garbage collector may come at any time, so: not here.
        if self._request is not None and not self._request.is_done:
            self._engine.abandon(self._request, self._call.stop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
