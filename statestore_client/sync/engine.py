"""The calls of a client, from any thread: each hands its request to the machine and waits.

* A calling thread writes its request to the socket itself, and reads the answer, if nobody else reads.
* A calling thread enforces its own deadline, so that it holds even while the network thread is busy connecting.

The connection and the network thread are in :mod:`statestore_client.sync.link`, the rules for signals in
:mod:`statestore_client.sync.section`.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from statestore_client.clocks import monotonic
from statestore_client.core.actions import ConnectionState, Observer, WatchOptions
from statestore_client.core.arguments import FencedCommand, next_commands
from statestore_client.core.request import Request
from statestore_client.core.request_table import ExchangeStats
from statestore_client.core.results import DeleteResult, within
from statestore_client.errors import BusyError, ForkedClientError, StateStoreError
from statestore_client.reports import warn_unclosed
from statestore_client.sync.callbacks import Worker, call_back
from statestore_client.sync.link import Link
from statestore_client.sync.waiters import Batch, BatchSlot, Waiter
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["ON_ITS_WAY", "Engine"]

#: What a lasting command (a release) returns that could not wait for its answer.
ON_ITS_WAY: Final = DeleteResult(1, None)


class Engine:
    """One client without the user's methods."""

    def __init__(self, link: Link) -> None:
        self._pid = os.getpid()
        self._settings = link.settings
        self._now = link.now
        self._link = link
        self._machine = link.actions.machine
        #: Whether it was opened without waiting for the connection.
        self.is_in_background: bool = False

    def open(self, timeout: float | None, *, wait: bool = True) -> None:
        """Start the network thread and, unless it is to connect in the background, wait until requests can leave."""
        self._check_thread()
        link, waiter = self._link, Waiter()

        def begin() -> None:
            link.start(is_awaited=wait)
            if wait:
                link.waiting.add(waiter)
            self.is_in_background = not wait
            self._machine.open(waiter if wait else None)
            link.perform()

        try:
            link.run(begin, _deadline(timeout))
            if not wait:
                return
            if not waiter.wait(timeout):
                raise self._machine.too_late(f"not connected to {self._settings.url} {within(timeout)}")
        finally:
            link.waiting.discard(waiter)
            link.section.later(lambda: self._machine.cancel_open(waiter))
        if waiter.error is not None:
            raise waiter.error

    def call(
        self,
        command: Command,
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
        lasting: bool = False,
    ) -> Any:
        """Send one command and wait for its result.

        A lasting one goes on its way also if the caller is interrupted; and if the caller has interrupted this client
        at work, or is its network thread, it leaves when that work is done. :data:`ON_ITS_WAY` is returned then.
        """
        link, waiter = self._link, Waiter()
        if lasting and (link.section.is_interrupted or link.thread is threading.current_thread()):
            self._send_later(command, waiter, timeout, fencing_token)
            return ON_ITS_WAY
        self._check_usable()
        deadline = _deadline(timeout)
        request = None
        try:
            link.section.enter(waiter, deadline)
            link.waiting.add(waiter)
            link.loan.take(waiter)
            request = self._machine.submit(command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token)
            link.perform()
            link.section.leave()
            return self._await(waiter, deadline)
        except BaseException:
            link.section.abandon(waiter)
            link.give_back(waiter)
            if request is not None and waiter.is_pending() and not lasting:  # KeyboardInterrupt, say
                cancelled = request
                link.run(lambda: self._cancel(cancelled))
            raise
        finally:
            link.waiting.discard(waiter)

    def _cancel(self, request: Request) -> None:
        self._machine.cancel(request, self._now())
        self._link.perform()

    def _send_later(
        self, command: Command, waiter: Waiter, timeout: float | None, fencing_token: HlcTimestamp | None = None
    ) -> None:
        def send() -> None:
            self._machine.submit(command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token)
            self._link.perform()

        self.check_process()
        self._link.section.later(send)

    def post(self, command: Command, *, patience: float, timeout: float) -> None:
        """Send one command, within ``timeout`` seconds; wait for its result no longer than ``patience`` seconds."""
        waiter = Waiter()
        self._send_later(command, waiter, timeout)
        if not (self._link.section.is_interrupted or self._link.thread is threading.current_thread()):
            waiter.wait(patience)

    def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns a result or an exception for each, in order.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window, by number or bytes, is taken from ``commands`` ahead of the answers.
        When ``commands`` raises or the thread is interrupted, nobody waits for what is under way.
        """
        self._check_usable()
        link, batch = self._link, Batch()
        source = iter(commands)
        deadline = math.inf
        link.waiting.add(batch)
        try:
            while chunk := next_commands(source, self._await_room(batch, deadline)):
                deadline = _deadline(timeout)  # of the last one that is sent now
                link.section.enter(batch, deadline)
                link.loan.take(batch)
                self._submit_chunk(chunk, batch, timeout, fencing_token)
                link.perform()
                link.section.leave()
            link.section.enter(batch, deadline)
            link.loan.take(batch)
            link.section.leave()
            self._await_batch(batch, deadline, 0)
        except BaseException:
            link.section.abandon(batch)
            link.give_back(batch)
            link.run(lambda: self._cancel_batch(batch))
            raise
        finally:
            link.waiting.discard(batch)
        return batch.outcomes

    def _await_room(self, batch: Batch, deadline: float) -> int:
        """Wait until more requests of the batch may be submitted, and return how many."""
        window = self._machine.exchange.window
        while batch.outstanding > (depth := window.depth):
            batch.low_water = depth
            self._await_batch(batch, deadline, depth)
        return 2 * depth - batch.outstanding

    def _cancel_batch(self, batch: Batch) -> None:
        self._machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
        self._link.perform()

    def _submit_chunk(
        self,
        chunk: list[Command | FencedCommand | StateStoreError],
        batch: Batch,
        timeout: float | None,
        fencing_token: HlcTimestamp | None,
    ) -> None:
        moment = self._now()
        for command in chunk:
            slot = batch.slot()
            if isinstance(command, StateStoreError):
                slot.reject(command)
            elif isinstance(command, FencedCommand):
                self._machine.submit(command.command, slot, moment, timeout=timeout, fencing_token=command.token)
            else:
                self._machine.submit(command, slot, moment, timeout=timeout, fencing_token=fencing_token)

    def watch(self, key: bytes, observer: Observer, options: WatchOptions, *, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        self._check_usable()
        link, waiter = self._link, Waiter()

        def begin() -> None:
            link.waiting.add(waiter)
            self._machine.watch(key, observer, waiter, self._now(), options)
            link.perform()

        try:
            link.run(begin, _deadline(timeout))
            if not waiter.wait(timeout):
                raise self._machine.too_late(f"the watch could not be started {within(timeout)}")
            if waiter.error is not None:
                raise waiter.error
        except BaseException:
            self.unwatch(key, observer)
            raise
        finally:
            link.waiting.discard(waiter)

    def unwatch(self, key: bytes, observer: Observer) -> None:
        """Stop watching. Never waits: a garbage collector may call it."""

        def end() -> None:
            self._machine.unwatch(key, observer, self._now())
            self._link.caught_up(observer)

        if os.getpid() == self._pid:
            self._link.section.later(end)

    def later(self, work: Callable[[], None]) -> None:
        """Do this inside: now, or when the thread there leaves. Never waits: a garbage collector may call it."""
        if os.getpid() == self._pid:
            self._link.section.later(work)

    def send(self, command: Command, *, timeout: float) -> None:
        """Send one command within ``timeout`` seconds; nobody waits for its answer. Inside."""
        self._machine.submit(command, Batch().slot(), self._now(), timeout=timeout)
        self._link.perform()

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        link = self._link
        if os.getpid() != self._pid or link.thread is None or self._machine.state is ConnectionState.CLOSED:
            return
        if not sys.is_finalizing():
            link.close()
        warn_unclosed(self, f"state store client {link.client_id!r} at {self._settings.url}")

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again: acknowledge what waited for it. Never waits."""
        self.check_process()
        self._link.section.later(lambda: self._link.caught_up(observer))

    def worker(self, work: Callable[[], None], name: str) -> Worker:
        """Somebody who works beside the callers, once started; a thread of its own."""
        return Worker(work, name)

    def call_back(self, what: str, function: Callable[..., object], *arguments: object) -> None:
        """Call the user's function now; what it raises is logged."""
        call_back(what, function, *arguments)

    def stop(self, why: StateStoreError | None = None) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`end` is to follow.

        With ``why`` it may be opened again.
        """
        if os.getpid() == self._pid:
            self._link.close(why)
        else:
            self._link.drop()

    def end(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the network thread has ended."""
        if os.getpid() == self._pid:
            self._link.join()

    @property
    def state(self) -> ConnectionState:
        """The connection's state now."""
        return self._machine.state

    @property
    def stats(self) -> ExchangeStats:
        """Counters since the client was made."""
        return self._machine.exchange.stats

    @property
    def store_id(self) -> str | None:
        """The store that answered last; None if it does not say which it is."""
        return self._machine.exchange.store_id

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        self._machine.check_open()

    @property
    def trouble(self) -> str | None:
        """Why no request can leave just now; None while connected."""
        return None if self._machine.state is ConnectionState.CONNECTED else self._machine.situation

    @property
    def is_own(self) -> bool:
        """Whether a finalizer may end what this has: not in a forked child, and not when Python itself ends."""
        return os.getpid() == self._pid and not sys.is_finalizing()

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task or use statestore_client.spark)"
            )

    def _check_usable(self) -> None:
        self._check_thread()
        self._machine.check_open()
        if self._link.thread is None:
            raise BusyError("the client was not opened: use it as a context manager or call open()")

    def _check_thread(self) -> None:
        self.check_process()
        if self._link.thread is threading.current_thread():
            raise BusyError("a state listener cannot wait for the network: it runs in the network's thread")

    def _await(self, waiter: Waiter, deadline: float) -> Any:
        self._link.read(waiter, waiter.is_pending, deadline)
        while not waiter.wait(_remaining(deadline)):
            self._link.expire()
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    def _await_batch(self, batch: Batch, deadline: float, at_most: int) -> None:
        """Wait until at most this many requests of the batch are without an outcome."""
        self._link.read(batch, lambda: batch.outstanding > at_most, deadline)
        while batch.outstanding > at_most:
            if not batch.wait(_remaining(deadline)):
                self._link.expire()


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else monotonic() + timeout


def _remaining(deadline: float) -> float | None:
    """Seconds to wait, and a little once it is over: the clocks may disagree by a tick."""
    return None if deadline == math.inf else max(0.001, deadline - monotonic())
