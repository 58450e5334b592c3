"""What both shells share, the one with threads and the one with an event loop; they add the waiting.

:class:`BaseLink` makes the machine, and carries out on the driver what the machine asks for beside its requests.
:class:`BaseEngine` has what a client says of itself. Neither waits, and both belong to one thread at a time: the shells
see to that. They open connections, and report each change of the state.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from contextlib import nullcontext
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from statestore_client.clocks import Clock
from statestore_client.core.actions import (
    Action,
    ConnectionState,
    Disconnect,
    Drop,
    Observer,
    Open,
    Output,
    Ping,
    Remark,
    StateChanged,
    Subscribe,
)
from statestore_client.core.arguments import DEFAULT_TIMEOUT, FencedCommand, Timeout, check_timeout
from statestore_client.core.connection import Backoff, ClientMachine, node_id
from statestore_client.core.request_table import ExchangeStats
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.driver import Connector, Driver
from statestore_client.reports import tracer
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock

D = TypeVar("D", bound=Driver)


class BaseLink(ABC, Generic[D]):
    """The machine of one client, and the driver of its connection.

    :param give_up_on: what ends the client, if connecting again in the same way will not cure it.
    :param connector: makes the drivers.
    :param hlc: the clock of its versions, which other clients may share; None for one of its own.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        client_id: str,
        *,
        give_up_on: tuple[type[StateStoreError], ...],
        clock: Clock,
        connector: Connector,
        hlc: HybridLogicalClock | None = None,
    ) -> None:
        #: The MQTT client's name.
        self.client_id: str = client_id
        #: What the client was made with.
        self.settings: ConnectionSettings = settings
        #: Where it reads the time.
        self.now: Clock = clock
        self.machine: ClientMachine = ClientMachine(
            client_id,
            # The machine is used by one thread at a time, so is a clock of its own.
            clock=hlc or HybridLogicalClock(node_id(client_id), guard=nullcontext()),
            random=Random(),  # noqa: S311 - jitter and request ids, no secrets
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            clean_start=settings.clean_start,
            retry_first_connect=settings.retry_first_connect,
            give_up_on=give_up_on,
            alternatives=lambda: connector.addresses,
            backoff=Backoff(settings.reconnect_delay, settings.max_reconnect_delay),
            silence_timeout=settings.silence_timeout,
            watch_lifetime=settings.watch_lifetime,
            complaint=connector.complaint,
            trace=tracer(settings) if settings.tracing else None,
            answer_topic=settings.response_topic,
        )
        self.output: Output = self.machine.output
        #: The connection; None before the first one, and while the next one is being made.
        self.driver: D | None = None
        self._settle = connector.settle

    @abstractmethod
    def _open(self, action: Open) -> None:
        """Make and connect the next driver; it is to :meth:`use` once others may use it."""

    @abstractmethod
    def _report(self, news: StateChanged | Remark) -> None:
        """Log it, and tell the listener of a change."""

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

    def _carry_out(self, action: Action) -> None:
        driver = self.driver
        match action:
            case StateChanged(state=state):
                if state in (ConnectionState.CONNECTED, ConnectionState.CLOSED):
                    self._settle(for_good=state is ConnectionState.CLOSED)
                self._report(action)
            case Open():
                self.driver = None
                self.output.reconnecting()
                self._open(action)
            case Remark():
                self._report(action)
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


class Slots(Protocol):
    """A batch of requests."""

    def slot(self) -> BatchSlot:
        """The waiter of the next one."""

    def settle(self, position: int, outcome: object) -> None:
        """One of them has its outcome."""


class BatchSlot:
    """One position of a batch."""

    __slots__ = ("_position", "batch")

    def __init__(self, batch: Slots, position: int) -> None:
        self.batch: Slots = batch
        self._position = position

    def resolve(self, result: object) -> None:
        self.batch.settle(self._position, result)

    def reject(self, error: StateStoreError) -> None:
        self.batch.settle(self._position, error)


class BaseEngine:
    """The calls of a client, as far as they do not wait."""

    def __init__(self, link: BaseLink[Any]) -> None:
        self._pid = os.getpid()
        self._settings = link.settings
        self._now: Clock = link.now
        self._machine = link.machine
        self._requests = link.machine.request_table
        #: Whether it was opened without waiting for the connection.
        self.is_in_background: bool = False

    def seconds(self, timeout: Timeout) -> float | None:
        """A time limit as the user gave it; None for none."""
        return self._settings.request_timeout if timeout is DEFAULT_TIMEOUT else check_timeout(timeout)

    @property
    def state(self) -> ConnectionState:
        """The connection's state now."""
        return self._machine.state

    @property
    def stats(self) -> ExchangeStats:
        """Counters since the client was made."""
        return self._requests.stats

    @property
    def url(self) -> str:
        """Where the client connects to."""
        return self._settings.url

    @property
    def store_id(self) -> str | None:
        """The store that answered last; None if it does not say which it is."""
        return self._requests.store_id

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        self._machine.check_open()

    @property
    def trouble(self) -> str | None:
        """Why no request can leave just now; None while connected."""
        return None if self._machine.state is ConnectionState.CONNECTED else self._machine.situation

    @property
    def is_own(self) -> bool:
        """Whether a finalizer may end what this has: not in a forked child, and not when Python itself ends."""
        return os.getpid() == self._pid and not sys.is_finalizing()

    def _submit_chunk(
        self,
        chunk: list[Command | FencedCommand | StateStoreError],
        batch: Slots,
        timeout: float | None,
        fencing_token: HlcTimestamp | None,
    ) -> None:
        moment = self._now()
        for command in chunk:
            slot = batch.slot()
            if isinstance(command, StateStoreError):
                slot.reject(command)
            elif isinstance(command, FencedCommand):
                self._requests.submit(command.command, slot, moment, timeout=timeout, fencing_token=command.token)
            else:
                self._requests.submit(command, slot, moment, timeout=timeout, fencing_token=fencing_token)
