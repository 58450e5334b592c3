"""The connection of an asyncio client. The event loop is the only thread; nothing here awaits inside a change.

Rules:

* Requests made in one turn of the loop are written together at its end.
* One timer serves all deadlines; it is set again only when an earlier one comes up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Final

from statestore_client.action_runner import ActionRunner
from statestore_client.aio.callbacks import Calls
from statestore_client.aio.tasks import Tasks
from statestore_client.clocks import Clock
from statestore_client.core.actions import Observer, Open, StateChanged, StateListener
from statestore_client.core.request import Request
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.driver import ACK_DELAY_S, FEW_ACKS, AioConnector, AioDriver
from statestore_client.reports import ConnectionLog
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Event

__all__ = ["Link"]

logger: logging.Logger = logging.getLogger("statestore_client")

#: How long (seconds) closing waits for the DISCONNECT to be written, and for tasks to end.
_CLOSE_TIMEOUT_S: Final = 2.0


class Link:
    """The connection of one client, in the loop that opened it."""

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        on_state: StateListener | None,
        give_up_on: tuple[type[StateStoreError], ...],
        clock: Clock,
        connector: AioConnector,
    ) -> None:
        #: The MQTT client's name.
        self.client_id: str = client_id
        self._connector = connector
        #: What the client was made with.
        self.settings = settings
        #: Where it reads the time.
        self.now = clock
        #: The loop that opened it.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.actions: ActionRunner[AioDriver] = ActionRunner(
            settings,
            client_id,
            give_up_on=give_up_on,
            connector=connector,
            on_open=self._open,
            on_state=self._state_changed,
        )
        self._machine = self.actions.machine
        self._newest: AioDriver | None = None  # the driver in use, or its successor that is connecting
        self._gone = asyncio.Event()  # the newest one has reported its end
        self._gone.set()  # there is none
        self._connecting: asyncio.Task[None] | None = None
        #: What the client does beside its callers.
        self.tasks: Tasks = Tasks()
        # In a task of its own: the listener may call the client, which is in the middle of carrying out actions.
        what = f"the state listener of client {client_id}"
        self._on_state = None if on_state is None else Calls(what, on_state, self.tasks)
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
        self._carry_out()
        self._set_timer()

    def perform_for(self, request: Request | None) -> None:
        """The same when nothing but this request was submitted: mostly, an earlier one has set the timer."""
        self._carry_out()
        if request is not None and min(request.deadline, self._machine.exchange.silence.deadline) < self._wakes_at:
            self._set_timer()

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again, or has ended."""
        self.actions.caught_up(observer)
        self.perform()

    def begin(self, *, is_awaited: bool) -> asyncio.AbstractEventLoop:
        """Belong to the running loop, for good, or until the client has ended; returns the loop that it belongs to.

        ``is_awaited``: somebody hears of errors. Raises RuntimeError if no loop runs, BusyError if the driver cannot
        use it, or if another client uses the application's paho client now.
        """
        loop = asyncio.get_running_loop()
        if self._machine.has_ended:
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
        self._machine.close(self.now(), why)
        self.perform()
        self.actions.flush()
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
            if self.actions.driver is not None:
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
        self._machine.close(self.now())
        self._connector.close()
        self.actions.driver = None
        self.has_ended = True
        logger.warning(
            "the event loop of client %s was closed before the client: its connection was cut, and its locks are free "
            "when their leases end",
            self.client_id,
        )

    def abandon(self) -> None:
        """Give up this process's descriptor of the connection."""
        if self.actions.driver is not None:
            self.actions.driver.abort()

    # -- inside a change -----------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        actions = self.actions
        actions.perform()
        if not actions.unflushed:
            return
        if self._turn_end is None and self._machine.exchange.in_flight == 1:
            # A lone request need not wait for the turn's end. Where more are under way, those of one turn leave
            # together.
            actions.flush()
        else:
            self._flush_at_turn_end()

    def _flush_at_turn_end(self) -> None:
        if self._turn_end is None and self.loop is not None:
            self._turn_end = self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_end = None
        if self.actions.unflushed or self.actions.unflushed_acks > FEW_ACKS:
            self.actions.flush()

    def _flush_acks(self) -> None:
        self._ack_timer = None
        self.actions.flush()

    def _state_changed(self, action: StateChanged) -> None:
        self._log.note(action, self.now().monotonic)
        if self._on_state is not None and self.loop is not None:
            self._on_state.put(action.state, action.error)

    def _open(self, action: Open) -> None:
        driver = self._connector.open(
            clean_start=action.clean_start,
            new_round=action.new_round,
            on_events=lambda events: self._take_events(driver, events),
        )
        self._newest = driver
        self._gone = asyncio.Event()
        self._connecting = self.tasks.start(driver.connect(), name=f"statestore {self.client_id} connects")

    # -- the network ---------------------------------------------------------------------------------------------------

    def _take_events(self, driver: AioDriver, events: Sequence[Event]) -> None:
        """Called by the driver."""
        if driver is not self._newest:
            return
        self.actions.driver = driver
        moment = self.now()
        for event in events:
            if isinstance(event, Closed):
                self.actions.driver = None
                self._gone.set()
            self._machine.receive(event, moment)
        self.perform()
        if self._ack_timer is None and self.loop is not None:
            # Also for what the connection itself has to answer, QoS 2 for example.
            self._ack_timer = self.loop.call_later(ACK_DELAY_S, self._flush_acks)
        if self._machine.exchange.in_flight or self.actions.unflushed_acks > FEW_ACKS:
            self._flush_at_turn_end()  # of the next one: whoever was answered has sent the next request by then

    def _set_timer(self) -> None:
        deadline = self._machine.next_deadline()
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
        self._machine.tick(self.now())
        self.perform()
