"""The calls of a client, from any thread: each hands its request to the machine and waits.

* A calling thread writes its request to the socket itself. While it waits for the answer it borrows the socket from
  the network thread and reads as well, if nobody else does: two thread switches cost more than the rest of a request.
* A calling thread enforces its own deadline, so that it holds even while the network thread is busy connecting.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

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
from statestore_client.sync.borrowed import Borrowed
from statestore_client.sync.callbacks import Worker, call_back
from statestore_client.sync.link import Link
from statestore_client.sync.waiters import Batch, BatchSlot, Waiter
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["Engine"]

#: How long close() waits for the DISCONNECT to be written.
_CLOSE_TIMEOUT_S: Final = 2.0


class Engine(Link):
    """One connection's worth of client, without the user's methods."""

    def open(self, timeout: float | None) -> None:
        """Start the network thread and wait until requests can leave."""
        self._check_thread()
        waiter = Waiter()
        with self._lock, self._change:
            self._waiting.add(waiter)
            self._machine.open(waiter)
            if self._thread is None and self._machine.state is not ConnectionState.CLOSED:
                self._start()
            self._perform()
        try:
            if not waiter.wait(timeout):
                raise self._machine.too_late(f"not connected to {self._settings.url} within {timeout:g} s")
        finally:
            self._waiting.discard(waiter)
            with self._lock, self._change:
                self._machine.cancel_open(waiter)
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
        """Send one command and wait for its result. A lasting one goes on its way also if the caller is interrupted."""
        self._check_usable()
        deadline = _deadline(timeout)
        waiter = Waiter()
        request = None
        try:
            with Borrowed(self) as socket_of:
                with self._lock, self._change:
                    self._waiting.add(waiter)
                    socket_of.take()
                    request = self._machine.submit(
                        command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token
                    )
                    self._perform()
                socket_of.read_while(waiter.is_pending, deadline)
            return self._await(waiter, deadline)
        except BaseException:
            if request is not None and not lasting:  # KeyboardInterrupt, say; harmless when the request is done
                with self._lock, self._change:
                    self._machine.cancel(request, self._now())
                    self._perform()
            raise
        finally:
            self._waiting.discard(waiter)

    def post(self, command: Command, *, patience: float, timeout: float) -> None:
        """Send one command, within ``timeout`` seconds; wait for its result no longer than ``patience`` seconds."""
        self._check_usable()
        waiter = Waiter()
        with self._lock, self._change:
            self._machine.submit(command, waiter, self._now(), timeout=timeout)
            self._perform()
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
        its own. No more than twice the window is taken from ``commands`` ahead of the answers. When ``commands`` raises
        or the thread is interrupted, nobody waits for what is under way.
        """
        self._check_usable()
        window = self._settings.max_in_flight
        batch = Batch(window)
        source = iter(commands)
        deadline = math.inf
        self._waiting.add(batch)
        try:
            while chunk := list(islice(source, 2 * window - batch.outstanding)):
                deadline = _deadline(timeout)  # of the last one that is sent now
                with Borrowed(self) as socket_of:
                    with self._lock, self._change:
                        socket_of.take()
                        self._submit_chunk(chunk, batch, timeout, fencing_token)
                        self._perform()
                    socket_of.read_while(lambda: batch.outstanding > window, deadline)
                self._await_batch(batch, deadline, window)
            with Borrowed(self) as socket_of:
                with self._lock:
                    socket_of.take()
                socket_of.read_while(lambda: batch.outstanding > 0, deadline)
            self._await_batch(batch, deadline, 0)
        except BaseException:
            with self._lock, self._change:
                self._machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
                self._perform()
            raise
        finally:
            self._waiting.discard(batch)
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
                slot.reject(command)
            elif isinstance(command, FencedCommand):
                self._machine.submit(command.command, slot, moment, timeout=timeout, fencing_token=command.token)
            else:
                self._machine.submit(command, slot, moment, timeout=timeout, fencing_token=fencing_token)

    def watch(self, key: bytes, observer: Observer, options: WatchOptions, *, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        self._check_usable()
        waiter = Waiter()
        with self._lock, self._change:
            self._waiting.add(waiter)
            self._machine.watch(key, observer, waiter, self._now(), options)
            self._perform()
        try:
            if not waiter.wait(timeout):
                raise self._machine.too_late(f"the watch could not be started within {timeout:g} s")
            if waiter.error is not None:
                raise waiter.error
        except BaseException:
            self.unwatch(key, observer)
            raise
        finally:
            self._waiting.discard(waiter)

    def unwatch(self, key: bytes, observer: Observer) -> None:
        """Stop watching."""
        if os.getpid() != self._pid:
            return
        with self._lock, self._change:
            self._machine.unwatch(key, observer, self._now())
            self._release_acknowledgements(observer)

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again: acknowledge what waited for it."""
        self.check_process()
        with self._lock, self._change:
            self._release_acknowledgements(observer)

    def worker(self, work: Callable[[], None], name: str) -> Worker:
        """Somebody who works beside the callers, once started; a thread of its own."""
        return Worker(work, name)

    def call_back(self, what: str, function: Callable[..., object], *arguments: object) -> None:
        """Call the user's function now; what it raises is logged."""
        call_back(what, function, *arguments)

    def stop(self) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`end` is to follow."""
        if os.getpid() != self._pid:
            if self._driver is not None:
                self._driver.abort()
            return
        with self._lock:
            self._machine.close(self._now())
            self._perform()
        self._connector.close()
        self._wake()

    def end(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the network thread has ended."""
        if os.getpid() != self._pid or self._thread is None or self._thread is threading.current_thread():
            return
        with self._lock:
            if self._connecting:
                return  # that cannot be interrupted; the thread ends when it is over
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            with self._lock:
                if self._driver is not None:
                    self._driver.abort()
            self._wake()
            self._thread.join(_CLOSE_TIMEOUT_S)

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        self._machine.check_open()

    @property
    def trouble(self) -> str | None:
        """Why no request can leave just now; None while connected."""
        return None if self._machine.state is ConnectionState.CONNECTED else self._machine.situation

    def _check_usable(self) -> None:
        self._check_thread()
        self._machine.check_open()
        if self._thread is None:
            raise BusyError("the client was not opened: use it as a context manager or call open()")

    def _check_thread(self) -> None:
        self.check_process()
        if self._thread is threading.current_thread():
            raise BusyError("a state listener cannot wait for the network: it runs in the network's thread")

    def _await(self, waiter: Waiter, deadline: float) -> Any:
        while not waiter.wait(_remaining(deadline)):
            self._expire()
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    def _await_batch(self, batch: Batch, deadline: float, at_most: int) -> None:
        """Wait until at most this many requests of the batch are without an outcome."""
        while batch.outstanding > at_most:
            if not batch.wait(_remaining(deadline)):
                self._expire()

    def _expire(self) -> None:
        """Reject what has reached its deadline, without waiting for the network thread to do so."""
        with self._lock, self._change:
            self._machine.tick(self._now())
            self._perform()


def _deadline(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _remaining(deadline: float) -> float | None:
    """Seconds to wait, and a little once it is over: the clocks may disagree by a tick."""
    return None if deadline == math.inf else max(0.001, deadline - time.monotonic())
