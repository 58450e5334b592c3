"""The client machine, its driver and the network thread: carries out what the machine asks for, and tells it the news.

Rules:

* One lock, ``_lock``, guards the machine and the driver. It is never held while user code runs or anything blocks.
* Listeners run in the network thread, without the lock. They may read and close the client; what waits for the network
  would wait for itself, and is refused.
* The link belongs to the process that opened it. In a forked child every call raises and nothing touches the socket,
  the lock (its holder may not exist there) or the selector (the kernel shares it with the parent).
* The network thread reads, unless a calling thread that waits for an answer has borrowed the socket (``borrow``).
  Between the calls of a loop the socket stays lent and nobody reads (*parked*), for a few milliseconds at most, and
  only while there is nobody else whom something that comes in could be for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from statestore_client.clocks import Clock
from statestore_client.core.acknowledgements import HeldAcknowledgements
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
from statestore_client.core.backoff import Backoff
from statestore_client.core.exchange import ExchangeStats
from statestore_client.core.machine import ClientMachine, node_id
from statestore_client.errors import (
    ConnectionLostError,
    ForkedClientError,
    StateStoreError,
)
from statestore_client.mqtt.driver import ACK_DELAY_S, FEW_ACKS, FLUSH_EVERY, SyncConnector, SyncDriver
from statestore_client.reports import ConnectionLog
from statestore_client.settings import ConnectionSettings
from statestore_client.sync.callbacks import call_back
from statestore_client.sync.waiters import Batch, InputPoller, Waiter
from statestore_client.wire.hlc import HybridLogicalClock

__all__ = ["Link"]

logger = logging.getLogger("statestore_client")

#: The network thread looks after time-outs at least this often (seconds).
_LONGEST_SLEEP_S: Final = 1.0
#: Calls that follow each other within this time (seconds) are a loop.
_TIGHT_LOOP_S: Final = 0.002
#: How long (seconds) the socket is lent without a sign of life from the thread that has it.
_LOAN_S: Final = 0.5
#: How long (seconds) it stays lent between two calls of a loop: to give it back and take it again would cost more than
#: to send a request.
_PARK_S: Final = 0.005
#: A thread that reads for itself looks up this often (seconds).
_SLICE_S: Final = 0.02


class Link:
    """What a client has of the network; :class:`~statestore_client.sync.engine.Engine` adds the calls."""

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        on_state: StateListener | None,
        clock: Clock,
        connector: SyncConnector,
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._connector = connector
        self._on_state = on_state
        self._now = clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._machine = ClientMachine(
            client_id,
            clock=HybridLogicalClock(node_id(client_id), guard=threading.Lock()),
            random=Random(),  # noqa: S311 - jitter and request ids, no secrets
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            clean_start=settings.clean_start,
            retry_first_connect=settings.retry_first_connect,
            backoff=Backoff(settings.reconnect_delay, settings.max_reconnect_delay),
            complaint=connector.complaint,
        )
        self._driver: SyncDriver | None = None
        self._to_connect: SyncDriver | None = None
        self._to_tell: list[StateChanged] = []
        self._log = ConnectionLog(client_id)
        self._connecting = False
        self._unflushed = 0  # publications since the last flush
        self._unflushed_acks = 0
        self._change = _Change(self)
        self._waiting: set[Waiter | Batch] = set()  # whom calling threads wait for
        self.reading = threading.Lock()  # held by the calling thread that reads
        self._lent = False  # the network thread leaves the socket to that thread
        self._lent_until = 0.0  # then it takes it back: a signal may have kept that thread from returning it
        self._parked: tuple[SyncDriver, int] | None = None  # lent, and its descriptor, while nobody reads from it
        self._returned_at = 0.0  # when a calling thread last stopped reading
        self._looks_up_at = 0.0  # when the network thread wakes up by itself
        self._poller = InputPoller()  # of the thread that reads
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None  # the network thread's, while it runs
        self._watched: tuple[SyncDriver, int, int] | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._acknowledgements = HeldAcknowledgements()
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

    @property
    def state(self) -> ConnectionState:
        return self._machine.state

    @property
    def stats(self) -> ExchangeStats:
        return self._machine.exchange.stats

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task or use statestore_client.spark)"
            )

    # -- carrying out actions, under the lock --------------------------------------------------------------------------

    def _perform(self) -> None:
        if self._parked is not None and threading.current_thread() is not self._thread:
            self._end_loan()  # somebody who does not read himself waits for something
        while actions := self._machine.take_actions():
            self._carry_out(actions)
        self._flush()

    def _flush(self) -> None:
        driver = self._driver
        if driver is not None and driver is not self._to_connect:
            self._unflushed = self._unflushed_acks = 0
            driver.flush()
            if driver.wants_write and threading.current_thread() is not self._thread:
                self._wake()

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self._handlers[type(action)](action)

    def _publish(self, action: Publish) -> None:
        driver = self._driver
        if driver is not None:
            driver.publish(action.delivery_id, action.message, action.again)
            self._unflushed += 1
            if self._unflushed >= FLUSH_EVERY:
                self._unflushed = 0
                driver.flush()

    def _subscribe(self, action: Subscribe) -> None:
        if self._driver is not None:
            self._driver.subscribe(action.subscribe_id, action.topic_filters)

    def _acknowledge(self, action: Acknowledge) -> None:
        if self._acknowledgements.may_leave(action.ack_id) and self._driver is not None:
            self._driver.acknowledge(action.ack_id)
            self._unflushed_acks += 1

    def _release_acknowledgements(self, observer: Observer) -> None:
        for ack_id in self._acknowledgements.has_room(observer):
            if self._driver is not None:
                self._driver.acknowledge(ack_id)
        self._perform()

    def _resolve(self, action: Resolve) -> None:
        action.waiter.resolve(action.result)

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)

    def _notify(self, action: Notify) -> None:
        if not action.observer.push(action.event):
            self._acknowledgements.is_full(action.observer)

    def _open(self, action: Open) -> None:
        self._acknowledgements.reconnecting()
        self._driver = self._to_connect = self._connector.open(clean_start=action.clean_start)
        self._wake()  # a caller's own deadline may have brought the time of the next attempt to light

    def _disconnect(self, _action: Disconnect) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            self._driver.disconnect()

    def _drop(self, _action: Drop) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            self._driver.abort()
            self._wake()  # the network thread has to take the news from the driver

    # -- the network thread --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._waker = socket.socketpair()
        for end in self._waker:
            end.setblocking(False)
        self._thread = threading.Thread(
            target=self._run, args=self._waker, name=f"statestore {self._client_id}", daemon=True
        )
        self._thread.start()

    def _wake(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
                self._waker[0].send(b"\0")

    def _run(self, waker_in: socket.socket, waker_out: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, waker_in, waker_out:
            selector.register(waker_out, selectors.EVENT_READ)
            self._selector = selector
            try:
                for timeout in self._rounds(selector):
                    selector.select(timeout)
                    with contextlib.suppress(BlockingIOError):
                        waker_out.recv(4096)
            except BaseException:
                logger.exception("the network thread of client %s failed", self._client_id)
                with self._lock:
                    self._machine.close(self._now())
                    self._perform()
                raise
            finally:
                with self._lock:
                    self._selector = None

    def _rounds(self, selector: selectors.BaseSelector) -> Iterator[float]:
        """Do what is due, then yield how long to wait, until the client is closed and its DISCONNECT is written."""
        while True:
            with self._lock:
                self._machine.tick(self._now())
                if self._lent and time.monotonic() < self._lent_until:
                    self._perform()  # who borrowed the socket reads
                else:
                    self._lent = False
                    self._parked = None
                    self._take_events()
                to_connect, self._to_connect = self._to_connect, None
                self._connecting = to_connect is not None
                if to_connect is not None:
                    self._driver = None  # nobody may touch it while it connects
            self._tell()
            if to_connect is not None:
                self._connect(to_connect)
                continue
            with self._lock:
                # Under the lock: another thread may close the driver, and the descriptor would be gone or another's.
                self._watch_socket(selector, self._driver)
                timeout = self._sleep_for()
                if self._machine.state is ConnectionState.CLOSED and self._watched is None and not self._to_tell:
                    return
            yield timeout

    def _connect(self, driver: SyncDriver) -> None:
        driver.connect()
        with self._lock:
            self._connecting = False
            self._driver = driver
            if self._machine.state is ConnectionState.CLOSED:
                driver.abort()

    def _watch_socket(self, selector: selectors.BaseSelector, driver: SyncDriver | None) -> None:
        """Wait for this driver's socket too. Descriptor numbers are reused: the driver itself tells old from new."""
        if self._lent:
            return
        fileno = None if driver is None else driver.fileno()
        wanted = None
        if driver is not None and fileno is not None and fileno >= 0:
            wanted = (driver, fileno, selectors.EVENT_READ | (selectors.EVENT_WRITE if driver.wants_write else 0))
        if wanted == self._watched:
            return
        if self._watched is not None:
            with contextlib.suppress(KeyError, OSError, ValueError):
                selector.unregister(self._watched[1])
        self._watched = None
        if wanted is not None:
            try:
                selector.register(wanted[1], wanted[2])
            except KeyError:  # a signal interrupted this thread here once before
                with contextlib.suppress(KeyError, OSError, ValueError):
                    selector.unregister(wanted[1])
                selector.register(wanted[1], wanted[2])
            self._watched = wanted

    def _take_events(self) -> None:
        if self._driver is not None and self._driver is not self._to_connect:
            moment = self._now()
            events = self._driver.poll()
            self._unflushed_acks = 0
            for event in events:
                self._machine.receive(event, moment)
        while actions := self._machine.take_actions():
            self._carry_out(actions)
        acks_may_wait = 0 < self._unflushed_acks <= FEW_ACKS and not self._unflushed
        if not acks_may_wait or (self._driver is not None and self._driver.wants_write):
            self._flush()

    def _sleep_for(self) -> float:
        moment = time.monotonic()
        deadlines = [moment + (ACK_DELAY_S if self._unflushed_acks and not self._lent else _LONGEST_SLEEP_S)]
        if self._lent and moment - self._returned_at < 2 * _PARK_S:
            deadlines.append(moment + _PARK_S)  # a loop of calls: see soon whether it has ended
        if (deadline := self._machine.next_deadline()) is not None:
            deadlines.append(deadline)
        if self._driver is not None:
            deadlines.append(self._driver.next_deadline())
        self._looks_up_at = min(deadlines)
        return max(0.0, self._looks_up_at - moment)

    def _tell(self) -> None:
        """Log and report state changes, outside the lock: a listener may call the client."""
        if not self._to_tell:
            return
        with self._lock:
            changes = self._to_tell.copy()
            self._to_tell.clear()
        for change in changes:
            self._log.note(change)
            if self._on_state is not None:
                call_back(f"the state listener of client {self._client_id}", self._on_state, change.state, change.error)

    # -- a calling thread in its place ---------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """An exception has left a change of this thread half done, so that nothing in it can be relied upon.

        Start over: a new connection without the old session. Everybody who waits learns that the outcome is unknown.
        """
        if self._driver is not None:
            self._driver.abort()
            self._driver = None
        if self._watched is not None and self._selector is not None:
            with contextlib.suppress(KeyError, OSError, ValueError):
                self._selector.unregister(self._watched[1])
        self._watched = None
        self._lent = False
        self._parked = None
        self._machine.interrupted(self._now())
        for waiter in list(self._waiting):
            text = "a signal interrupted the client while it was at work"
            waiter.reject(ConnectionLostError(text, may_have_been_applied=True))
        self._waiting.clear()
        self._wake()

    def borrow(self) -> int | None:
        """Take the socket from the network thread; its descriptor, or None when it cannot be had."""
        fileno = self._take_watched() if self._parked is None else self._take_parked(*self._parked)
        if fileno is not None:
            self._lent_until = time.monotonic() + _LOAN_S
        return fileno

    def _take_parked(self, driver: SyncDriver, fileno: int) -> int | None:
        if self._is_quiet(driver):
            self._parked = None
            return fileno
        self._end_loan()
        return None

    def _take_watched(self) -> int | None:
        if self._selector is None or self._watched is None:
            return None
        driver, fileno, events = self._watched
        if not self._is_quiet(driver) or events != selectors.EVENT_READ:
            return None
        self._lent = True
        self._watched = None
        with contextlib.suppress(KeyError):  # interrupted here once before
            self._selector.unregister(fileno)
        return fileno

    def _is_quiet(self, driver: SyncDriver) -> bool:
        """Whether nothing but reading from this driver is to be done."""
        return driver is self._driver and not driver.wants_write and not self._to_tell

    def read_from(self, fileno: int, is_pending: Callable[[], bool], deadline: float) -> None:
        driver = self._driver
        while is_pending() and (remaining := deadline - time.monotonic()) > 0:
            # In slices: another thread may have brought the outcome, by closing the client for one.
            slice_s = ACK_DELAY_S if self._unflushed_acks else _SLICE_S
            self._poller.wait_for_input(fileno, min(remaining, slice_s))
            with self._lock, self._change:
                if driver is None or self._driver is not driver or not self._lent:
                    return
                self._lent_until = time.monotonic() + _LOAN_S
                self._take_events()
                if not is_pending() or driver.fileno() != fileno or not self._is_quiet(driver):
                    return

    def give_back(self, fileno: int) -> None:
        """The network thread reads again, at once or when the calling thread does not come back soon."""
        with self._lock:
            if not self._lent:
                return
            moment = time.monotonic()
            is_loop = moment - self._returned_at <= _TIGHT_LOOP_S
            self._returned_at = moment
            if is_loop and self._may_park(fileno):
                self._park(fileno, moment)
            else:
                if self._unflushed_acks and not is_loop:
                    self._flush()  # in a loop, they go out with the next call
                self._end_loan()

    def _may_park(self, fileno: int) -> bool:
        """Whether nobody misses what comes in before the next call: no other caller, no watch, nothing to see to."""
        driver = self._driver
        return (
            driver is not None
            and driver.fileno() == fileno
            and self._is_quiet(driver)
            and len(self._waiting) <= 1  # the caller who gives it back
            and not self._machine.is_watching
            and self._machine.state is ConnectionState.CONNECTED
        )

    def _park(self, fileno: int, moment: float) -> None:
        assert self._driver is not None  # noqa: S101 - see _may_park()
        self._parked = (self._driver, fileno)
        self._lent_until = moment + _PARK_S
        if self._looks_up_at > moment + 2 * _PARK_S:
            self._wake()  # it sleeps for too long to see that the loop has ended

    def _end_loan(self) -> None:
        self._lent = False
        self._parked = None
        if self._selector is not None:
            self._watch_socket(self._selector, self._driver)
        if self._to_tell or self._to_connect or self._machine.state is ConnectionState.CLOSED:
            self._wake()


class _Change:
    """Entered under the lock by calling threads: signal handlers raise their exceptions between any two lines."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, StateStoreError):
            self._link.interrupted()
