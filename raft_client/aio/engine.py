"""Drives the request machine from an event loop.

Rules:

* Everything happens in the loop's thread, and between two awaits; so there is no lock.
* Who touches a socket empties it before returning to the loop (see :mod:`raft_client.links`).
* The engine belongs to the loop and the process that opened it. Elsewhere every call raises.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

from raft_client.aio.heartbeat import Heartbeat
from raft_client.aio.listeners import Listeners
from raft_client.aio.waiters import BatchSlot, BatchWaiter, ReadySignal, StreamWaiter, Waiter
from raft_client.core.calls import Call
from raft_client.core.entries_stream import EntriesStream, EntryBatch
from raft_client.core.request import Request
from raft_client.core.request_actions import (
    Connect,
    Disconnect,
    Reject,
    Resolve,
    Send,
    SetAside,
    StateChanged,
    Subscribe,
    Unsubscribe,
    Wake,
)
from raft_client.core.request_machine import RequestMachine
from raft_client.core.stream_runners import StreamMachine, StreamRunner, StreamRunners
from raft_client.core.verdicts import Again, FollowUps
from raft_client.core.watch_state import WatchCounts, WatchState
from raft_client.core.watches import Watches
from raft_client.errors import BusyError, ClientClosedError, ForkedClientError, RaftError
from raft_client.links import Link, LinkError, Links
from raft_client.settings import RaftSettings
from raft_client.user_code import UserCode
from raft_client.wire.key_changes import EntryCodec

__all__ = ["Engine"]

T = TypeVar("T")

#: A reader that need not wait keeps the event loop to itself for so many seconds at most.
_TURN_S: Final = 0.005


class Engine:
    """One client without the user's methods."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self._settings = settings
        self._listeners = listeners
        self._heartbeat = Heartbeat(settings, self)
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.machine = RequestMachine(
            settings.seeds,
            ident=settings.ident,
            random=Random(),  # noqa: S311 - jitter, no secrets
            response_timeout=settings.response_timeout,
            election_grace=settings.election_grace,
            max_in_flight=settings.max_in_flight,
        )
        self.user_code = UserCode()
        self._runners = StreamRunners(
            self.machine,
            settings.ident,
            silence_s=settings.broadcast_timeout,
            progress_s=settings.progress_interval,
            total_bytes=settings.watch_bytes,
        )
        self._links: Links | None = None
        self._touched: set[Link] = set()
        self._abandoned: deque[tuple[Request, list[bytes]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # when it looks; inf while there is none
        self._turned_at = -math.inf  # when the loop was seen to turn
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Wake: self._notify,
            Reject: self._reject,
            Connect: self._connect,
            SetAside: self._set_aside,
            Disconnect: self._disconnect,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            StateChanged: listeners.note,
        }

    # -- calls of any task ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make what calls need. Nothing is connected before the first call."""
        self.check_process()
        self.machine.check_open()
        if self._links is None:
            self._loop = asyncio.get_running_loop()
            self._links = Links(self._settings, on_open=self._watch, on_close=self._unwatch)
            self._listeners.open()
            self._heartbeat.start()

    async def call(self, call: Call, *, timeout: float | None, target: str | None = None) -> Any:
        """Ask one thing and wait for the answer."""
        waiter = Waiter(self._usable_loop())
        request = self.machine.submit(call, waiter, time.monotonic(), timeout=timeout, target=target)
        self._perform()
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
            self.machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, time.monotonic())
            self._perform()
            raise
        return batch.outcomes

    def _submit_chunk(
        self, chunk: list[Call | RaftError], batch: BatchWaiter, timeout: float | None, in_flight: int
    ) -> None:
        now = time.monotonic()
        for call in chunk:
            slot = batch.slot()
            if isinstance(call, RaftError):
                slot.reject(call)
            else:
                self.machine.submit(call, slot, now, timeout=timeout)
        batch.expect(in_flight - 1)
        self._perform()

    def start(self, call: Call) -> tuple[Request, StreamWaiter]:
        """Begin a call that streams. Its owner waits, takes from the call's queue, and says when it has room again."""
        self._usable_loop()
        waiter = StreamWaiter()
        request = self.machine.submit(call, waiter, time.monotonic(), timeout=None)
        self._perform()
        return request, waiter

    async def wait(
        self, request: Request, waiter: StreamWaiter, timeout: float | None, deadline: float | None = None
    ) -> None:
        """Until the call's queue has something new, or it is over; after ``timeout`` seconds it is over, too.

        Or, with a ``deadline`` (monotonic seconds), until then: it goes on afterwards.
        """
        timeout = timeout if deadline is None else None
        self._usable_loop()
        self.machine.set_timeout(request, timeout, time.monotonic())
        self._set_timer()
        try:
            await waiter.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            self.machine.set_timeout(request, None, 0.0)
            waiter.ready = waiter.is_over

    def take(self, request: Request, call: EntriesStream) -> EntryBatch | None:
        """What the stream has for its reader; and if that made room, the peer is asked for more."""
        self._check_loop()
        now = time.monotonic()
        batch = call.next_batch(now)
        verdict = call.resume()
        if verdict is not None:
            self._resume(request, verdict, now)
            self._perform()
        return batch

    def _resume(self, request: Request, verdict: FollowUps | Again, now: float) -> None:
        if isinstance(verdict, Again):
            self.machine.again(request, verdict.last, now)
        else:
            for frames in verdict.frames:
                self.machine.follow_up(request, frames, now)

    def abandon(self, request: Request, last: list[bytes]) -> None:
        """As :meth:`cancel`, at the next opportunity: for the garbage collector."""
        self._abandoned.append((request, last))

    def attach(self, machine: StreamMachine) -> StreamRunner:
        """Give a subscription a home. It has been started."""
        self._usable_loop()
        runner = self._runners.add(machine)
        self._perform()
        return runner

    def watch(
        self, codec: EntryCodec, consumer: ReadySignal, make: Callable[[Watches], WatchState]
    ) -> tuple[StreamRunner, Watches, WatchState]:
        """Make a watch in the watches of this codec; ``consumer`` is notified of what it has."""
        self._usable_loop()
        runner, watches = self._runners.watches(codec, self.user_code.codec)
        runner.at(time.monotonic())
        watch = make(watches)
        runner.consumers[watch] = consumer
        self._perform()
        return runner, watches, watch

    def unwatch(self, runner: StreamRunner, watches: Watches, watch: WatchState) -> None:
        """End a watch. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self._check_loop()
            runner.at(time.monotonic())
            watches.cancel(watch)
            self._perform()

    def watch_counts(self) -> WatchCounts:
        """Of all watches that have not ended."""
        self.check_process()
        return self._runners.watch_counts()

    def use(self, runner: StreamRunner, action: Callable[[float], T]) -> T:
        """Do something with a machine that has a home here: called with the time, in monotonic seconds."""
        self._check_loop()
        now = time.monotonic()
        runner.at(now)
        result = action(now)
        self._perform()
        return result

    def detach(self, runner: StreamRunner) -> None:
        """End a machine. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self._check_loop()
            runner.machine.close()
            runner.settle(time.monotonic())
            self._runners.remove(runner)
            self._perform()

    async def wait_for(self, signal: ReadySignal, timeout: float | None) -> None:
        """Until ``signal`` is ready, or for so many seconds; with 0 the loop makes one turn."""
        self._usable_loop()
        await signal.wait(timeout)

    async def give_way(self) -> None:
        """Let others have a turn, if the loop made none for long: for readers who always find something."""
        if time.monotonic() - self._turned_at > _TURN_S:
            await asyncio.sleep(0)
            self._turned_at = time.monotonic()

    def cancel(self, request: Request, last: list[bytes] | None = None) -> None:
        """Nobody waits for this any longer. Allowed in any process and after the end."""
        if os.getpid() == self._pid and not request.is_done:
            self._check_loop()
            self.machine.cancel(request, time.monotonic(), last=last)
            self._perform()

    def end(self, request: Request, waiter: StreamWaiter, last: list[bytes]) -> None:
        """As :meth:`cancel`, for a stream: whoever waits for it is woken."""
        if os.getpid() == self._pid:
            self.user_code.check()
            self.cancel(request, last)
            waiter.reject(ClientClosedError("these entries are closed"))

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        if os.getpid() != self._pid:
            return
        self._check_loop()
        self._heartbeat.stop()
        self._runners.close(time.monotonic())
        self.machine.close()
        self._perform()
        if self._timer is not None:
            self._timer.cancel()
        if self._links is not None:
            self._links.close()
            self._links = None

    @property
    def situation(self) -> str:
        """Whether it is open, and who leads: for the client's repr."""
        if self._links is None:
            return "closed" if self.machine.is_closed else "not open"
        leader = self.machine.leader_id or self.machine.leader_url
        return "no leader" if leader is None else f"leader {leader}"

    def check_process(self) -> None:
        """Raise in a forked child, and in a codec or condition."""
        self.user_code.check()
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was opened before fork(); open a new one in the child process")

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        if os.getpid() != self._pid or self._links is None or self._loop is None:
            self.check_process()
            self.machine.check_open()
            raise BusyError("the client was not opened: use it as an async context manager or await open()")
        self._check_loop()
        return self._loop

    def _check_loop(self) -> None:
        """Raise in another event loop than the client's, in a forked child, and in a codec or condition."""
        self.check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # none, as in another thread
            running = None
        if self._loop is not None and running is not self._loop:
            raise BusyError("this client was opened in another event loop; open one client per loop")

    # -- the sockets ---------------------------------------------------------------------------------------------------

    def _on_readable(self, descriptor: int, link: Link) -> None:
        """A descriptor is readable: that of a link's messages, or that of its end."""
        now = self._turned_at = time.monotonic()
        self._take_in(link, now, was_readable=descriptor == link.descriptor)
        if descriptor == link.monitored and link.is_lost():
            self.machine.link_lost(link.url, now)
        if self.machine.has_actions or self._runners.members:
            self._perform()
        elif self.machine.check_at < self._timer_at:  # not so after "accepted"
            self._set_timer()

    def _take_in(self, link: Link, now: float, *, was_readable: bool = False) -> None:
        """What has come in on a link."""
        if link.owner is None:
            for frames in link.receive(was_readable=was_readable):
                self.machine.received(link.url, frames, now)
        else:
            for frames in link.receive(was_readable=was_readable):
                link.owner.broadcast(link.url, frames, now)

    def _perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        machine, runners, handlers = self.machine, self._runners, self._handlers
        while self._abandoned:
            request, last = self._abandoned.popleft()
            machine.cancel(request, time.monotonic(), last=last)
        if runners.members:
            runners.settle(time.monotonic())
        while actions := machine.take_actions():
            for action in actions:
                if type(action) is Resolve:  # the two of every append, at hand
                    action.waiter.resolve(action.result)
                elif type(action) is Send:
                    self._send(action)
                else:
                    handlers[type(action)](action)
            while self._touched:
                self._take_in(self._touched.pop(), time.monotonic())
            if runners.members:
                runners.settle(time.monotonic())
        self._set_timer()

    def _send(self, action: Send) -> None:
        link = self._links.dealers.get(action.url) if self._links is not None else None
        if link is None:
            return
        if link.send(action.frames):
            self._touched.add(link)
        else:
            self.machine.link_lost(action.url, time.monotonic())

    def _connect(self, action: Connect) -> None:
        if self._links is not None:
            try:
                self._touched.add(self._links.connect(action.url))
            except LinkError as error:
                self.machine.link_lost(action.url, time.monotonic(), str(error))

    def _set_aside(self, action: SetAside) -> None:
        if self._links is not None:
            self._links.set_aside(action.url, action.name)

    def _disconnect(self, action: Disconnect) -> None:
        if self._links is not None:
            self._links.disconnect(action.url)

    def _subscribe(self, action: Subscribe) -> None:
        if self._links is not None:
            try:
                self._touched.add(self._links.subscribe(action.owner, action.url, action.topic, action.peer))
            except LinkError as error:
                action.owner.cannot_listen(action.url, str(error), time.monotonic())

    def _unsubscribe(self, action: Unsubscribe) -> None:
        if self._links is not None:
            self._links.unsubscribe(action.owner, action.url)

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)

    def _notify(self, action: Wake) -> None:
        action.waiter.notify()

    def _watch(self, link: Link) -> None:
        if self._loop is not None:
            for descriptor in (link.descriptor, link.monitored):
                if descriptor is not None:
                    self._loop.add_reader(descriptor, self._on_readable, descriptor, link)

    def _unwatch(self, link: Link) -> None:
        self._touched.discard(link)
        if self._loop is not None and not self._loop.is_closed():
            for descriptor in (link.descriptor, link.monitored):
                if descriptor is not None:
                    self._loop.remove_reader(descriptor)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        machine = self.machine
        if self._timer_at <= machine.check_at and not (machine.is_searching or self._runners.members):
            return  # as after every append: the timer looks at the right moment, or before
        deadline = machine.next_deadline()
        if self._runners.members:
            other = self._runners.next_deadline()
            deadline = other if deadline is None or (other is not None and other < deadline) else deadline
        if deadline is None or self._loop is None or self._links is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return  # it will look again then
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = time.monotonic()
        self.machine.tick(now)
        self._runners.tick(now)
        self._perform()
