"""What the blocking client asks of its machines: calls, streams and watches, from any thread.

How the callers' threads carry it out between them: :mod:`raft_client.sync.socket_reader`. What ends something
never waits: a garbage collector may call it.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from raft_client import thread_locks
from raft_client.action_runner import BatchSlot, UserCode
from raft_client.clocks import monotonic
from raft_client.core.calls import Call, GetConfig
from raft_client.core.entries_stream import EntriesStream, EntryBatch
from raft_client.core.request_machine import RequestMachine
from raft_client.core.requests import Request
from raft_client.core.stream_runners import StreamMachine, StreamRunner
from raft_client.core.watch_events import WatchCounts, WatchState
from raft_client.core.watches import Watches
from raft_client.errors import BusyError, ClientClosedError, ForkedClientError, RaftError
from raft_client.reports import warn_unclosed
from raft_client.settings import RaftSettings
from raft_client.sync.primitives import BatchWaiter, Listeners, ReadySignal, StreamWaiter, Waiter
from raft_client.sync.socket_reader import SocketReader
from raft_client.thread_locks import Flag
from raft_client.wire.key_changes import EntryCodec

# -- while the client is idle ------------------------------------------------------------------------------------------


class Heartbeat:
    """Runs in a thread, if the settings want one. It ends with the client, also one that is dropped without close()."""

    def __init__(self, settings: RaftSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = weakref.ref(engine)
        self._stopped = Flag()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._settings.heartbeat is not None and self._thread is None:
            thread = threading.Thread(target=self._run, name="raft heartbeat", daemon=True)
            thread_locks.start(thread)
            self._thread = thread

    def stop(self) -> None:
        """It asks nothing more; one question may be under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._settings.heartbeat):
            engine = self._engine()
            if engine is None:
                return
            try:
                with contextlib.suppress(RaftError):  # whoever asks for something will find out by himself
                    engine.call(GetConfig(self._settings.ident), timeout=self._settings.request_timeout)
            finally:
                del engine


# -- the engine --------------------------------------------------------------------------------------------------------


T = TypeVar("T")


