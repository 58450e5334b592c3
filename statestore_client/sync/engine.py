"""The calls of a client, from any thread: each hands its request to the machine and waits.

* A calling thread writes its request to the socket itself, and reads the answer, if nobody else reads.
* A calling thread enforces its own deadline, so that it holds even while the network thread is busy connecting.

:class:`Engine` is the calls, :class:`Link` the connection and its network thread. The rules for signals are in
:mod:`statestore_client.sync.section`; the other rules:

* One section guards the machine and the driver (:mod:`statestore_client.sync.section`). No user code runs in it, and
  nothing in it blocks.
* A thread that a signal handler interrupts while it waits is outside: what the handler calls is served, and reads the
  answers of the call below as well.
* Listeners run in the network thread, outside the section. They may read and close the client; what waits for the
  network would wait for itself, and is refused.
* The link belongs to the process that opened it. In a forked child nothing touches the socket, the section (its thread
  may not exist there) or the selector (the kernel shares it with the parent).
* The network thread reads, unless a calling thread that waits for an answer has borrowed the socket
  (:mod:`statestore_client.sync.socket_loan`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from statestore_client import thread_locks
from statestore_client.clocks import Clock, monotonic
from statestore_client.core.actions import (
    ConnectionState,
    Observer,
    Open,
    Remark,
    StateChanged,
    StateListener,
    WatchOptions,
)
from statestore_client.core.arguments import (
    DEFAULT_TIMEOUT,
    FencedCommand,
    Timeout,
    Token,
    check_timeout,
    next_commands,
    raise_failures,
    token_of,
)
from statestore_client.core.request import Request
from statestore_client.core.results import DeleteResult, within
from statestore_client.errors import (
    BusyError,
    ConnectionLostError,
    ForkedClientError,
    RequestTimeoutError,
    StateStoreError,
)
from statestore_client.mqtt.driver import ACK_DELAY_S, MAX_WAITING_ACKS, SyncConnector, SyncDriver
from statestore_client.reports import ConnectionLog, warn_unclosed
from statestore_client.settings import ConnectionSettings
from statestore_client.shell import BaseEngine, BaseLink, BatchSlot
from statestore_client.sync.primitives import Batch, Waiter, Worker, call_back
from statestore_client.sync.section import Section
from statestore_client.sync.socket_loan import SocketLoan
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("statestore_client")

#: The network thread looks after time-outs at least this often (seconds).
_LONGEST_SLEEP_S: Final = 1.0
#: A thread that reads for itself looks up this often (seconds).
_SLICE_S: Final = 0.02
#: How long closing waits for the DISCONNECT to be written.
_CLOSE_TIMEOUT_S: Final = 2.0


class Link(BaseLink[SyncDriver]):
    """The connection of one client. The machine, the driver and ``loan`` are used inside ``section``."""

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        on_state: StateListener | None,
        give_up_on: tuple[type[StateStoreError], ...],
        clock: Clock,
        connector: SyncConnector,
        hlc: HybridLogicalClock | None,
    ) -> None:
        super().__init__(settings, client_id, give_up_on=give_up_on, clock=clock, connector=connector, hlc=hlc)
        self._connector = connector
        self._on_state = on_state
        self._to_tell: list[StateChanged | Remark] = []
        self._log = ConnectionLog(client_id)
        self.section: Section = Section(self.interrupted)
        #: Whom calling threads wait for.
        self.waiting: set[Waiter | Batch] = set()
        self.loan: SocketLoan = SocketLoan(self, self._to_tell, self.waiting, self._wake)
        self._to_connect: SyncDriver | None = None
        self._connecting: SyncDriver | None = None
        self._given_up: SyncDriver | None = None  # while it was connecting
        #: The network thread, once there is one.
        self.thread: threading.Thread | None = None
        self._is_leaving = False  # it touches nothing any more that the next one uses
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives

    # -- calls of any thread -------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T], deadline: float = math.inf) -> T:
        """Do ``work`` inside the section. Of a call that does more, ``section.abandon`` is the handler."""
        entry = object()
        try:
            self.section.enter(entry, deadline)
            result = work()
            self.section.leave()
        except BaseException:
            self.section.abandon(entry)
            raise
        return result

    def start(self, *, is_awaited: bool) -> None:
        """Start the network thread, unless there is one; inside. ``is_awaited``: somebody hears of errors.

        Raises :class:`BusyError` if the system has no room for a thread; it may be tried again.
        """
        if self.machine.has_ended:
            self._connector.reopen()
            self._given_up = self._connecting  # the network thread may still be at the attempt before
        elif self.machine.state is ConnectionState.CLOSED:
            return
        self._log.is_awaited = is_awaited
        if self.thread is not None and not self._is_leaving:
            return
        waker = socket.socketpair()
        for end in waker:
            end.setblocking(False)
        thread = threading.Thread(target=self._run, args=waker, name=f"statestore {self.client_id}", daemon=True)
        try:
            thread_locks.start(thread)
        except BaseException:
            for end in waker:  # a thread that runs all the same finds that it is not this one's, and ends
                end.close()
            raise
        self._waker, self.thread, self._is_leaving = waker, thread, False

    def perform(self) -> None:
        """Carry out what the machine wants, and write; inside."""
        if self.loan.reader is None and threading.current_thread() is not self.thread:
            self.loan.end_parking()  # somebody who does not read himself waits for something
        if self.machine.actions:
            self.carry_out()
        self._flush()
        if self.loan.reader is None and self.machine.request_table.silence.deadline < self.loan.looked_after_at:
            self._wake()  # the network thread would sleep for longer than an answer may take

    def expire(self) -> None:
        """Reject what has reached its deadline, without waiting for the network thread to do so."""
        self.run(self._expire)

    def _expire(self) -> None:
        self.machine.tick(self.now())
        self.perform()
        self._wake()  # the connection may have been given up, and the network thread has to take the news

    def read(self, reader: object, is_pending: Callable[[], bool], deadline: float) -> None:
        """Read while ``is_pending``, if it is this reader that has borrowed the socket, and give it back.

        Or less, when there is something that the network thread has to see to. After an exception, the caller abandons
        the entry of this reader.
        """
        loan, section = self.loan, self.section
        fileno = loan.lent_to(reader)
        try:
            while fileno is not None and is_pending() and (remaining := deadline - monotonic()) > 0:
                # In slices: another thread may have brought the outcome, by closing the client for one.
                slice_s = ACK_DELAY_S if self.output.unflushed_acks else _SLICE_S
                loan.poller.wait_for_input(fileno, min(remaining, slice_s))
                section.enter(reader)
                goes_on = loan.renew(reader)
                if goes_on:
                    self._take_events()
                    goes_on = is_pending() and loan.may_go_on()
                if not goes_on and loan.reader is reader:
                    loan.give_back()
                section.leave()
                if not goes_on:
                    break
        except BaseException:
            self.section.abandon(reader)
            raise
        finally:
            self.give_back(reader)

    def give_back(self, reader: object) -> None:
        """If it has the socket still: for calls that end before they read."""
        if self.loan.reader is reader:
            self.run(self.loan.give_back)

    def interrupted(self) -> None:
        """An exception has left a change of this thread half done, so that nothing in it can be relied upon.

        Start over: a new connection without the old session. Everybody who waits learns that the outcome is unknown.
        """
        for driver in (self.driver, self._to_connect):
            if driver is not None:
                driver.abort()
        self.use(None)
        self._to_connect = None
        self._given_up = self._connecting
        self.loan.forget()
        self.machine.interrupted(self.now())
        for waiter in list(self.waiting):
            text = "a signal interrupted the client while it was at work"
            waiter.reject(ConnectionLostError(text, may_have_been_applied=True))
        self.waiting.clear()
        self._wake()

    def close(self, why: StateStoreError | None = None) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`join` is to follow.

        With ``why`` it may be opened again. Never waits: on top of a frame that is inside, this happens when that one
        leaves.
        """
        self.section.later(partial(self._close, why))
        self._connector.close()
        self._wake()

    def _close(self, why: StateStoreError | None) -> None:
        self.machine.close(self.now(), why)
        self.perform()

    def join(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the network thread has ended."""
        if self.thread is None or self.thread is threading.current_thread() or self.section.is_interrupted:
            return
        if self._connecting is not None:
            return  # that cannot be interrupted; the thread ends when it is over
        self.thread.join(_CLOSE_TIMEOUT_S)
        if self.thread.is_alive():
            self.section.later(self.drop)
            self._wake()
            self.thread.join(_CLOSE_TIMEOUT_S)

    def drop(self) -> None:
        """Give up this process's descriptor of the connection."""
        if self.driver is not None:
            self.driver.abort()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _report(self, news: StateChanged | Remark) -> None:
        self._to_tell.append(news)

    def _open(self, action: Open) -> None:
        self._to_connect = self._connector.open(clean_start=action.clean_start, new_round=action.new_round)
        self._wake()  # a caller's own deadline may have brought the time of the next attempt to light

    def _flush(self) -> None:
        self.output.flush()
        driver = self.driver
        if driver is not None and driver.wants_write and threading.current_thread() is not self.thread:
            self._wake()

    def _take_events(self) -> None:
        output, machine, driver = self.output, self.machine, self.driver
        if driver is not None:
            moment = self.now()
            events = driver.poll()
            output.unflushed_acks = 0  # it writes as well
            machine.receive(events, moment)
            requests = machine.request_table
            if moment.monotonic >= requests.silence.deadline or moment.monotonic >= requests.absence.deadline:
                machine.tick(moment)  # who reads sees it sooner than the network thread, which sleeps
        if machine.actions:
            self.carry_out()
            driver = self.driver
        acks_may_wait = 0 < output.unflushed_acks <= MAX_WAITING_ACKS and not output.unflushed
        if not acks_may_wait or (driver is not None and driver.wants_write):
            self._flush()

    # -- the network thread --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
                self._waker[0].send(b"\0")

    def _run(self, waker_in: socket.socket, waker_out: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, waker_in, waker_out:
            with self.section:  # which the thread that starts this one is inside of
                if self.thread is not threading.current_thread():
                    return  # an exception came between: there will be another one
            selector.register(waker_out, selectors.EVENT_READ)
            self.loan.selector = selector
            try:
                for timeout in self._rounds():
                    selector.select(timeout)
                    with contextlib.suppress(BlockingIOError):
                        waker_out.recv(4096)
            except BaseException as error:
                logger.exception("the network thread of client %s failed", self.client_id)
                with self.section:
                    self._is_leaving = True
                    self._close(ConnectionLostError(f"the network thread failed: {error!r}"))
                raise
            finally:
                with self.section:
                    if self.loan.selector is selector:  # and not of the next thread, which may have begun
                        self.loan.forget()
                        self.loan.selector = None

    def _rounds(self) -> Iterator[float]:
        """Do what is due, then yield how long to wait, until the client is closed and its DISCONNECT is written."""
        while True:
            with self.section:
                self.machine.tick(self.now())
                if self.loan.lasts():
                    self.perform()  # who borrowed the socket reads
                else:
                    self._take_events()
                to_connect, self._to_connect = self._to_connect, None
                self._connecting = to_connect
            self._notify()
            if to_connect is not None:
                self._connect(to_connect)
                continue
            with self.section:
                # Inside: another thread may close the driver, and the descriptor would be gone or another's.
                self.loan.watch()
                timeout = self._sleep_for()
                is_over = self.machine.state is ConnectionState.CLOSED
                if is_over and not self.loan.is_watched and not self._to_tell:
                    self._is_leaving = True
                    return
            yield timeout

    def _connect(self, driver: SyncDriver) -> None:
        driver.connect()
        with self.section:
            self._connecting = None
            if driver is not self._given_up:
                self.use(driver)
            if driver is self._given_up or self.machine.state is ConnectionState.CLOSED:
                driver.abort()

    def _sleep_for(self) -> float:
        moment, loan, driver = monotonic(), self.loan, self.driver
        deadlines = [moment + _LONGEST_SLEEP_S, loan.next_look(moment)]
        if self.output.unflushed_acks and not loan.is_lent:
            deadlines.append(moment + ACK_DELAY_S)
        if (deadline := self.machine.next_deadline()) is not None:
            deadlines.append(deadline)
        if driver is not None:
            deadlines.append(driver.next_deadline())
        loan.looked_after_at = min(deadlines)
        return max(0.0, loan.looked_after_at - moment)

    def _notify(self) -> None:
        """Log and report state changes, outside the section: a listener may call the client."""
        if not self._to_tell:
            return
        with self.section:
            changes = self._to_tell.copy()
            self._to_tell.clear()
        for change in changes:
            self._log.note(change, self.now().monotonic)
            if self._on_state is not None and isinstance(change, StateChanged):
                call_back(f"the state listener of client {self.client_id}", self._on_state, change.state, change.error)


#: What a lasting command (a release) returns that could not wait for its answer.
ON_ITS_WAY: Final = DeleteResult(1, None)


class Engine(BaseEngine):
    """One client without the user's methods."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._link = link

    def open(self, timeout: float | None, *, wait: bool = True) -> None:
        """Start the network thread and, unless it is to connect in the background, wait until requests can leave."""
        self._check_thread()
        link, waiter = self._link, Waiter()

        def begin() -> None:
            link.start(is_awaited=wait)
            if wait:
                link.waiting.add(waiter)
            self.is_in_background: bool = not wait
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
        timeout: Timeout,
        fencing_token: Token | None = None,
        *,
        lasting: bool = False,
    ) -> Any:
        """Send one command and wait for its result.

        A lasting one goes on its way also if the caller is interrupted; and if the caller has interrupted this client
        at work, or is its network thread, it leaves when that work is done. :data:`ON_ITS_WAY` is returned then.
        """
        link, waiter = self._link, Waiter()
        limit = self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else check_timeout(timeout)
        token = None if fencing_token is None else token_of(fencing_token)
        if lasting and (link.section.is_interrupted or link.thread is threading.current_thread()):
            self._send_later(command, waiter, limit, token)
            return ON_ITS_WAY
        self._check_usable()
        deadline = _deadline(limit)
        request = None
        try:
            link.section.enter(waiter, deadline)
            link.waiting.add(waiter)
            link.loan.take(waiter)
            request = self._requests.submit(command, waiter, self._now(), timeout=limit, fencing_token=token)
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
        self._requests.cancel(request, self._now())
        self._link.perform()

    def _send_later(
        self, command: Command, waiter: Waiter, timeout: float | None, fencing_token: HlcTimestamp | None = None
    ) -> None:
        def send() -> None:
            self._requests.submit(command, waiter, self._now(), timeout=timeout, fencing_token=fencing_token)
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
        timeout: Timeout,
        fencing_token: Token | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns their results in order, or raises :class:`BatchError`.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window, by number or bytes, is taken from ``commands`` ahead of the answers.
        When ``commands`` raises or the thread is interrupted, nobody waits for what is under way.
        """
        limit = self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else check_timeout(timeout)
        token = None if fencing_token is None else token_of(fencing_token)
        self._check_usable()
        link, batch = self._link, Batch()
        source = iter(commands)
        deadline = math.inf
        link.waiting.add(batch)
        try:
            while chunk := next_commands(source, self._await_room(batch, deadline)):
                deadline = _deadline(limit)  # of the last one that is sent now
                try:
                    link.section.enter(batch, deadline)
                except RequestTimeoutError as busy:  # these were not sent; others may have their results by now
                    batch.outcomes.extend(busy for _ in chunk)
                    continue
                link.loan.take(batch)
                self._submit_chunk(chunk, batch, limit, token)
                link.perform()
                link.section.leave()
            try:
                link.section.enter(batch, deadline)
            except RequestTimeoutError:
                pass  # the network thread reads
            else:
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
        raise_failures(batch.outcomes, self.store_id)
        return batch.outcomes

    def _await_room(self, batch: Batch, deadline: float) -> int:
        """Wait until more requests of the batch may be submitted, and return how many."""
        window = self._requests.window
        while batch.outstanding > (depth := window.depth):
            batch.low_water = depth
            self._await_batch(batch, deadline, depth)
        return 2 * depth - batch.outstanding

    def _cancel_batch(self, batch: Batch) -> None:
        self._requests.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
        self._link.perform()

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
        self._requests.submit(command, Batch().slot(), self._now(), timeout=timeout)
        self._link.perform()

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        link = self._link
        if os.getpid() != self._pid or link.thread is None:
            return
        try:
            if self._machine.state is ConnectionState.CLOSED:
                return
        except AttributeError:  # at the very end of the interpreter, when modules have lost their names
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

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task or use statestore_client.spark)"
            )

    def _check_usable(self) -> None:
        link = self._link
        if (
            os.getpid() == self._pid
            and link.thread is not None
            and link.thread is not threading.current_thread()
            and not self._requests.is_closed
        ):
            return  # as nearly always
        self._check_thread()
        self._machine.check_open()
        if link.thread is None:
            raise BusyError("the client was not opened: use it as a context manager or call open()")

    def _check_thread(self) -> None:
        self.check_process()
        if self._link.thread is threading.current_thread():
            raise BusyError("a state listener cannot wait for the network: it runs in the network's thread")

    def _await(self, waiter: Waiter, deadline: float) -> Any:
        self._link.read(waiter, waiter.is_pending, deadline)
        while waiter.is_pending() and not waiter.wait(_remaining(deadline)):
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
