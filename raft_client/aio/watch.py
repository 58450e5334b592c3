"""A watch on the changes in the log, for one reader."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import NoReturn, Self

from raft_client.aio.engine import Engine
from raft_client.aio.primitives import OneReader, ReadySignal, Worker, call_back
from raft_client.clocks import monotonic
from raft_client.core import arguments
from raft_client.core.stream_actions import SubscriptionState
from raft_client.core.watch_events import WatchItem, WatchState
from raft_client.core.watches import Watches
from raft_client.errors import BusyError, ClientClosedError, PickleRefusedError
from raft_client.reports import warn_unclosed
from raft_client.wire.key_changes import EntryCodec
from raft_client.wire.log_entry import Position

logger: logging.Logger = logging.getLogger("raft_client")


class AsyncWatch:
    """An endless iterator of the changes that a watch wants, in the order of the log. Made by ``watch()``.

    Use it as a context manager. Each item is a :class:`WatchEvent`; now and then, on a quiet watch, a
    :class:`Progress`; with ``relist`` also :class:`SnapshotEvent` pieces, and with ``connection_events``
    :class:`Suspended` and :class:`Resumed`. Each has a ``position`` to resume after. Iterating waits until the next
    item and ends when the watch is closed. One reader at a time; all watches of a client share one subscription. With
    a ``callback`` there is nothing to iterate: a worker of its own calls it with each item.
    """

    def __init__(
        self,
        engine: Engine,
        codec: EntryCodec,
        make: Callable[[Watches], WatchState],
        *,
        callback: Callable[[WatchItem], object] | None = None,
    ) -> None:
        self._closed = True  # there is nothing to close yet
        self._engine = engine
        self._signal = ReadySignal()
        self._one_reader = OneReader()
        self._runner, self._watches, self._watch = engine.watch(codec, self._signal, make)
        self._closed = False
        self._worker: Worker | None = None
        if callback is not None:
            self._worker = Worker(partial(self._deliver, callback), f"raft watch {self._watch.id}")
            try:
                self._worker.start()
            except BaseException:
                self._engine.unwatch(self._runner, self._watches, self._watch)  # with it a worker ends that runs
                self._closed = True
                raise

    @property
    def id(self) -> int:
        """The ``watch_id`` of its items; it differs between all watches with one codec."""
        return self._watch.id

    @property
    def started_after(self) -> Position | None:
        """The position after which it hands out events; None until the end of the log is known."""
        return self._watch.started_after

    @property
    def resume_after(self) -> Position | None:
        """A watch that starts after this misses nothing that this one did not hand out. None: not started yet.

        Store it when you are done with the last item, and give it as ``after``.
        """
        return self._watches.resume_after(self._watch)

    @property
    def is_live(self) -> bool:
        """Whether it gets events as they are broadcast; else it is catching up, or has ended."""
        return self._watch.is_live

    @property
    def state(self) -> SubscriptionState:
        """Whether a quiet watch is up to date (fresh), has to catch up (stale), or hears of no leader (silent)."""
        return self._watches.state_of(self._watch)

    @property
    def error(self) -> Exception | None:
        """What ended the watch; with a callback, look here. It may be set while the last items wait to be taken."""
        return self._watch.error

    async def get(self, timeout: float | None = None) -> WatchItem | None:
        """The next item, or None when none came within ``timeout`` seconds (None waits for ever; 0 only looks).

        Raises :class:`ClientClosedError` once the watch or its client is closed, and the error that ended the watch:
        :class:`HistoryOutrunError` when the log was compacted beyond its start, :class:`TermMismatchError` when it is
        another log, :class:`SubscriberOverflowError`; :class:`BusyError` while another reader waits, and when it
        has a ``callback``.
        """
        if self._worker is not None and not self._worker.is_current:
            raise BusyError("the events of this watch go to its callback")
        seconds = arguments.check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        is_last_look = False
        with self._one_reader:
            await self._engine.give_way()  # asyncio only: a thread holds up no other
            while (item := self._next()) is None and not is_last_look:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                await self._engine.wait_for(self._signal, left)
                is_last_look = deadline is not None and monotonic() >= deadline
            return item

    def _next(self) -> WatchItem | None:
        self._signal.ready = False
        item = self._engine.use(self._runner, self._watches.next_item, self._watch)
        if item is None and self._watch.error is not None:
            raise self._watch.error
        return item

    async def close(self) -> None:
        """End the watch; nothing more is handed out, and no callback starts after this.

        An iteration in another task ends. Closing twice is harmless.
        """
        if not self._closed:
            self._engine.unwatch(
                self._runner, self._watches, self._watch
            )  # wakes a reader, or raises where it may not be
            self._closed = True

    async def _deliver(self, callback: Callable[[WatchItem], object]) -> None:
        """The worker: an item that its callback fails on is logged, and the next one follows."""
        while True:
            try:
                item = await self.get()
            except ClientClosedError:
                return
            except Exception as error:  # noqa: BLE001 - also what a condition of the user's raised
                logger.error("the watch %d has ended: %s", self._watch.id, error)
                return
            if self._closed:
                return
            try:
                await call_back(callback, item)
            except Exception:
                logger.exception("the callback of the watch %d failed", self._watch.id)

    def __del__(self) -> None:
        # End what was dropped, without waiting: the collector calls this in any thread, at any time.
        engine = self._engine
        if not self._closed and self._watch.error is None and engine.is_own:
            engine.later(partial(engine.unwatch, self._runner, self._watches, self._watch))
            warn_unclosed(self, f"watch on {self._watch.selector}")

    def __aiter__(self) -> AsyncIterator[WatchItem]:
        return self

    async def __anext__(self) -> WatchItem:
        try:
            item = await self.get()
        except ClientClosedError:
            raise StopAsyncIteration from None
        assert item is not None  # noqa: S101 - get() without a time-out returns an item or raises
        return item

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a watch cannot be pickled: send client.settings and the position, and watch where it is needed"
        )

    def __repr__(self) -> str:
        state = "ended" if self.error is not None else "live" if self.is_live else "catching up"
        return f"<{type(self).__name__} {self.id} {self._watch.selector}, after {self.resume_after}, {state}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