class Engine:
    """One client without the user's methods."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self._pid = os.getpid()
        self._seeds = settings.seeds
        self._listeners = listeners
        self._sockets = SocketReader(settings, listeners)
        self._actions = self._sockets.actions
        self._runners = self._actions.runners
        self.machine: RequestMachine = self._actions.machine
        self.user_code: UserCode = self._actions.user_code
        self._heartbeat = Heartbeat(settings, self)

    # -- calls of any thread -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make what calls need. Nothing is connected before the first call."""
        self.check_process()
        self._sockets.run(self._sockets.open)
        self._listeners.open()  # also what an exception has kept from being opened before
        self._heartbeat.start()

    def call(self, call: Call, *, timeout: float | None, target: str | None = None) -> Any:
        """Ask one thing and wait for the answer."""
        self._check_usable()
        waiter, sockets, now = Waiter(), self._sockets, monotonic()
        try:
            sockets.section.enter(waiter, math.inf if timeout is None else now + timeout)
            self.machine.submit(call, waiter, now, timeout=timeout, target=target)
            sockets.perform()
            sockets.section.leave()
            sockets.wait(waiter)
        except BaseException as error:  # KeyboardInterrupt, say; harmless when the request is done
            sockets.abandon(waiter, error)
            if (request := self.machine.owed.get(id(waiter))) is not None:
                self.cancel(request)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    def call_many(self, calls: Iterable[Call | RaftError], *, timeout: float | None, in_flight: int) -> list[Any]:
        """Ask many things, ``in_flight`` at a time; returns a result or an exception for each, in order.

        An exception in ``calls`` stands for one that could not even be made. When ``calls`` raises or the thread is
        interrupted, nobody waits for what is under way.
        """
        self._check_usable()
        batch = BatchWaiter()
        source = iter(calls)
        try:
            while chunk := list(islice(source, in_flight - batch.outstanding)):
                self._submit_chunk(chunk, batch, timeout, in_flight)
                self._sockets.wait(batch)
            self._sockets.run(lambda: batch.expect(0))
            self._sockets.wait(batch)
        except BaseException:
            self._sockets.later(
                lambda: self.machine.cancel_all(
                    lambda waiter: isinstance(waiter, BatchSlot) and waiter.batch is batch, monotonic()
                )
            )
            raise
        return batch.outcomes

    def _submit_chunk(
        self, chunk: list[Call | RaftError], batch: BatchWaiter, timeout: float | None, in_flight: int
    ) -> None:
        def submit() -> None:
            now = monotonic()
            for call in chunk:
                slot = batch.slot()
                if isinstance(call, RaftError):
                    slot.reject(call)
                else:
                    self.machine.submit(call, slot, now, timeout=timeout)
            batch.expect(in_flight - 1)

        self._sockets.run(submit)

    def start(self, call: Call) -> tuple[Request, StreamWaiter]:
        """Begin a call that streams. Its owner waits, takes from the call's queue, and says when it has room again."""
        self._check_usable()
        waiter = StreamWaiter()
        request = self._sockets.run(lambda: self.machine.submit(call, waiter, monotonic(), timeout=None))
        return request, waiter

    def wait(
        self, request: Request, waiter: StreamWaiter, timeout: float | None, deadline: float | None = None
    ) -> None:
        """Until the call's queue has something new, or it is over; after ``timeout`` seconds it is over, too.

        Or, with a ``deadline`` (monotonic seconds), until then: it goes on afterwards.
        """
        timeout = timeout if deadline is None else None
        self._check_usable()

        def stop_time() -> None:
            self.machine.set_timeout(request, None, 0.0)
            waiter.ready = waiter.is_over

        try:
            self._sockets.run(lambda: self.machine.set_timeout(request, timeout, monotonic()))
            self._sockets.wait(waiter, deadline)
        finally:  # after Ctrl-C too: nobody waits, so no time runs
            self._sockets.later(stop_time)

    def take(self, request: Request, call: EntriesStream) -> EntryBatch | None:
        """What the stream has for its reader; and if that made room, the peer is asked for more."""
        self.check_process()

        def take() -> EntryBatch | None:
            now = monotonic()
            batch = call.next_batch(now)
            verdict = call.resume()
            if verdict is not None:
                self._actions.resume(request, verdict, now)
            return batch

        return self._sockets.run(take)

    def abandon(self, request: Request, last: list[bytes]) -> None:
        """As :meth:`cancel`, at the next opportunity, and without a lock: for the garbage collector."""
        self._actions.abandoned.append((request, last))

    def attach(self, machine: StreamMachine) -> StreamRunner:
        """Give a subscription a home. It has been started."""
        self._check_usable()
        return self._sockets.run(lambda: self._runners.add(machine))

    def watch(
        self, codec: EntryCodec, consumer: ReadySignal, make: Callable[[Watches], WatchState]
    ) -> tuple[StreamRunner, Watches, WatchState]:
        """Make a watch in the watches of this codec; ``consumer`` is notified of what it has."""
        self._check_usable()

        def begin() -> tuple[StreamRunner, Watches, WatchState]:
            runner, watches = self._runners.watches(codec, self.user_code.codec)
            runner.touch(monotonic())
            watch = make(watches)
            watch.consumer = consumer
            return runner, watches, watch

        return self._sockets.run(begin)

    def unwatch(self, runner: StreamRunner, watches: Watches, watch: WatchState) -> None:
        """End a watch. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self.user_code.check()

            def end() -> None:
                runner.touch(monotonic())
                watches.cancel(watch)

            self._sockets.later(end)

    def watch_counts(self) -> WatchCounts:
        """Of all watches that have not ended."""
        self.check_process()
        return self._sockets.run(self._runners.watch_counts)

    def use(self, runner: StreamRunner, action: Callable[..., T], *arguments: object) -> T:
        """Do something with a machine that has a home here; the last argument is the time, in monotonic seconds."""
        self.check_process()

        def act() -> T:
            now = monotonic()
            runner.touch(now)
            return action(*arguments, now)

        return self._sockets.run(act)

    def detach(self, runner: StreamRunner) -> None:
        """End a machine. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self.user_code.check()

            def end() -> None:
                runner.machine.close()
                runner.settle(monotonic())
                self._runners.remove(runner)

            self._sockets.later(end)

    def wait_for(self, signal: ReadySignal, timeout: float | None) -> None:
        """Wait until ``signal`` is ready, at most for this many seconds."""
        self._check_usable()
        self._sockets.wait(signal, None if timeout is None else monotonic() + timeout)

    def cancel(self, request: Request, last: list[bytes] | None = None) -> None:
        """Nobody waits for this any longer. Allowed in any process and after the end."""
        if os.getpid() == self._pid and not request.is_done:
            self.user_code.check()
            self._sockets.later(lambda: self.machine.cancel(request, monotonic(), last=last))

    def end(self, request: Request, waiter: StreamWaiter, last: list[bytes]) -> None:
        """As :meth:`cancel`, for a stream: whoever waits for it is woken."""
        if os.getpid() == self._pid:
            self.user_code.check()  # first: a condition that closes entries holds the lock, also when they have ended
            self.cancel(request, last)
            self._sockets.later(lambda: waiter.reject(ClientClosedError("these entries are closed")))

    def later(self, work: Callable[[], None]) -> None:
        """Do this inside: now, or when the thread there leaves. Never waits: a garbage collector may call it."""
        if os.getpid() == self._pid:
            self._sockets.later(work)

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        if os.getpid() != self._pid or self._actions.links is None:
            return
        if not sys.is_finalizing():
            self._sockets.close()  # without waiting: no thread reads any more
        warn_unclosed(self, f"raft client of {','.join(self._seeds)}")

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        if os.getpid() != self._pid:
            return
        self.user_code.check()
        self._heartbeat.stop()
        self._sockets.close()

    @property
    def situation(self) -> str:
        """Whether it is open, and who leads: for the client's repr."""
        return self._actions.situation

    @property
    def is_own(self) -> bool:
        """Whether a finalizer may end what this has: not in a forked child, and not when Python itself ends."""
        return os.getpid() == self._pid and not sys.is_finalizing()

    def check_process(self) -> None:
        """Raise in a forked child, and in a codec or condition."""
        self.user_code.check()
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task)"
            )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid or self._actions.links is None:
            self.check_process()
            self.machine.check_open()
            raise BusyError("the client was not opened: use it as a context manager or call open()")
        self.user_code.check()
