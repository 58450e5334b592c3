"""Drives the client machine from threads: one network thread that waits for the socket, and the callers' own threads.

Rules:

* One lock, ``_lock``, guards the machine and the driver. It is never held while user code runs or while anything blocks.
* A calling thread writes its request to the socket itself, the network thread reads: that saves a thread switch.
* A calling thread enforces its own deadline, so that it holds even while the network thread is busy connecting.
* The engine belongs to the process that opened it. In a forked child every call raises and nothing touches the socket,
  the lock (its holder may not exist there) or the selector (the kernel shares it with the parent).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any, Final

from statestore_client.clocks import now
from statestore_client.core.actions import (
    Acknowledge,
    Action,
    ConnectionState,
    Disconnect,
    Drop,
    Notify,
    Observer,
    Open,
    Publish,
    Reject,
    Resolve,
    StateChanged,
    StateListener,
    Subscribe,
)
from statestore_client.core.calls import FencedCommand
from statestore_client.core.exchange import ExchangeStats
from statestore_client.core.machine import ClientMachine
from statestore_client.errors import ForkedClientError, RequestTimeoutError, StateStoreError
from statestore_client.mqtt.driver import SyncDriver, open_sync_driver
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.waiters import Batch, Waiter
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock

__all__ = ["Engine"]

logger = logging.getLogger("statestore_client")

#: The network thread looks after time-outs at least this often (seconds).
_LONGEST_SLEEP_S: Final = 1.0
#: How long close() waits for the DISCONNECT to be written.
_CLOSE_TIMEOUT_S: Final = 5.0


class Engine:
    """One connection's worth of client, without the user's methods."""

    def __init__(self, settings: ConnectionSettings, client_id: str, on_state: StateListener | None) -> None:
        self._settings = settings
        self._client_id = client_id
        self._on_state = on_state
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._machine = ClientMachine(
            client_id,
            clock=HybridLogicalClock(client_id, guard=threading.Lock()),
            random=Random(),  # noqa: S311 - jitter and request ids, no secrets
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            clean_start=settings.clean_start,
            retry_first_connect=settings.retry_first_connect,
        )
        self._driver: SyncDriver | None = None
        self._to_connect: SyncDriver | None = None
        self._to_tell: list[StateChanged] = []
        self._thread: threading.Thread | None = None
        self._watched: tuple[SyncDriver, int, int] | None = None
        self._waker_out, self._waker_in = socket.socketpair()
        self._waker_out.setblocking(False)
        self._waker_in.setblocking(False)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Publish: self._publish,
            Resolve: self._resolve,
            Acknowledge: self._acknowledge,
            Reject: self._reject,
            Notify: self._notify,
            Subscribe: self._subscribe,
            StateChanged: self._to_tell.append,
            Open: self._open,
            Disconnect: self._disconnect,
            Drop: self._drop,
        }

    # -- calls of any thread -------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        return self._machine.state

    @property
    def stats(self) -> ExchangeStats:
        return self._machine.exchange.stats

    def open(self, timeout: float | None) -> None:
        """Start the network thread and wait until requests can leave."""
        self.check_process()
        waiter = Waiter()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"statestore {self._client_id}", daemon=True)
                self._thread.start()
            self._machine.open(waiter)
            self._perform()
        self._wake()
        self._await(waiter, timeout)

    def call(self, command: Command, *, timeout: float | None, fencing_token: HlcTimestamp | None = None) -> Any:
        """Send one command and wait for its result."""
        self.check_process()
        waiter = Waiter()
        with self._lock:
            request = self._machine.submit(command, waiter, now(), timeout=timeout, fencing_token=fencing_token)
            self._perform()
        try:
            return self._await(waiter, timeout)
        except BaseException:
            if request is not None:  # KeyboardInterrupt, say; harmless when the request is done
                with self._lock:
                    self._machine.cancel(request, now())
            raise

    def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns a result or an exception for each, in order.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window is
        taken from ``commands`` ahead of the answers.
        """
        self.check_process()
        window = self._settings.max_in_flight
        batch = Batch(window)
        source = iter(commands)
        try:
            while chunk := list(islice(source, 2 * window - batch.outstanding)):
                with self._lock:
                    self._submit_chunk(chunk, batch, timeout, fencing_token)
                    self._perform()
                self._await_batch(batch, timeout, window)
        finally:
            self._await_batch(batch, timeout, 0)
        return batch.outcomes

    def _submit_chunk(
        self,
        chunk: list[Command | FencedCommand | StateStoreError],
        batch: Batch,
        timeout: float | None,
        fencing_token: HlcTimestamp | None,
    ) -> None:
        moment = now()
        for command in chunk:
            slot = batch.slot()
            if isinstance(command, StateStoreError):
                slot.reject(command)
            elif isinstance(command, FencedCommand):
                self._machine.submit(command.command, slot, moment, timeout=timeout, fencing_token=command.token)
            else:
                self._machine.submit(command, slot, moment, timeout=timeout, fencing_token=fencing_token)

    def watch(self, key: bytes, observer: Observer, *, initial: bool, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        self.check_process()
        waiter = Waiter()
        with self._lock:
            self._machine.watch(key, observer, waiter, now(), initial=initial)
            self._perform()
        try:
            if not waiter.wait(timeout):
                raise RequestTimeoutError(f"the watch could not be started within {timeout:g} s ({self.state})")
            if waiter.error is not None:
                raise waiter.error
        except BaseException:
            self.unwatch(key, observer)
            raise

    def unwatch(self, key: bytes, observer: Observer) -> None:
        """Stop to watch."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._machine.unwatch(key, observer, now())
            self._perform()

    def close(self) -> None:
        """Reject what waits, disconnect, and end the network thread."""
        if os.getpid() != self._pid:
            if self._driver is not None:
                self._driver.abort()
            return
        with self._lock:
            self._machine.close(now())
            self._perform()
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT_S)
        elif self._thread is None:
            self._close_waker()

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task or use statestore_client.spark)"
            )

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _await(self, waiter: Waiter, timeout: float | None) -> Any:
        while not waiter.wait(timeout):
            self._expire()
            timeout = 0.001  # the clocks may disagree by a tick
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    def _await_batch(self, batch: Batch, timeout: float | None, at_most: int) -> None:
        """Wait until at most so many requests of the batch are without an outcome."""
        while batch.outstanding > at_most:
            if not batch.wait(timeout):
                self._expire()
                timeout = 0.01

    def _expire(self) -> None:
        """Reject what has reached its deadline, without waiting for the network thread to do so."""
        with self._lock:
            self._machine.tick(now())
            self._perform()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake anyway; closed: it has ended
            self._waker_out.send(b"\0")

    # -- carrying out actions, under the lock --------------------------------------------------------------------------

    def _perform(self) -> None:
        while actions := self._machine.take_actions():
            self._carry_out(actions)
        driver = self._driver
        if driver is not None and driver is not self._to_connect:
            driver.flush()
            if driver.wants_write and threading.current_thread() is not self._thread:
                self._wake()

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self._handlers[type(action)](action)

    def _publish(self, action: Publish) -> None:
        if self._driver is not None:
            self._driver.publish(action.delivery_id, action.message)

    def _subscribe(self, action: Subscribe) -> None:
        if self._driver is not None:
            self._driver.subscribe(action.subscribe_id, action.topic_filters)

    def _acknowledge(self, action: Acknowledge) -> None:
        if self._driver is not None:
            self._driver.acknowledge(action.ack_id)

    def _resolve(self, action: Resolve) -> None:
        action.waiter.resolve(action.result)

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)

    def _notify(self, action: Notify) -> None:
        action.observer.push(action.event)

    def _open(self, action: Open) -> None:
        self._driver = self._to_connect = open_sync_driver(
            self._settings, client_id=self._client_id, clean_start=action.clean_start
        )

    def _disconnect(self, _action: Disconnect) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            self._driver.disconnect()

    def _drop(self, _action: Drop) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            self._driver.abort()
            self._wake()  # the network thread has to take the news from the driver

    # -- the network thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker_in, selectors.EVENT_READ)
            try:
                for driver, timeout in self._rounds():
                    self._watch_socket(selector, driver)
                    selector.select(timeout)
                    with contextlib.suppress(BlockingIOError):
                        self._waker_in.recv(4096)
            except BaseException:
                logger.exception("the network thread of client %s failed", self._client_id)
                with self._lock:
                    self._machine.close(now())
                    self._perform()
                raise
            finally:
                self._close_waker()

    def _rounds(self) -> Iterator[tuple[SyncDriver | None, float]]:
        """Do what is due, then yield what to wait for, until the client is closed and its DISCONNECT is written."""
        while True:
            with self._lock:
                self._machine.tick(now())
                self._take_events()
                to_connect, self._to_connect = self._to_connect, None
                if to_connect is not None:
                    self._driver = None  # nobody may touch it while it connects
            self._tell()
            if to_connect is not None:
                to_connect.connect()
                with self._lock:
                    self._driver = to_connect
                    if self._machine.state is ConnectionState.CLOSED:
                        to_connect.abort()
                continue
            with self._lock:
                driver, timeout = self._driver, self._sleep_for()
                if self._machine.state is ConnectionState.CLOSED and (driver is None or driver.fileno() is None):
                    return
            yield driver, timeout

    def _watch_socket(self, selector: selectors.BaseSelector, driver: SyncDriver | None) -> None:
        """Wait for this driver's socket too. Descriptor numbers are reused: the driver itself tells old from new."""
        fileno = None if driver is None else driver.fileno()
        wanted = None
        if driver is not None and fileno is not None and fileno >= 0:
            wanted = (driver, fileno, selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.wants_write else 0))
        if wanted == self._watched:
            return
        if self._watched is not None:
            with contextlib.suppress(KeyError, OSError, ValueError):
                selector.unregister(self._watched[1])
        self._watched = wanted
        if wanted is not None:
            selector.register(wanted[1], wanted[2])

    def _take_events(self) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            moment = now()
            for event in self._driver.poll():
                self._machine.receive(event, moment)
        self._perform()

    def _sleep_for(self) -> float:
        moment = time.monotonic()
        deadlines = [moment + _LONGEST_SLEEP_S]
        if (deadline := self._machine.next_deadline()) is not None:
            deadlines.append(deadline)
        if self._driver is not None:
            deadlines.append(self._driver.next_deadline())
        return max(0.0, min(deadlines) - moment)

    def _tell(self) -> None:
        """Log and report state changes, outside the lock: a listener may call the client."""
        if not self._to_tell:
            return
        with self._lock:
            changes = self._to_tell.copy()
            self._to_tell.clear()
        for change in changes:
            logger.info("client %s: %s%s", self._client_id, change.state, f": {change.error}" if change.error else "")
            if self._on_state is not None:
                try:
                    self._on_state(change.state, change.error)
                except Exception:
                    logger.exception("the state listener of client %s failed", self._client_id)

    def _close_waker(self) -> None:
        self._waker_out.close()
        self._waker_in.close()
