"""The calls of a client, from any task: each hands its request to the machine and waits.

It belongs to the loop and the process that opened it; elsewhere every call raises. The connection and its timers are in
:mod:`statestore_client.aio.link`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

from statestore_client.aio.callbacks import Worker, finish
from statestore_client.aio.link import Link
from statestore_client.aio.waiters import Batch, BatchSlot, Waiter
from statestore_client.core.actions import ConnectionState, Observer, WatchOptions
from statestore_client.core.arguments import FencedCommand, next_commands
from statestore_client.core.request_table import ExchangeStats
from statestore_client.core.results import within
from statestore_client.errors import BusyError, ClosedError, ForkedClientError, StateStoreError
from statestore_client.reports import warn_unclosed
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Engine"]

logger: logging.Logger = logging.getLogger("statestore_client")

_NO_LOOP: Final = (
    "no asyncio event loop runs here; under trio, use StateStoreClient in a thread (trio.to_thread.run_sync), or run "
    "the program on asyncio"
)
_ANOTHER_LOOP: Final = "this client was opened in another event loop; use it and close it there, one client per loop"
_CLOSED_LOOP: Final = (
    "the event loop in which this client was opened is closed: nothing can be sent any more. close() frees what the "
    "client holds; its locks are free when their leases end"
)


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

    async def open(self, timeout: float | None, *, wait: bool = True) -> None:
        """Start to connect and, unless that goes on in the background, wait until requests can leave."""
        self.check_process()
        try:
            loop = self._link.begin(is_awaited=wait)
            is_running = loop is asyncio.get_running_loop()
        except RuntimeError:
            raise BusyError(_NO_LOOP) from None
        if not is_running:
            raise _foreign(loop)
        waiter = Waiter(loop) if wait else None
        self.is_in_background = not wait
        self._machine.open(waiter)
        self._link.perform()
        if waiter is None:
            return
        try:
            if not await waiter.wait(timeout):
                raise self._machine.too_late(f"not connected to {self._settings.url} {within(timeout)}")
        finally:
            self._machine.cancel_open(waiter)

    async def call(
        self,
        command: Command,
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
        lasting: bool = False,
    ) -> Any:
        """Send one command and wait for its result. A lasting one goes on its way also if the caller is cancelled."""
        waiter = Waiter(self._usable_loop())
        request = self._machine.submit(command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token)
        self._link.perform_for(request)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if request is not None and not lasting:  # harmless when it is done
                self._machine.cancel(request, self._now())
                self._link.perform()
            raise

    async def post(self, command: Command, *, patience: float, timeout: float) -> None:
        """Send one command, within ``timeout`` seconds; wait for its result no longer than ``patience`` seconds."""
        waiter = Waiter(self._usable_loop())
        self._machine.submit(command, waiter, self._now(), timeout=timeout)
        self._link.perform()
        await waiter.wait(patience)

    async def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns a result or an exception for each, in order.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window, by number or bytes, is taken from ``commands`` ahead of the answers.
        When ``commands`` raises or the task is cancelled, nobody waits for what is under way.
        """
        self._usable_loop()
        batch = Batch()
        source = iter(commands)
        try:
            while chunk := next_commands(source, await self._room(batch)):
                self._submit_chunk(chunk, batch, timeout, fencing_token)
                self._link.perform()
            await batch.wait(0)
        except BaseException:
            self._machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
            self._link.perform()
            raise
        return batch.outcomes

    async def _room(self, batch: Batch) -> int:
        """Wait until more requests of the batch may be submitted, and return how many."""
        window = self._machine.exchange.window
        while batch.outstanding > (depth := window.depth):
            batch.low_water = depth
            await batch.wait(depth)
        return 2 * depth - batch.outstanding

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

    async def watch(self, key: bytes, observer: Observer, options: WatchOptions, *, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        waiter = Waiter(self._usable_loop())
        self._machine.watch(key, observer, waiter, self._now(), options)
        self._link.perform()
        try:
            if not await waiter.wait(timeout):
                raise self._machine.too_late(f"the watch could not be started {within(timeout)}")
        except BaseException:
            self.unwatch(key, observer)
            raise

    def unwatch(self, key: bytes, observer: Observer) -> None:
        """Stop watching."""
        if os.getpid() == self._pid:
            self.check_loop()
            self._machine.unwatch(key, observer, self._now())
            self._link.caught_up(observer)

    def later(self, work: Callable[[], None]) -> None:
        """Do this in a turn of the client's loop, if it has any more. Never waits: a garbage collector may call it."""
        if os.getpid() == self._pid and self._link.loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._link.loop.call_soon_threadsafe(work)

    def send(self, command: Command, *, timeout: float) -> None:
        """Send one command within ``timeout`` seconds; nobody waits for its answer."""
        self._machine.submit(command, Batch().slot(), self._now(), timeout=timeout)
        self._link.perform()

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        link = self._link
        if os.getpid() != self._pid or link.loop is None or self._machine.state is ConnectionState.CLOSED:
            return
        if link.is_stranded:
            link.strand()
        elif not sys.is_finalizing():
            with suppress(RuntimeError):  # closed just now
                link.loop.call_soon_threadsafe(link.end)
        warn_unclosed(self, f"state store client {link.client_id!r} at {self._settings.url}")

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again: acknowledge what waited for it."""
        self._link.caught_up(observer)

    def worker(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Worker:
        """Somebody who works beside the callers, once started; a task of the client."""
        return Worker(self._link.tasks, work, name)

    def call_back(self, what: str, function: Callable[..., object], *arguments: object) -> None:
        """Call the user's function now; a task of the client awaits what it returns. What it raises is logged."""
        try:
            outcome = function(*arguments)
        except Exception:
            logger.exception("%s failed", what)
        else:
            if inspect.isawaitable(outcome):
                self._link.tasks.start(finish(what, outcome), name=what)

    def stop(self, why: StateStoreError | None = None) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`end` is to follow.

        With ``why`` it may be opened again.
        """
        if os.getpid() != self._pid:
            self._link.abandon()
        elif not self._link.has_ended:
            self.check_loop()
            if self._link.is_stranded:
                self._link.strand()
            else:
                self._link.close(why)
        elif why is None:
            self._machine.close(self._now())

    async def end(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the connection and all tasks have ended."""
        if os.getpid() == self._pid and not self._link.has_ended and self._link.loop is not None:
            await self._link.join()

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
            raise ForkedClientError("this client was opened before fork(); open a new one in the child process")

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        """The client's loop, which is the running one. (In a forked child, none of the parent's is.)"""
        loop = self._link.loop
        try:
            if loop is not None and asyncio.get_running_loop() is loop:
                self._machine.check_open()
                return loop
        except RuntimeError:
            pass
        self.check_process()
        self._machine.check_open()
        if loop is None:
            raise BusyError("the client was not opened: use it as an async context manager or await open()")
        raise _foreign(loop)

    def check_loop(self) -> None:
        """Raise in another event loop than the client's, and in a forked child.

        Not if the client's loop is closed: what ends something may be called anywhere then.
        """
        self.check_process()
        if self._link.is_stranded:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # none, as in another thread
            running = None
        if self._link.loop is not None and running is not self._link.loop:
            raise BusyError(_ANOTHER_LOOP)


def _foreign(loop: asyncio.AbstractEventLoop) -> StateStoreError:
    """What a call gets in another loop than the client's."""
    return ClosedError(_CLOSED_LOOP) if loop.is_closed() else BusyError(_ANOTHER_LOOP)
