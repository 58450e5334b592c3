"""Drives the client machine from an event loop. Everything runs in the loop's thread; there is no lock.

Rules:

* Requests made in one turn of the loop are written together at its end.
* One timer serves all deadlines; it is set again only when an earlier one comes up.
* The engine belongs to the loop and the process that opened it; elsewhere every call raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final

from statestore_client.aio.callbacks import Worker, finish
from statestore_client.aio.link import Link
from statestore_client.aio.waiters import Batch, BatchSlot, wait
from statestore_client.core.actions import (
    ConnectionState,
    Observer,
    WatchOptions,
)
from statestore_client.core.calls import FencedCommand
from statestore_client.errors import (
    BusyError,
    StateStoreError,
)
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Engine"]

logger = logging.getLogger("statestore_client")

#: How long (seconds) close() waits for the DISCONNECT to be written, and for tasks to end.
_CLOSE_TIMEOUT_S: Final = 2.0
_ANOTHER_LOOP: Final = "this client was opened in another event loop; use it and close it there, one client per loop"


class Engine(Link):
    """One connection's worth of client, without the user's methods."""

    async def open(self, timeout: float | None) -> None:
        """Start to connect and wait until requests can leave."""
        self.check_process()
        self._loop = self._loop or asyncio.get_running_loop()
        waiter = self._usable_loop().create_future()
        self._machine.open(waiter)
        self._perform()
        try:
            if not await wait(waiter, timeout):
                raise self._machine.too_late(f"not connected to {self._settings.url} within {timeout:g} s")
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
        waiter = self._usable_loop().create_future()
        request = self._machine.submit(command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token)
        self._carry_out()
        if request is not None and request.deadline < self._wakes_at:  # mostly, an earlier request has set it
            self._set_timer()
        try:
            return await waiter
        except asyncio.CancelledError:
            if request is not None and not lasting:  # harmless when it is done
                self._machine.cancel(request, self._now())
                self._perform()
            raise

    async def post(self, command: Command, *, patience: float, timeout: float) -> None:
        """Send one command, within ``timeout`` seconds; wait for its result no longer than ``patience`` seconds."""
        waiter = self._usable_loop().create_future()
        self._machine.submit(command, waiter, self._now(), timeout=timeout)
        self._perform()
        await wait(waiter, patience)

    async def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns a result or an exception for each, in order.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window is taken from ``commands`` ahead of the answers. When ``commands`` raises
        or the task is cancelled, nobody waits for what is under way.
        """
        self._usable_loop()
        window = self._settings.max_in_flight
        batch = Batch(window)
        source = iter(commands)
        try:
            while chunk := list(islice(source, 2 * window - batch.outstanding)):
                self._submit_chunk(chunk, batch, timeout, fencing_token)
                self._perform()
                await batch.wait(window)
            await batch.wait(0)
        except BaseException:
            self._machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
            self._perform()
            raise
        return batch.outcomes

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
                slot.set_exception(command)
            elif isinstance(command, FencedCommand):
                self._machine.submit(command.command, slot, moment, timeout=timeout, fencing_token=command.token)
            else:
                self._machine.submit(command, slot, moment, timeout=timeout, fencing_token=fencing_token)

    async def watch(self, key: bytes, observer: Observer, options: WatchOptions, *, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        waiter = self._usable_loop().create_future()
        self._machine.watch(key, observer, waiter, self._now(), options)
        self._perform()
        try:
            if not await wait(waiter, timeout):
                raise self._machine.too_late(f"the watch could not be started within {timeout:g} s")
        except BaseException:
            self.unwatch(key, observer)
            raise

    def unwatch(self, key: bytes, observer: Observer) -> None:
        """Stop watching."""
        if os.getpid() == self._pid:
            self.check_loop()
            self._machine.unwatch(key, observer, self._now())
            self.caught_up(observer)

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again: acknowledge what waited for it."""
        for ack_id in self._acknowledgements.has_room(observer):
            if self._driver is not None:
                self._driver.acknowledge(ack_id)
                self._unflushed += 1
        self._perform()

    def worker(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Worker:
        """Somebody who works beside the callers, once started; a task of the client."""
        return Worker(self.tasks, work, name)

    def call_back(self, what: str, function: Callable[..., object], *arguments: object) -> None:
        """Call the user's function now; a task of the client awaits what it returns. What it raises is logged."""
        try:
            outcome = function(*arguments)
        except Exception:
            logger.exception("%s failed", what)
        else:
            if inspect.isawaitable(outcome):
                self.tasks.start(finish(what, outcome), name=what)

    def stop(self) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`end` is to follow."""
        if os.getpid() != self._pid:
            if self._driver is not None:
                self._driver.abort()
            return
        if self._ended:
            return
        self.check_loop()
        self._machine.close(self._now())
        self._perform()
        self._flush()
        self._connector.close()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._wakes_at = math.inf
        if self._connecting is not None:
            self._connecting.cancel()  # its thread ends by itself when the attempt is over

    async def end(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the connection and all tasks have ended."""
        if os.getpid() != self._pid or self._ended:
            return
        try:
            if self._driver is not None:
                await self._is_gone()
        finally:  # also if the caller is cancelled, and if the connection is not up: it may wait for CONNACK
            if self._newest is not None and not self._gone.is_set():
                self._newest.abort()
                self._newest.flush()  # which makes it report its end
        await self._is_gone()
        await self.tasks.end(_CLOSE_TIMEOUT_S)
        self._ended = True

    async def _is_gone(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._gone.wait()

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        self._machine.check_open()

    @property
    def trouble(self) -> str | None:
        """Why no request can leave just now; None while connected."""
        return None if self._machine.state is ConnectionState.CONNECTED else self._machine.situation

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        """The client's loop, which is the running one. (In a forked child, none of the parent's is.)"""
        loop = self._loop
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
        raise BusyError(_ANOTHER_LOOP)

    def check_loop(self) -> None:
        """Raise in another event loop than the client's, and in a forked child."""
        self.check_process()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:  # none, as in another thread
            running = None
        if self._loop is not None and running is not self._loop:
            raise BusyError(_ANOTHER_LOOP)
