"""A watch on the changes in the log, for one reader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from raft_client.core.hosting import Host
from raft_client.core.hub import WatchHub
from raft_client.core.selectors import Selector
from raft_client.core.watch import Overflow, WatchItem
from raft_client.core.watch import Watch as WatchOfHub
from raft_client.errors import ClientClosedError
from raft_client.sync.engine import Engine
from raft_client.sync.waiters import Sleeper

__all__ = ["Watch"]


class Watch:
    """An endless iterator of the changes that a watch wants, in the order of the log. Made by ``watch()``.

    Use it as a context manager. Each item is a :class:`WatchEvent`; now and then, on a quiet watch, a
    :class:`Progress`; with ``relist`` also :class:`SnapshotEvent` pieces. Iterating blocks until the next item and ends
    when the watch is closed. One reader at a time; all watches of a client share one subscription.
    """

    def __init__(
        self, engine: Engine, host: Host, hub: WatchHub, selector: Selector, *, after: int | None, overflow: Overflow,
        relist: bool,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._host = host
        self._hub = hub
        self._sleeper = Sleeper()
        self._watch: WatchOfHub = engine.use(
            host, lambda _now: hub.watch(selector, after=after, overflow=overflow, relist=relist)
        )
        host.consumers[self._watch] = self._sleeper
        self._closed = False

    @property
    def started_after(self) -> int | None:
        """The index after which it hands out events; None until the end of the log is known."""
        return self._watch.started_after

    @property
    def resume_after(self) -> int | None:
        """A watch that starts after this index misses nothing that this one did not hand out. None: not started yet."""
        return self._hub.resume_after(self._watch)

    @property
    def is_live(self) -> bool:
        """Whether it gets events as they are broadcast; else it is catching up, or has ended."""
        return self._watch.is_live

    def get(self, timeout: float | None = None) -> WatchItem | None:
        """The next item, or None when none came within ``timeout`` seconds (None waits for ever).

        Raises :class:`ClientClosedError` once the watch or its client is closed, and the error that ended the watch:
        :class:`HistoryOutrunError` when the log was compacted beyond its start.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._sleeper.ready = False
            item = self._engine.use(self._host, lambda now: self._hub.next_item(self._watch, now))
            if item is not None:
                return item
            if self._watch.error is not None:
                raise self._watch.error
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return None
            self._engine.wait_for(self._sleeper, remaining)

    def close(self) -> None:
        """End the watch; nothing more is handed out. An iteration in another thread ends. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._engine.use(self._host, lambda _now: self._hub.cancel(self._watch))
            self._host.consumers.pop(self._watch, None)
            self._sleeper.notify()

    def __iter__(self) -> Iterator[WatchItem]:
        return self

    def __next__(self) -> WatchItem:
        try:
            item = self.get()
        except ClientClosedError:
            raise StopIteration from None
        assert item is not None  # noqa: S101 - get() without a time-out returns an item or raises
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
