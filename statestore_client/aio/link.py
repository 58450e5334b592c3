"""The client machine and its driver: carries out what the machine asks for, and tells it the news.

The event loop is the only thread. Nothing here awaits inside a change.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from statestore_client.aio.callbacks import Calls
from statestore_client.aio.tasks import Tasks
from statestore_client.aio.waiters import Waiter
from statestore_client.clocks import Clock
from statestore_client.core.acknowledgements import HeldAcknowledgements
from statestore_client.core.actions import (
    Acknowledge,
    ConnectionState,
    Disconnect,
    Drop,
    Notify,
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
    ForkedClientError,
)
from statestore_client.mqtt.driver import ACK_DELAY_S, FEW_ACKS, FLUSH_EVERY, AioConnector, AioDriver
from statestore_client.reports import ConnectionLog
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.messages import Closed, Event

__all__ = ["Link"]


class Link:
    """What a client has of the network; :class:`~statestore_client.aio.engine.Engine` adds the calls."""

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        on_state: StateListener | None,
        clock: Clock,
        connector: AioConnector,
    ) -> None:
        self._settings = settings
        self._client_id = client_id
        self._connector = connector
        self._now = clock
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._machine = ClientMachine(
            client_id,
            # The loop is the only thread; a lock costs less to enter than a class that does nothing.
            clock=HybridLogicalClock(node_id(client_id), guard=threading.Lock()),
            random=Random(),  # noqa: S311 - jitter and request ids, no secrets
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            clean_start=settings.clean_start,
            retry_first_connect=settings.retry_first_connect,
            backoff=Backoff(settings.reconnect_delay, settings.max_reconnect_delay),
            complaint=connector.complaint,
        )
        self._driver: AioDriver | None = None  # connected
        self._newest: AioDriver | None = None  # the same one, or its successor that is connecting
        self._gone = asyncio.Event()  # the newest one has reported its end
        self._gone.set()  # there is none
        self._connecting: asyncio.Task[None] | None = None
        self.tasks = Tasks()
        # In a task of its own: the listener may call the client, which is in the middle of carrying out actions.
        what = f"the state listener of client {client_id}"
        self._on_state = None if on_state is None else Calls(what, on_state, self.tasks)
        self._log = ConnectionLog(client_id)
        self._ended = False  # closed, and nothing is left
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf  # when it fires
        self._turn_end: asyncio.Handle | None = None  # of this turn or the next: what was queued is written then
        self._unflushed = 0  # publications, and what else must not wait, since the last flush
        self._unflushed_acks = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._acknowledgements = HeldAcknowledgements()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Publish: self._publish,
            Resolve: self._resolve,
            Acknowledge: self._acknowledge,
            Reject: self._reject,
            Notify: self._notify,
            Subscribe: self._subscribe,
            StateChanged: self._state_changed,
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
            raise ForkedClientError("this client was opened before fork(); open a new one in the child process")

    # -- carrying out actions ------------------------------------------------------------------------------------------

    def _perform(self) -> None:
        """Carry out what the machine asks for, and see to it that its next deadline is met."""
        self._carry_out()
        self._set_timer()

    def _carry_out(self) -> None:
        machine, handlers = self._machine, self._handlers
        while machine.actions:
            for action in machine.take_actions():
                handlers[type(action)](action)
        if not self._unflushed:
            return
        if self._turn_end is None and machine.exchange.in_flight == 1:
            # A lone request need not wait for the turn's end. Where more are under way, those of one turn leave
            # together.
            self._flush()
        else:
            self._flush_at_turn_end()

    def _flush_at_turn_end(self) -> None:
        if self._turn_end is None and self._loop is not None:
            self._turn_end = self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_end = None
        if self._unflushed or self._unflushed_acks > FEW_ACKS:
            self._flush()

    def _flush_acks(self) -> None:
        self._ack_timer = None
        self._flush()

    def _flush(self) -> None:
        self._unflushed = self._unflushed_acks = 0
        if self._driver is not None:
            self._driver.flush()

    def _publish(self, action: Publish) -> None:
        driver = self._driver
        if driver is not None:
            driver.publish(action.delivery_id, action.message, action.again)
            self._unflushed += 1
            if self._unflushed >= FLUSH_EVERY:
                self._flush()

    def _subscribe(self, action: Subscribe) -> None:
        if self._driver is not None:
            self._driver.subscribe(action.subscribe_id, action.topic_filters)
            self._unflushed += 1

    def _acknowledge(self, action: Acknowledge) -> None:
        if self._acknowledgements.may_leave(action.ack_id) and self._driver is not None:
            self._driver.acknowledge(action.ack_id)
            self._unflushed_acks += 1

    def _resolve(self, action: Resolve) -> None:
        waiter: Waiter = action.waiter
        if not waiter.done():  # the caller may have been cancelled in this very turn of the loop
            waiter.set_result(action.result)

    def _reject(self, action: Reject) -> None:
        waiter: Waiter = action.waiter
        if not waiter.done():
            waiter.set_exception(action.error)

    def _notify(self, action: Notify) -> None:
        if not action.observer.push(action.event):
            self._acknowledgements.is_full(action.observer)

    def _state_changed(self, action: StateChanged) -> None:
        self._log.note(action)
        if self._on_state is not None and self._loop is not None:
            self._on_state.put(action.state, action.error)

    def _open(self, action: Open) -> None:
        driver = self._connector.open(
            clean_start=action.clean_start, on_events=lambda events: self._take_events(driver, events)
        )
        self._driver = None  # nobody may use it while it connects
        self._acknowledgements.reconnecting()
        self._newest = driver
        self._gone = asyncio.Event()
        self._connecting = self.tasks.start(driver.connect(), name=f"statestore {self._client_id} connects")

    def _disconnect(self, _action: Disconnect) -> None:
        if self._driver is not None:
            self._driver.disconnect()
            self._unflushed += 1

    def _drop(self, _action: Drop) -> None:
        if self._driver is not None:
            self._driver.abort()
            self._unflushed += 1  # the flush takes the news from the driver

    # -- the network ---------------------------------------------------------------------------------------------------

    def _take_events(self, driver: AioDriver, events: Sequence[Event]) -> None:
        """Called by the driver."""
        if driver is not self._newest:
            return
        self._driver = driver
        moment = self._now()
        for event in events:
            if isinstance(event, Closed):
                self._driver = None
                self._gone.set()
            self._machine.receive(event, moment)
        self._perform()
        if self._ack_timer is None and self._loop is not None:
            # Also for what the connection itself has to answer, QoS 2 for example.
            self._ack_timer = self._loop.call_later(ACK_DELAY_S, self._flush_acks)
        if self._machine.exchange.in_flight or self._unflushed_acks > FEW_ACKS:
            self._flush_at_turn_end()  # of the next one: whoever was answered has sent the next request by then

    def _set_timer(self) -> None:
        deadline = self._machine.next_deadline()
        if deadline is None or deadline >= self._wakes_at or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = deadline
        self._timer = self._loop.call_at(deadline, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._wakes_at = math.inf
        self._machine.tick(self._now())
        self._perform()
