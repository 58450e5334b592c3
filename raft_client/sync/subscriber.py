"""The log as it grows, for one reader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from raft_client.core.entries import Batch
from raft_client.core.hosting import Host
from raft_client.core.subscription import Subscription, SubscriptionState
from raft_client.errors import ClientClosedError
from raft_client.sync.engine import Engine
from raft_client.sync.waiters import Sleeper
from raft_client.wire.entries import LogEntry
from raft_client.wire.snapshots import SnapshotChunk

__all__ = ["Subscriber"]


class Subscriber:
    """An endless iterator of log entries: those that are there, then each new one. Made by ``subscribe()``.

    Use it as a context manager. No index comes twice or out of order, whoever leads; what was missed while the link was
    down is fetched. A reader that is slow pauses the stream, and loses nothing. Iterating blocks until the next entry
    and ends when the subscriber is closed. One reader at a time.
    """

    def __init__(self, engine: Engine, subscription: Subscription) -> None:
        self._engine = engine
        self._subscription = subscription
        self._sleeper = Sleeper()
        self._host: Host | None = None
        self._rest: Iterator[LogEntry | SnapshotChunk] = iter(())
        self._closed = False

    @property
    def state(self) -> SubscriptionState:
        """Fresh, stale by so many entries, or silent: the leader does not broadcast and is being looked for."""
        return self._subscription.state

    @property
    def position(self) -> int:
        """The index up to which everything was received, although the reader may not have taken all of it."""
        return self._subscription.position

    def start(self) -> Self:
        """Begin to listen; returns at once."""
        self._home()
        return self

    def _home(self) -> Host:
        if self._closed:
            raise ClientClosedError("the subscriber is closed")
        if self._host is None:
            self._subscription.start()
            self._host = self._engine.attach(self._subscription)
            self._host.consumers[None] = self._sleeper
        return self._host

    def next_batch(self, timeout: float | None = None) -> Batch | None:
        """The next entries, as many as are there, or a piece of a snapshot; waits for the first one.

        None when nothing came within ``timeout`` seconds (None waits for ever). Raises the error that ended the
        subscription, and :class:`ClientClosedError` once it or its client is closed.
        """
        host = self._home()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._sleeper.ready = False
            batch = self._engine.use(host, self._subscription.next_batch)
            if batch is not None:
                return batch
            if self._subscription.error is not None:
                raise self._subscription.error
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            self._engine.wait_for(self._sleeper, remaining)

    def close(self) -> None:
        """Stop to listen; an iteration in another thread ends. Closing twice is harmless."""
        self._closed = True
        if self._host is not None:
            self._engine.detach(self._host)
            self._sleeper.notify()

    def __iter__(self) -> Iterator[LogEntry | SnapshotChunk]:
        # Faster than a call of __next__ for each entry; what a loop leaves behind is there for the next one.
        yield from self._rest
        while (batch := self._next()) is not None:
            self._rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)
            yield from self._rest

    def __next__(self) -> LogEntry | SnapshotChunk:
        while True:
            for entry in self._rest:
                return entry
            batch = self._next()
            if batch is None:
                raise StopIteration
            self._rest = iter((batch,) if isinstance(batch, SnapshotChunk) else batch)

    def _next(self) -> Batch | None:
        try:
            return self.next_batch()
        except ClientClosedError:
            return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
