# Generated from raft_client/aio/readers.py by tools/twins.py. Edit that, and run "make twins".
"""What one reader reads: a stream of log entries, and the log as it grows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from operator import length_hint
from types import TracebackType
from typing import NoReturn, Self

from raft_client.clocks import monotonic
from raft_client.core import arguments
from raft_client.core.entries_stream import Cursor, EntriesStream, EntryBatch
from raft_client.core.requests import Request
from raft_client.core.stream_actions import SubscriptionState
from raft_client.core.stream_runners import StreamRunner
from raft_client.core.subscription import Subscription
from raft_client.errors import BusyError, ClientClosedError, PickleRefusedError, RequestTimeoutError
from raft_client.reports import warn_unclosed
from raft_client.sync.engine import Engine
from raft_client.sync.primitives import OneReader, ReadySignal, StreamWaiter
from raft_client.wire.log_entry import LogEntry, Position, SnapshotChunk


class _Items(ABC):
    """Iterates over what its cursor has, and what :meth:`_enter_next` puts there."""

    _cursor: Cursor

    @abstractmethod
    def _enter_next(self) -> bool:
        """Wait for the next batch; False at the end."""

    def __iter__(self) -> Iterator[LogEntry | SnapshotChunk]:
        # Faster than a call of __next__ for each entry; what a loop leaves is there for the next one.
        is_more = True
        while is_more:
            yield from self._cursor.rest
            is_more = self._enter_next()

    def __next__(self) -> LogEntry | SnapshotChunk:
        while True:
            for entry in self._cursor.rest:
                return entry
            if not self._enter_next():
                raise StopIteration


class Entries(_Items):
    """An iterator of log entries, and of snapshot chunks where the log was compacted. Made by ``entries()``.

    Iterate, or take one with :meth:`get`. Nothing is asked before the first entry is wanted. To stop before the end,
    close it or use it as a context manager: the peer then stops sending. One reader at a time: a second one gets
    :class:`BusyError`.
    """

    def __init__(self, engine: Engine, call: EntriesStream, timeout: float | None) -> None:
        self._engine = engine
        self._call = call
        self._timeout = timeout
        self._request: Request | None = None
        self._waiter: StreamWaiter | None = None
        self._cursor = Cursor()
        self._one_reader = OneReader()
        self._closed = False
        self._ended = False

    @property
    def position(self) -> Position:
        """After the last item that was handed out; store it when you are done with that, and give it as ``after``.

        A snapshot counts when its last chunk was handed out; until then, it is the position before.
        """
        return self._cursor.position(self._call.taken)

    @property
    def is_over(self) -> bool:
        """Whether all was handed out, or an error was raised, or it was closed: nothing more will come."""
        return self._closed or (self._ended and not length_hint(self._cursor.rest))

    def get(self, timeout: float | None = None) -> LogEntry | SnapshotChunk | None:
        """The next item; None at the end (``is_over``), and when none came within ``timeout`` seconds (0 only looks).

        Without ``timeout`` it waits as iterating does: as long as the time-out of ``entries()`` allows. Raises the
        error that ended the stream, :class:`ClientClosedError` once it or its client is closed, and :class:`BusyError`
        while another reader waits.
        """
        arguments.check_wait(timeout)
        for item in self._cursor.rest:
            return item
        return next(self._cursor.rest) if self._enter_next(timeout) else None

    def next_batch(self, timeout: float | None = None) -> EntryBatch | None:
        """As :meth:`get`, but the next entries, as many as came together, or the next chunk of a snapshot.

        For those who handle entries by the thousand: one by one costs more per entry.
        """
        seconds = arguments.check_wait(timeout)
        if self._closed:
            raise ClientClosedError("these entries are closed")
        with self._one_reader:
            return self._cursor.take_rest() or self._next(seconds)

    def _next(self, seconds: float | None) -> EntryBatch | None:
        if self._request is None or self._waiter is None:
            self._request, self._waiter = self._engine.start(self._call)
        deadline = None if seconds is None else monotonic() + seconds
        is_last_look = False
        while (batch := self._engine.take(self._request, self._call)) is None:
            if self._waiter.is_over:
                self._end(self._waiter)
                return None
            if is_last_look:
                return None
            self._engine.wait(self._request, self._waiter, self._timeout, deadline)
            is_last_look = deadline is not None and monotonic() >= deadline
        return batch

    def _enter_next(self, timeout: float | None = None) -> bool:
        before = self._call.taken
        batch = self.next_batch(timeout)
        if batch is not None:
            self._cursor.enter(batch, before)
        return batch is not None

    def close(self) -> None:
        """Stop, and tell the peer so. Entries that it has sent already are dropped.

        A read in another thread ends with :class:`ClientClosedError`.
        """
        if self._request is not None and self._waiter is not None:
            self._engine.end(self._request, self._waiter, self._call.stop())  # raises where it may not be called
        self._closed = True

    def _end(self, waiter: StreamWaiter) -> None:
        self._ended = True
        self._closed = waiter.error is not None
        if waiter.error is not None:
            raise waiter.error

    def __del__(self) -> None:
        # A ``break`` leaves the stream open. The garbage collector may run at any time, so this only takes note.
        if self._request is not None and not self._request.is_done:
            self._engine.abandon(self._request, self._call.stop())
            if self._engine.is_own:
                warn_unclosed(self, f"entries after {self.position}")

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a stream of entries cannot be pickled: send client.settings and the index, and read where it is needed"
        )

    def __repr__(self) -> str:
        if self._closed or self._ended:
            state = "closed" if self._closed else "ended"
        else:
            state = "not started" if self._request is None else "open"
        return f"<{type(self).__name__} after {self.position}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


# -- the log as it grows -----------------------------------------------------------------------------------------------


class Subscriber(_Items):
    """An endless iterator of log entries: those that are there, then each new one. Made by ``subscribe()``.

    Use it as a context manager. No index comes twice or out of order, whoever leads; what was missed while the link was
    down is fetched. A reader that is slow pauses the stream, and loses nothing. Iterating blocks until the next entry
    and ends when the subscriber is closed. One reader at a time.
    """

    def __init__(self, engine: Engine, subscription: Subscription, timeout: float) -> None:
        self._engine = engine
        self._subscription = subscription
        self._timeout = timeout
        self._signal = ReadySignal()
        self._runner: StreamRunner | None = None
        self._cursor = Cursor()
        self._one_reader = OneReader()
        self._closed = False

    @property
    def state(self) -> SubscriptionState:
        """Fresh, stale by some entries, or silent: the leader does not broadcast and is being looked for."""
        return self._subscription.state

    @property
    def position(self) -> Position:
        """After the last item that was handed out; store it when you are done with that, and give it as ``after``.

        A snapshot counts when its last chunk was handed out; until then, it is the position before. Without ``after``
        there is none before :meth:`start` has returned, and :class:`BusyError` is raised.
        """
        if not self._subscription.is_placed:
            raise BusyError("the subscriber was not started, and so it has no position yet: enter it, or call start()")
        return self._cursor.position(self._subscription.taken)

    def expect(self, index: Position | int) -> None:
        """There is an entry with this index, which an append has answered: do not wait long for its broadcast.

        Broadcasts can get lost, and the next one that shows the gap may be the leader's heartbeat. An entry that is
        expected is read from the log 0.1 s later if it was not broadcast. An index that does not exist is asked for
        again and again.
        """
        expected = Position.of(index).index
        self._engine.use(self._home(), self._subscription.expect, expected)

    def start(self) -> Self:
        """Begin to listen; returns at once, but without ``after`` when it is known where the log ends.

        Whatever is appended after this has returned is handed out. Raises :class:`RequestTimeoutError` when no leader
        tells the end of the log within the setting ``request_timeout``.
        """
        runner = self._home()
        if not self._subscription.is_placed:
            with self._one_reader:
                self._find_start(runner, monotonic() + self._timeout)
        return self

    def _find_start(self, runner: StreamRunner, deadline: float) -> None:
        is_last_look = False
        while True:
            self._signal.ready = False
            self._engine.use(runner, lambda _now: None)
            if self._subscription.error is not None:
                raise self._subscription.error
            if self._subscription.is_placed:
                return
            if is_last_look:
                raise RequestTimeoutError(f"no leader said where the log ends {arguments.within(self._timeout)}")
            self._engine.wait_for(self._signal, max(0.0, deadline - monotonic()))
            is_last_look = monotonic() >= deadline

    def _home(self) -> StreamRunner:
        if self._closed:
            raise ClientClosedError("the subscriber is closed")
        if self._runner is None:
            self._subscription.consumer = self._signal
            self._subscription.start(monotonic())
            self._runner = self._engine.attach(self._subscription)
        return self._runner

    def get(self, timeout: float | None = None) -> LogEntry | SnapshotChunk | None:
        """The next item, or None when none came within ``timeout`` seconds (None waits for ever; 0 only looks).

        Raises the error that ended the subscription, :class:`ClientClosedError` once it or its client is closed, and
        :class:`BusyError` while another reader waits.
        """
        arguments.check_wait(timeout)
        for item in self._cursor.rest:
            return item
        return next(self._cursor.rest) if self._enter(timeout) else None

    def next_batch(self, timeout: float | None = None) -> EntryBatch | None:
        """As :meth:`get`, but the next entries, as many as are there, or the next chunk of a snapshot.

        For those who handle entries by the thousand: one by one costs more per entry.
        """
        seconds = arguments.check_wait(timeout)
        runner = self._home()
        deadline = None if seconds is None else monotonic() + seconds
        is_last_look = False
        with self._one_reader:
            while (batch := self._look(runner)) is None and not is_last_look:
                left = None if deadline is None else max(0.0, deadline - monotonic())
                self._engine.wait_for(self._signal, left)
                is_last_look = deadline is not None and monotonic() >= deadline
            return batch

    def _look(self, runner: StreamRunner) -> EntryBatch | None:
        if (rest := self._cursor.take_rest()) is not None:
            return rest
        self._signal.ready = False
        batch = self._engine.use(runner, self._subscription.next_batch)
        if batch is None and self._subscription.error is not None:
            raise self._subscription.error
        return batch

    def close(self) -> None:
        """Stop listening; an iteration in another thread ends. Closing twice is harmless."""
        if self._runner is not None:
            self._engine.detach(self._runner)  # which wakes a reader, or raises where it may not be called
        self._closed = True

    def _enter_next(self) -> bool:
        try:
            return self._enter(None)
        except ClientClosedError:
            return False

    def _enter(self, timeout: float | None) -> bool:
        before = self._subscription.taken
        batch = self.next_batch(timeout)
        if batch is not None:
            self._cursor.enter(batch, before)
        return batch is not None

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "a subscription cannot be pickled: send client.settings, and subscribe where it is needed"
        )

    def __del__(self) -> None:
        # End what was dropped, without waiting: the collector calls this in any thread, at any time.
        runner, engine = self._runner, self._engine
        if runner is not None and not self._closed and self._subscription.error is None and engine.is_own:
            engine.later(partial(engine.detach, runner))
            warn_unclosed(self, repr(self))

    def __repr__(self) -> str:
        if self._closed or self._subscription.error is not None:
            state = "closed"
        else:
            state = "not started" if self._runner is None else str(self.state.freshness)
        place = f"after {self.position}" if self._subscription.is_placed else "from now"
        return f"<{type(self).__name__} {place}, {state}>"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
