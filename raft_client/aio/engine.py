"""What the asyncio client asks of its machines: calls, streams and watches, from any task.

It belongs to the loop and the process that opened it; elsewhere every call raises.

Rules:

* Everything happens in the loop's thread, and between two awaits; so there is no lock.
* Whatever touches a socket empties it before returning to the loop (see :mod:`raft_client.links`).
* While nothing waits there is no timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar

from raft_client.action_runner import ActionRunner, BatchSlot, UserCode
from raft_client.aio.primitives import BatchWaiter, Listeners, ReadySignal, StreamWaiter, Waiter
from raft_client.clocks import monotonic
from raft_client.core.calls import Call, GetConfig
from raft_client.core.entries_stream import EntriesStream, EntryBatch
from raft_client.core.request_machine import RequestMachine
from raft_client.core.requests import Request
from raft_client.core.stream_runners import StreamMachine, StreamRunner
from raft_client.core.watch_events import WatchCounts, WatchState
from raft_client.core.watches import Watches
from raft_client.errors import BusyError, ClientClosedError, ForkedClientError, RaftError
from raft_client.links import Link
from raft_client.reports import warn_unclosed
from raft_client.settings import RaftSettings
from raft_client.wire.key_changes import EntryCodec

# -- sockets and timers ------------------------------------------------------------------------------------------------


#: The longest time (seconds) for which a reader that need not wait keeps the event loop to itself.
_TURN_S: Final = 0.005


class SocketReader:
    """The sockets of one client in its event loop."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self.actions: ActionRunner = ActionRunner(settings, listeners.note)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # when it looks; inf while there is none
        self._turned_at = -math.inf  # when the loop was seen to turn

    def open(self) -> bool:
        """Make what waiting needs; False when it is there."""
        self.actions.machine.check_open()
        if self.actions.links is not None:
            return False
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise BusyError(
                "no asyncio event loop runs here; under trio, use RaftClient in a thread (trio.to_thread.run_sync), or "
                "run the program on asyncio"
            ) from None
        if type(self.loop).add_reader is asyncio.AbstractEventLoop.add_reader:  # not implemented: on Windows
            name, self.loop = type(self.loop).__name__, None
            raise BusyError(
                f"{name} has no add_reader(), which sockets of ØMQ need; run the program with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
            )
        self.actions.open(self._watch, self._unwatch)
        return True

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        self.actions.close_machines(monotonic())
        self.perform()
        if self._timer is not None:
            self._timer.cancel()
        self.actions.close_links()

    @property
    def is_stranded(self) -> bool:
        """Whether its loop is closed: nothing can be sent or awaited any more."""
        return self.loop is not None and self.loop.is_closed()

    async def give_way(self) -> None:
        """Let others have a turn, if the loop made none for long: for readers that always find something."""
        if monotonic() - self._turned_at > _TURN_S:
            await asyncio.sleep(0)
            self._turned_at = monotonic()

    def perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        self.actions.perform()
        self.set_timer()

    def _on_readable(self, descriptor: int, link: Link) -> None:
        """A descriptor is readable: that of a link's messages, or that of its end."""
        now = self._turned_at = monotonic()
        actions = self.actions
        actions.readable(descriptor, link, now)
        if actions.machine.actions or actions.runners.members:
            self.perform()
        elif actions.machine.check_at < self._timer_at:  # not so after "accepted"
            self.set_timer()

    def _watch(self, link: Link) -> None:
        if self.loop is not None and not self.loop.is_closed():
            for descriptor in (link.descriptor, link.monitored):
                self.loop.add_reader(descriptor, self._on_readable, descriptor, link)

    def _unwatch(self, link: Link) -> None:
        self.actions.forget(link)
        if self.loop is not None and not self.loop.is_closed():
            for descriptor in (link.descriptor, link.monitored):
                self.loop.remove_reader(descriptor)

    # -- time ----------------------------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """Look when the machines have something to do, or before."""
        machine = self.actions.machine
        if self._timer_at <= machine.check_at and not (machine.is_searching or self.actions.runners.members):
            return  # as after every append: the timer looks at the right moment, or before
        deadline = self.actions.next_deadline()
        if deadline is None or self.loop is None or self.loop.is_closed() or self.actions.links is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return  # it will look again then
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_later(max(0.0, deadline - monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.actions.tick(monotonic())
        self.perform()


# -- while the client is idle ------------------------------------------------------------------------------------------


class Heartbeat:
    """Runs in a task, if the settings want one. It ends with the client, also one that is dropped without close()."""

    def __init__(self, settings: RaftSettings, engine: Engine) -> None:
        self._settings = settings
        self._engine = weakref.ref(engine)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.heartbeat is not None and self._task is None:
            self._task = asyncio.Task(
                self._run(self._settings.heartbeat), loop=asyncio.get_running_loop(), name="raft heartbeat"
            )

    def stop(self) -> None:
        """End the questions."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()

    async def _run(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            engine = self._engine()
            if engine is None:
                return
            try:
                with contextlib.suppress(RaftError):  # the next call will find that out
                    await engine.call(GetConfig(self._settings.ident), timeout=self._settings.request_timeout)
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

    # -- calls of any task ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make what calls need. Nothing is connected before the first call."""
        self.check_process()
        if self._sockets.open():
            self._listeners.open()
            self._heartbeat.start()

    async def call(self, call: Call, *, timeout: float | None, target: str | None = None) -> Any:
        """Ask one thing and wait for the answer."""
        waiter = Waiter(self._usable_loop())
        request = self.machine.submit(call, waiter, monotonic(), timeout=timeout, target=target)
        self._sockets.perform()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self.cancel(request)  # harmless when it is done
            raise

    async def call_many(self, calls: Iterable[Call | RaftError], *, timeout: float | None, in_flight: int) -> list[Any]:
        """Ask many things, ``in_flight`` at a time; returns a result or an exception for each, in order.

        An exception in ``calls`` stands for one that could not even be made. When ``calls`` raises or the task is
        cancelled, nobody waits for what is under way.
        """
        self._usable_loop()
        batch = BatchWaiter()
        source = iter(calls)
        try:
            while chunk := list(islice(source, in_flight - batch.outstanding)):
                self._submit_chunk(chunk, batch, timeout, in_flight)
                await batch.wait()
            batch.expect(0)
            await batch.wait()
        except BaseException:
            self.machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, monotonic())
            self._sockets.perform()
            raise
        return batch.outcomes

    def _submit_chunk(
        self, chunk: list[Call | RaftError], batch: BatchWaiter, timeout: float | None, in_flight: int
    ) -> None:
        now = monotonic()
        for call in chunk:
            slot = batch.slot()
            if isinstance(call, RaftError):
                slot.reject(call)
            else:
                self.machine.submit(call, slot, now, timeout=timeout)
        batch.expect(in_flight - 1)
        self._sockets.perform()

    def start(self, call: Call) -> tuple[Request, StreamWaiter]:
        """Begin a call that streams. Its owner waits, takes from the call's queue, and says when it has room again."""
        self._usable_loop()
        waiter = StreamWaiter()
        request = self.machine.submit(call, waiter, monotonic(), timeout=None)
        self._sockets.perform()
        return request, waiter

    async def wait(
        self, request: Request, waiter: StreamWaiter, timeout: float | None, deadline: float | None = None
    ) -> None:
        """Until the call's queue has something new, or it is over; after ``timeout`` seconds it is over, too.

        Or, with a ``deadline`` (monotonic seconds), until then: it goes on afterwards.
        """
        timeout = timeout if deadline is None else None
        self._usable_loop()
        self.machine.set_timeout(request, timeout, monotonic())
        self._sockets.set_timer()
        try:
            await waiter.wait(None if deadline is None else max(0.0, deadline - monotonic()))
        finally:
            self.machine.set_timeout(request, None, 0.0)
            waiter.ready = waiter.is_over

    def take(self, request: Request, call: EntriesStream) -> EntryBatch | None:
        """What the stream has for its reader; and if that made room, the peer is asked for more."""
        self._check_loop()
        now = monotonic()
        batch = call.next_batch(now)
        verdict = call.resume()
        if verdict is not None:
            self._actions.resume(request, verdict, now)
            self._sockets.perform()
        return batch

    def abandon(self, request: Request, last: list[bytes]) -> None:
        """As :meth:`cancel`, at the next opportunity: for the garbage collector."""
        self._actions.abandoned.append((request, last))

    def attach(self, machine: StreamMachine) -> StreamRunner:
        """Give a subscription a home. It has been started."""
        self._usable_loop()
        runner = self._runners.add(machine)
        self._sockets.perform()
        return runner

    def watch(
        self, codec: EntryCodec, consumer: ReadySignal, make: Callable[[Watches], WatchState]
    ) -> tuple[StreamRunner, Watches, WatchState]:
        """Make a watch in the watches of this codec; ``consumer`` is notified of what it has."""
        self._usable_loop()
        runner, watches = self._runners.watches(codec, self.user_code.codec)
        runner.touch(monotonic())
        watch = make(watches)
        watch.consumer = consumer
        self._sockets.perform()
        return runner, watches, watch

    def unwatch(self, runner: StreamRunner, watches: Watches, watch: WatchState) -> None:
        """End a watch. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self._check_loop()
            runner.touch(monotonic())
            watches.cancel(watch)
            self._sockets.perform()

    def watch_counts(self) -> WatchCounts:
        """Of all watches that have not ended."""
        self.check_process()
        return self._runners.watch_counts()

    def use(self, runner: StreamRunner, action: Callable[..., T], *arguments: object) -> T:
        """Do something with a machine that has a home here; the last argument is the time, in monotonic seconds."""
        self._check_loop()
        now = monotonic()
        runner.touch(now)
        result = action(*arguments, now)
        self._sockets.perform()
        return result

    def detach(self, runner: StreamRunner) -> None:
        """End a machine. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self._check_loop()
            runner.machine.close()
            runner.settle(monotonic())
            self._runners.remove(runner)
            self._sockets.perform()

    async def wait_for(self, signal: ReadySignal, timeout: float | None) -> None:
        """Wait until ``signal`` is ready, at most for this many seconds; with 0 the loop makes one turn."""
        self._usable_loop()
        await signal.wait(timeout)

    async def give_way(self) -> None:
        """Let others have a turn, if the loop made none for long: for readers who always find something."""
        await self._sockets.give_way()

    def cancel(self, request: Request, last: list[bytes] | None = None) -> None:
        """Nobody waits for this any longer. Allowed in any process and after the end."""
        if os.getpid() == self._pid and not request.is_done:
            self._check_loop()
            self.machine.cancel(request, monotonic(), last=last)
            self._sockets.perform()

    def end(self, request: Request, waiter: StreamWaiter, last: list[bytes]) -> None:
        """As :meth:`cancel`, for a stream: whoever waits for it is woken."""
        if os.getpid() == self._pid:
            self.user_code.check()
            self.cancel(request, last)
            waiter.reject(ClientClosedError("these entries are closed"))

    def later(self, work: Callable[[], None]) -> None:
        """Do this in a turn of the client's loop, if it has any more. Never waits: a garbage collector may call it."""
        if os.getpid() == self._pid and self._sockets.loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._sockets.loop.call_soon_threadsafe(work)

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        if os.getpid() != self._pid or self._actions.links is None:
            return
        if self._sockets.is_stranded:
            self._sockets.close()
        elif not sys.is_finalizing():
            self.later(self._sockets.close)
        warn_unclosed(self, f"raft client of {','.join(self._seeds)}")

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        if os.getpid() != self._pid:
            return
        self._check_loop()
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
            raise ForkedClientError("this client was opened before fork(); open a new one in the child process")

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._pid or self._actions.links is None or self._sockets.loop is None:
            self.check_process()
            self.machine.check_open()
            raise BusyError("the client was not opened: use it as an async context manager or await open()")
        self._check_loop()
        if self._sockets.is_stranded:
            raise ClientClosedError(
                "the event loop in which this client was opened is closed: nothing can be sent any more. close() frees "
                "what the client holds"
            )
        return self._sockets.loop

    def _check_loop(self) -> None:
        """Raise in another event loop than the client's, in a forked child, and in a codec or condition.

        Not if the client's loop is closed: what ends something may be called anywhere then.
        """
        self.check_process()
        if self._sockets.is_stranded:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # none, as in another thread
            running = None
        if self._sockets.loop is not None and running is not self._sockets.loop:
            raise BusyError("this client was opened in another event loop; open one client per loop")
