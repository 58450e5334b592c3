# Generated from statestore_client/aio/watch.py by tools/twins.py. Edit that, and run "make twins".
"""A watch, for one reader."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

from statestore_client.clocks import monotonic
from statestore_client.core.actions import WatchEvent
from statestore_client.core.arguments import check_wait
from statestore_client.core.event_queue import WatchState, WatchTerms
from statestore_client.errors import BusyError, ClosedError, PickleRefusedError, StateStoreError
from statestore_client.reports import warn_unclosed
from statestore_client.sync.engine import Engine
from statestore_client.sync.primitives import Bell, Mutex, SingleReader, Worker, call_back, check_callback

logger: logging.Logger = logging.getLogger("statestore_client")

T = TypeVar("T")


class _Inbox:
    """What the engine knows of a watch: where it puts the events."""

    __slots__ = ("_arrived", "_state")

    def __init__(self, state: WatchState, arrived: Bell) -> None:
        self._state = state
        self._arrived = arrived

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        """Take an event from the engine."""
        with self._arrived.lock:
            self._arrived.ring()
            return self._state.push(event)


class EventIterator(ABC, Generic[T]):
    """An endless iterator of what happens, which ends when it is closed; entering starts it, and leaving closes it."""

    _not_pickled = "a watch cannot be pickled: send client.settings, and watch where the events are needed"

    @abstractmethod
    def start(self) -> Self:
        """Begin."""

    @abstractmethod
    def get(self, timeout: float | None = None) -> T | None:
        """The next one; None when none came in time. Raises ClosedError once it is closed."""

    @abstractmethod
    def close(self) -> None:
        """End it."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            event = self.get()
        except ClosedError:
            raise StopIteration from None
        assert event is not None  # noqa: S101 - get() without a time-out returns an event or raises
        return event

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(self._not_pickled)


class Watch(EventIterator[WatchEvent]):
    """The changes of one key, in order, each version once; made by :meth:`StateStoreClient.watch`.

    Or of every key that begins with a prefix, made by :meth:`StateStoreClient.watch_prefix`.

    Use it as a context manager, which starts it, and iterate: iteration waits for the next change, ends when the watch
    or its client is closed, and raises what else ended the watch. With a ``callback`` there is nothing to iterate: a
    worker of its own calls it with each event. If the key changed while the link was down, the first event after the
    reconnect carries the latest state, and its ``missed`` tells that there may have been values in between. Events wait
    in a bounded queue; see ``overflow`` in :meth:`StateStoreClient.watch`.
    """

    def __init__(
        self,
        engine: Engine,
        terms: WatchTerms,
        *,
        timeout: float | None,
        callback: Callable[[WatchEvent], object] | None = None,
    ) -> None:
        if callback is not None:
            check_callback("callback", callback)
        self._engine = engine
        self._key = terms.key
        self._options = terms.options
        self._timeout = timeout
        self._callback = callback
        self._worker: Worker | None = None
        self._state = WatchState(limit=terms.limit, overflow=terms.overflow)
        self._arrived = Bell()
        self._inbox = _Inbox(self._state, self._arrived)
        self._starting = Mutex()
        self._reader = SingleReader()

    @property
    def key(self) -> bytes:
        """The watched key, or prefix of keys."""
        return self._key

    def start(self) -> Self:
        """Start watching; returns when no later change can be missed. If it fails, it may be tried again."""
        self._engine.check_process()
        with self._starting:
            if not self._state.is_started and not self._state.is_closed:
                self._start()
            if self._state.is_closed:
                self._engine.unwatch(self._key, self._inbox)  # it may have been closed just before it was watched
            self._state.check_open()
        return self

    def _start(self) -> None:
        with self._arrived.lock:
            self._state.begin()
        try:
            self._engine.watch(self._key, self._inbox, self._options, timeout=self._timeout)
            self._state.is_started = True
            if self._callback is not None and not self._state.is_closed:
                deliver = partial(self._deliver, self._callback)
                self._worker = self._engine.worker(deliver, f"statestore watch {self._key[:40]!r}")
                self._worker.start()
        except BaseException as error:
            if self._worker is not None and not isinstance(error, StateStoreError):
                self.close()  # a signal came in between: the worker runs, or does not, and ends with its watch
            self._worker = None
            self._state.is_started = False
            self._engine.unwatch(self._key, self._inbox)
            raise

    @property
    def error(self) -> StateStoreError | None:
        """What ended the watch, if it was not :meth:`close`; with a callback, look here.

        :class:`ClosedError` when the client was closed. It may be set while the last events wait to be taken.
        """
        return self._state.error

    def get(self, timeout: float | None = None) -> WatchEvent | None:
        """The next event, or None when none came within ``timeout`` seconds (None waits for ever; 0 only looks).

        Raises :class:`ClosedError` once the watch or its client is closed, the error that ended the watch, and
        :class:`BusyError` if another reader waits already, it was not started, or has a ``callback``.
        """
        self._state.check_started()
        if self._worker is not None and not self._worker.is_current:
            raise BusyError("the events of this watch go to its callback")
        with self._reader:
            event = self._next(timeout)
        if self._state.has_room_again():
            self._engine.caught_up(self._inbox)  # without the bell's lock: the engine takes it when it pushes
        return event

    def _next(self, timeout: float | None) -> WatchEvent | None:
        seconds = check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        is_last_look = False
        while True:
            with self._arrived.lock:
                event = self._state.pop()
            if event is not None or is_last_look:
                return event
            self._engine.check_process()
            is_last_look = not self._arrived.wait_until(deadline)

    def close(self) -> None:
        """Stop watching; an iteration in another thread ends. Closing twice is harmless."""
        if not self._state.is_closed:
            self._engine.unwatch(self._key, self._inbox)  # raises where it may not be called
            with self._arrived.lock:
                self._state.is_closed = True
                self._arrived.ring()

    def _deliver(self, callback: Callable[[WatchEvent], object]) -> None:
        """The worker: an event that its callback fails on is logged, and the next one follows."""
        while True:
            try:
                event = self.get()
            except ClosedError:
                return
            except StateStoreError as error:
                logger.error("the watch on %r has ended: %s", self._key, error)
                return
            call_back(f"the callback of the watch on {self._key!r}", callback, event)

    def __del__(self) -> None:
        # End what was dropped, without waiting: the collector calls this in any thread, at any time.
        if not hasattr(self, "_inbox"):
            return  # its arguments were refused
        state, engine = self._state, self._engine
        if state.is_started and not state.is_closed and state.error is None and engine.is_own:
            engine.later(partial(engine.unwatch, self._key, self._inbox))
            warn_unclosed(self, f"watch on {self._key[:80]!r}")

    def __repr__(self) -> str:
        what = "" if self._options.prefix is None else "prefix "
        return f"<{type(self).__name__} {what}{self._key[:80]!r}, {self._state.describe()}>"
