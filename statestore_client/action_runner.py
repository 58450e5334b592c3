"""The half of a client's connection that both shells share, which add the waiting.

It makes the machine, and carries out on the driver what the machine asks for beside its requests. It never waits, and
belongs to one thread at a time: the shells see to that. They open connections, and report each change of the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from random import Random
from typing import Generic, TypeVar

from statestore_client.core.actions import (
    ConnectionState,
    Disconnect,
    Drop,
    Observer,
    Open,
    Output,
    Ping,
    StateChanged,
    Subscribe,
)
from statestore_client.core.connection import Backoff, ClientMachine, node_id
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.driver import Connector, Driver
from statestore_client.settings import ConnectionSettings
from statestore_client.tracing import tracer
from statestore_client.wire.hlc import HybridLogicalClock

D = TypeVar("D", bound=Driver)


class ActionRunner(ABC, Generic[D]):
    """The machine of one client, and the driver of its connection.

    :param give_up_on: what ends the client, if connecting again in the same way will not cure it.
    :param connector: makes the drivers.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        *,
        give_up_on: tuple[type[StateStoreError], ...],
        connector: Connector,
    ) -> None:
        #: The MQTT client's name.
        self.client_id: str = client_id
        #: What the client was made with.
        self.settings: ConnectionSettings = settings
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
            complaint=connector.complaint,
            trace=tracer(settings) if settings.tracing else None,
        )
        self.output: Output = self.machine.output
        #: The connection; None before the first one, and while the next one is being made.
        self.driver: D | None = None
        self._settle = connector.settle

    @abstractmethod
    def _open(self, action: Open) -> None:
        """Make and connect the next driver; it is to :meth:`use` once others may use it."""

    @abstractmethod
    def _state_changed(self, action: StateChanged) -> None:
        """Report a change."""

    def use(self, driver: D | None) -> None:
        """Let the machine publish on this connection."""
        self.driver = self.output.connection = driver

    def carry_out(self) -> None:
        """Carry out what the machine wants, until it wants nothing more. To flush is for the shell."""
        machine = self.machine
        while machine.actions:
            for action in machine.take_actions():
                self._carry_out(action)

    def caught_up(self, observer: Observer) -> None:
        """A watch that was full has room again, or has ended: acknowledge what waited for it."""
        self.output.caught_up(observer)
        self.perform()

    @abstractmethod
    def perform(self) -> None:
        """Carry out what the machine wants, and write it in time."""

    def _carry_out(self, action: Open | Disconnect | Drop | Ping | Subscribe | StateChanged) -> None:
        driver = self.driver
        match action:
            case StateChanged(state=state):
                if state in (ConnectionState.CONNECTED, ConnectionState.CLOSED):
                    self._settle(for_good=state is ConnectionState.CLOSED)
                self._state_changed(action)
            case Open():
                self.driver = None
                self.output.reconnecting()
                self._open(action)
            case _ if driver is None:
                pass
            case Subscribe(subscribe_id=subscribe_id, topic_filters=topic_filters):
                driver.subscribe(subscribe_id, topic_filters)
                self.output.unflushed += 1
            case Ping():
                driver.ping()
                self.output.unflushed += 1
            case Disconnect():
                driver.disconnect()
                self.output.unflushed += 1
            case Drop():
                driver.abort()
                self.output.unflushed += 1  # the flush, or whoever polls, takes the news from the driver
