"""Carries out on the driver what the machine of one client wants: the same in both shells, which add the waiting.

It never waits, and belongs to one thread at a time: the shells see to that. What a shell has to see to itself, it is
told in the order in which it happens: that a connection is to be opened, and each change of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import Any, Generic, TypeVar

from statestore_client.core.actions import (
    Acknowledge,
    ConnectionState,
    Disconnect,
    Drop,
    Notify,
    Observer,
    Open,
    Ping,
    Publish,
    Reject,
    Resolve,
    StateChanged,
    Subscribe,
)
from statestore_client.core.connection import Backoff, ClientMachine, node_id
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.driver import FLUSH_EVERY, Connector, Driver
from statestore_client.settings import ConnectionSettings
from statestore_client.tracing import tracer
from statestore_client.wire.hlc import HybridLogicalClock


class HeldAcknowledgements:
    """Holds acknowledgements back while a watch whose reader may miss nothing has no room for another event.

    The broker then stops sending once its window is used up. It stops for all watches of the client, and for the
    answers to its requests too: acknowledgements leave in the order in which the messages came (MQTT 5.0, 4.6).
    """

    __slots__ = ("_full", "_held")

    def __init__(self) -> None:
        self._full: set[Observer] = set()
        self._held: list[int] = []

    def is_full(self, observer: Observer) -> None:
        """A watch took its last event for now. From here on nothing is acknowledged, that event's message included."""
        self._full.add(observer)

    def may_leave(self, ack_id: int) -> bool:
        """Whether to acknowledge now; if not, it is kept."""
        if not self._full:
            return True
        self._held.append(ack_id)
        return False

    def has_room(self, observer: Observer) -> list[int]:
        """A watch can take events again, or has ended. Returns what is to be acknowledged now, in this order."""
        self._full.discard(observer)
        if self._full:
            return []
        held, self._held = self._held, []
        return held

    def reconnecting(self) -> None:
        """Another connection: there the broker sends again what was not acknowledged. A watch that is full stays so."""
        self._held.clear()


D = TypeVar("D", bound=Driver)


class ActionRunner(Generic[D]):
    """The machine of one client, and the driver of its connection.

    :param give_up_on: what ends the client, if connecting again in the same way will not cure it.
    :param connector: makes the drivers.
    :param on_open: makes and connects the next driver, which becomes :attr:`driver` once others may use it.
    :param on_state: is told of each change.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        *,
        give_up_on: tuple[type[StateStoreError], ...],
        connector: Connector,
        on_open: Callable[[Open], None],
        on_state: Callable[[StateChanged], None],
    ) -> None:
        self.machine: ClientMachine = ClientMachine(
            client_id,
            # The machine is used by one thread at a time, so its clock is, too.
            clock=HybridLogicalClock(node_id(client_id), guard=nullcontext()),
            random=Random(),  # noqa: S311 - jitter and request ids, no secrets
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            clean_start=settings.clean_start,
            retry_first_connect=settings.retry_first_connect,
            give_up_on=give_up_on,
            alternatives=lambda: connector.addresses,
            backoff=Backoff(settings.reconnect_delay, settings.max_reconnect_delay),
            silence_timeout=settings.silence_timeout,
            line=lambda: self.driver,
            complaint=connector.complaint,
            trace=tracer(settings) if settings.tracing else None,
        )
        #: The connection; None before the first one, and while the next one is being made.
        self.driver: D | None = None
        #: Publications, and what else must not wait, since the last flush.
        self.unflushed: int = 0
        self.unflushed_acks: int = 0
        self._settle = connector.settle
        self._on_open = on_open
        self._on_state = on_state
        self._acknowledgements = HeldAcknowledgements()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Publish: self._publish,
            Acknowledge: self._acknowledge,
            Reject: self._reject,
            Notify: self._notify,
            Subscribe: self._subscribe,
            StateChanged: self._state_changed,
            Open: self._open,
            Disconnect: self._disconnect,
            Drop: self._drop,
            Ping: self._ping,
        }

    def perform(self) -> None:
        """Carry out what the machine wants, until it wants nothing more. To flush is for the shell."""
        machine, handlers = self.machine, self._handlers
        while machine.actions:
            for action in machine.take_actions():
                if type(action) is Resolve:  # of every request, at hand
                    action.waiter.resolve(action.result)
                else:
                    handlers[type(action)](action)

    def flush(self) -> None:
        """Write what is queued."""
        self.unflushed = self.unflushed_acks = 0
        if self.driver is not None:
            self.driver.flush()

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again, or has ended: acknowledge what waited for it."""
        for ack_id in self._acknowledgements.has_room(observer):
            if self.driver is not None:
                self.driver.acknowledge(ack_id)
                self.unflushed += 1

    # -- actions -------------------------------------------------------------------------------------------------------

    def _publish(self, action: Publish) -> None:
        driver = self.driver
        if driver is not None:
            driver.publish(action.delivery_id, action.message, action.again)
            self.unflushed += 1
            if self.unflushed >= FLUSH_EVERY:
                self.flush()

    def _subscribe(self, action: Subscribe) -> None:
        if self.driver is not None:
            self.driver.subscribe(action.subscribe_id, action.topic_filters)
            self.unflushed += 1

    def _acknowledge(self, action: Acknowledge) -> None:
        if self._acknowledgements.may_leave(action.ack_id) and self.driver is not None:
            self.driver.acknowledge(action.ack_id)
            self.unflushed_acks += 1

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)

    def _notify(self, action: Notify) -> None:
        if not action.observer.push(action.event):
            self._acknowledgements.is_full(action.observer)

    def _state_changed(self, action: StateChanged) -> None:
        if action.state in (ConnectionState.CONNECTED, ConnectionState.CLOSED):
            self._settle(for_good=action.state is ConnectionState.CLOSED)
        self._on_state(action)

    def _open(self, action: Open) -> None:
        self.driver = None
        self._acknowledgements.reconnecting()
        self._on_open(action)

    def _disconnect(self, _action: Disconnect) -> None:
        if self.driver is not None:
            self.driver.disconnect()
            self.unflushed += 1

    def _ping(self, _action: Ping) -> None:
        if self.driver is not None:
            self.driver.ping()
            self.unflushed += 1

    def _drop(self, _action: Drop) -> None:
        if self.driver is not None:
            self.driver.abort()
            self.unflushed += 1  # the flush, or whoever polls, takes the news from the driver
