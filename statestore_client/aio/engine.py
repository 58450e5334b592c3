"""The calls of a client, from any task: each hands its request to the machine and waits.

A client belongs to the loop and the process that opened it; elsewhere every call raises. :class:`Engine` is the calls,
:class:`Link` the connection and its timers. The event loop is the only thread; nothing awaits inside a change. Rules:

* Requests made in one turn of the loop are written together at its end.
* One timer serves all deadlines; it is set again only when an earlier one comes up.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from statestore_client.aio.primitives import Batch, CallbackQueue, Tasks, Waiter, Worker, finish
from statestore_client.clocks import Clock
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
from statestore_client.core.results import within
from statestore_client.errors import BusyError, ClosedError, ForkedClientError, StateStoreError
from statestore_client.mqtt.driver import ACK_DELAY_S, MAX_WAITING_ACKS, AioConnector, AioDriver
from statestore_client.reports import ConnectionLog, warn_unclosed
from statestore_client.settings import ConnectionSettings
from statestore_client.shell import BaseEngine, BaseLink, BatchSlot
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.messages import Closed, Event

logger: logging.Logger = logging.getLogger("statestore_client")

#: How long (seconds) closing waits for the DISCONNECT to be written, and for tasks to end.
_CLOSE_TIMEOUT_S: Final = 2.0


class Link(BaseLink[AioDriver]):
    """The connection of one client, in the loop that opened it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        on_state: StateListener | None,
        give_up_on: tuple[type[StateStoreError], ...],
        clock: Clock,
        connector: AioConnector,
        hlc: HybridLogicalClock | None,
    ) -> None:
        super().__init__(settings, client_id, give_up_on=give_up_on, clock=clock, connector=connector, hlc=hlc)
        self._connector = connector
        #: The loop that opened it.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._newest: AioDriver | None = None  # the driver in use, or its successor that is connecting
        self._gone = asyncio.Event()  # the newest one has reported its end
        self._gone.set()  # there is none
        self._connecting: asyncio.Task[None] | None = None
        #: What the client does beside its callers.
        self.tasks: Tasks = Tasks()
        # In a task of its own: the listener may call the client, which is in the middle of carrying out actions.
        what = f"the state listener of client {client_id}"
        self._on_state = None if on_state is None else CallbackQueue(what, on_state, self.tasks)
        self._log = ConnectionLog(client_id)
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf  # when it fires
        self._turn_end: asyncio.Handle | None = None  # of this turn or the next: what was queued is written then
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None  # nobody waits for it
        #: Closed, and nothing is left.
        self.has_ended: bool = False

    # -- calls of any task ---------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Carry out what the machine wants, and see to it that its next deadline is met."""
        self.carry_out()
        if self.output.unflushed:
            self._write_soon()
        self._set_timer()

    def sent(self, request: Request) -> None:
        """See to a request that was submitted; mostly, an earlier one has set the timer."""
        if self._turn_end is None and self.machine.request_table.window.count == 1:
            self.output.flush()  # a lone request need not wait for the turn's end
        elif self.output.unflushed:
            self._write_soon()
        if request.deadline < self._wakes_at or self.machine.request_table.silence.deadline < self._wakes_at:
            self._set_timer()

    def _write_soon(self) -> None:
        """Write what must not wait: at once, or together with what follows in this turn of the loop."""
        if self._turn_end is None and self.machine.request_table.window.count == 1:
            self.output.flush()
        else:
            self._flush_at_turn_end()

    def begin(self, *, is_awaited: bool) -> asyncio.AbstractEventLoop:
        """Belong to the running loop, for good, or until the client has ended; returns the loop that it belongs to.

        ``is_awaited``: somebody hears of errors. Raises RuntimeError if no loop runs, BusyError if the driver cannot
        use it, or if another client uses the application's paho client now.
        """
        loop = asyncio.get_running_loop()
        if self.machine.has_ended:
            self._connector.check_loop(loop)
            self._connector.reopen()
            for handle in (self._timer, self._turn_end, self._ack_timer):
                if handle is not None:
                    handle.cancel()
            self._timer = self._turn_end = self._ack_timer = None
            self._wakes_at = math.inf
            self.loop, self.has_ended = loop, False
        elif self.loop is None:
            self._connector.check_loop(loop)
            self.loop = loop
        self._log.is_awaited = is_awaited
        return self.loop

    def close(self, why: StateStoreError | None = None) -> None:
        """Reject what waits, and begin to disconnect: nothing more can be sent. :meth:`join` is to follow.

        With ``why`` it may be opened again.
        """
        self.machine.close(self.now(), why)
        self.perform()
        self.output.flush()
        self._connector.close()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._wakes_at = math.inf
        if self._connecting is not None:
            self._connecting.cancel()  # its thread ends by itself when the attempt is over

    def end(self) -> None:
        """Close, and join in a task: nobody is there to wait for that."""
        self.close()
        self._ending = asyncio.Task(self.join(), loop=self.loop, name=f"statestore {self.client_id} ends")

    async def join(self) -> None:
        """Return when DISCONNECT is written, or nobody takes it, and the connection and all tasks have ended."""
        try:
            if self.driver is not None:
                await self._is_gone()
        finally:  # also if the caller is cancelled, and if the connection is not up: it may wait for CONNACK
            if self._newest is not None and not self._gone.is_set():
                self._newest.abort()
                self._newest.flush()  # which makes it report its end
        await self._is_gone()
        await self.tasks.end(_CLOSE_TIMEOUT_S)
        self.has_ended = True

    async def _is_gone(self) -> None:
        if self._gone.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._gone.wait()

    @property
    def is_stranded(self) -> bool:
        """Whether its loop is closed: nothing can be sent or awaited any more."""
        return self.loop is not None and self.loop.is_closed()

    def strand(self) -> None:
        """The end without a loop: reject what waits, close the socket without a goodbye, and say so."""
        if self._newest is not None:
            self._newest.abort()
        self.machine.close(self.now())
        self._connector.close()
        self.use(None)
        self.has_ended = True
        logger.warning(
            "the event loop of client %s was closed before the client: its connection was cut, and its locks are free "
            "when their leases end",
            self.client_id,
        )

    def abandon(self) -> None:
        """Give up this process's descriptor of the connection."""
        if self.driver is not None:
            self.driver.abort()

    # -- inside a change -----------------------------------------------------------------------------------------------

    def _flush_at_turn_end(self) -> None:
        if self._turn_end is None and self.loop is not None:
            self._turn_end = self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_end = None
        if self.output.unflushed or self.output.unflushed_acks > MAX_WAITING_ACKS:
            self.output.flush()

    def _flush_acks(self) -> None:
        self._ack_timer = None
        self.output.flush()

    def _report(self, news: StateChanged | Remark) -> None:
        self._log.note(news, self.now().monotonic)
        if self._on_state is not None and self.loop is not None and isinstance(news, StateChanged):
            self._on_state.put(news.state, news.error)

    def _open(self, action: Open) -> None:
        driver = self._connector.open(
            clean_start=action.clean_start,
            new_round=action.new_round,
            on_events=self._take_events,
        )
        self._newest = driver
        self._gone = asyncio.Event()
        self._connecting = self.tasks.start(driver.connect(), name=f"statestore {self.client_id} connects")

    # -- the network ---------------------------------------------------------------------------------------------------

    def _take_events(self, driver: AioDriver, events: Sequence[Event]) -> None:
        """Called by the driver."""
        if driver is not self._newest:
            return
        if driver is not self.driver:
            self.use(driver)
        machine, output, requests = self.machine, self.output, self.machine.request_table
        if type(events[-1]) is Closed:
            self.use(None)
            self._gone.set()
        machine.receive(events, self.now())
        due, watching = min(requests.silence.deadline, requests.absence.deadline), machine.watching
        # The last two are :attr:`ClientMachine.is_watching`, in line.
        if (
            machine.actions
            or output.unflushed
            or due < self._wakes_at
            or watching.table.keys
            or watching.prefixes.watches
        ):
            self.perform()  # otherwise nothing is due earlier than before
        if self._ack_timer is None and self.loop is not None:
            # Also for what the connection itself has to answer, QoS 2 for example.
            self._ack_timer = self.loop.call_later(ACK_DELAY_S, self._flush_acks)
        if requests.window.count or output.unflushed_acks > MAX_WAITING_ACKS:
            self._flush_at_turn_end()  # of the next one: whoever was answered has sent the next request by then

    def _set_timer(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None or deadline >= self._wakes_at or self.loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = deadline
        # Not call_at(): a loop may count from another moment than the client's clock does.
        self._timer = self.loop.call_later(max(0.0, deadline - self.now().monotonic), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._wakes_at = math.inf
        self.machine.tick(self.now())
        self.perform()


_NO_LOOP: Final = (
    "no asyncio event loop runs here; under trio, use StateStoreClient in a thread (trio.to_thread.run_sync), or run "
    "the program on asyncio"
)
_ANOTHER_LOOP: Final = "this client was opened in another event loop; use it and close it there, one client per loop"
_CLOSED_LOOP: Final = (
    "the event loop in which this client was opened is closed: nothing can be sent any more. close() frees what the "
    "client holds; its locks are free when their leases end"
)


class Engine(BaseEngine):
    """One client without the user's methods."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._link = link

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
        waiter = Waiter(loop=loop) if wait else None
        self.is_in_background: bool = not wait
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
        timeout: Timeout,
        fencing_token: Token | None = None,
        *,
        lasting: bool = False,
    ) -> Any:
        """Send one command and wait for its result. A lasting one goes on its way also if the caller is cancelled."""
        link, requests = self._link, self._requests
        limit = self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else check_timeout(timeout)
        token = None if fencing_token is None else token_of(fencing_token)
        waiter = Waiter(loop=self._usable_loop())
        request = requests.submit(command, waiter, self._now(), timeout=limit, fencing_token=token)
        link.sent(request)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not lasting:  # harmless when it is done
                requests.cancel(request, self._now())
                link.perform()
            raise

    async def post(self, command: Command, *, patience: float, timeout: float) -> None:
        """Send one command, within ``timeout`` seconds; wait for its result no longer than ``patience`` seconds."""
        waiter = Waiter(loop=self._usable_loop())
        self._requests.submit(command, waiter, self._now(), timeout=timeout)
        self._link.perform()
        await waiter.wait(patience)

    async def call_many(
        self,
        commands: Iterable[Command | FencedCommand | StateStoreError],
        timeout: Timeout,
        fencing_token: Token | None = None,
    ) -> list[object]:
        """Send many commands, pipelined; returns their results in order, or raises :class:`BatchError`.

        An exception in ``commands`` stands for an item that could not even be made; a ``FencedCommand`` has a token of
        its own. No more than twice the window, by number or bytes, is taken from ``commands`` ahead of the answers.
        When ``commands`` raises or the task is cancelled, nobody waits for what is under way.
        """
        limit = self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else check_timeout(timeout)
        token = None if fencing_token is None else token_of(fencing_token)
        self._usable_loop()
        batch = Batch()
        source = iter(commands)
        try:
            while chunk := next_commands(source, await self._room(batch)):
                self._submit_chunk(chunk, batch, limit, token)
                self._link.perform()
            await batch.wait(0)
        except BaseException:
            self._requests.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, self._now())
            self._link.perform()
            raise
        raise_failures(batch.outcomes, self.store_id)
        return batch.outcomes

    async def _room(self, batch: Batch) -> int:
        """Wait until more requests of the batch may be submitted, and return how many."""
        window = self._requests.window
        while batch.outstanding > (depth := window.depth):
            batch.low_water = depth
            await batch.wait(depth)
        return 2 * depth - batch.outstanding

    async def watch(self, key: bytes, observer: Observer, options: WatchOptions, *, timeout: float | None) -> None:
        """Watch ``key``; returns when no later change can be missed."""
        waiter = Waiter(loop=self._usable_loop())
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
        self._requests.submit(command, Batch().slot(), self._now(), timeout=timeout)
        self._link.perform()

    def __del__(self) -> None:
        # All that could use or close the client was dropped. The collector may come in any thread, at any time.
        link = self._link
        if os.getpid() != self._pid or link.loop is None:
            return
        try:
            if self._machine.state is ConnectionState.CLOSED:
                return
        except AttributeError:  # at the very end of the interpreter, when modules have lost their names
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

    def check_process(self) -> None:
        """Raise in a forked child."""
        if os.getpid() != self._pid:
            raise ForkedClientError("this client was opened before fork(); open a new one in the child process")

    def _usable_loop(self) -> asyncio.AbstractEventLoop:
        """The client's loop, which is the running one. (In a forked child, none of the parent's is.)"""
        loop = self._link.loop
        try:
            if loop is not None and asyncio.get_running_loop() is loop and not self._requests.is_closed:
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
