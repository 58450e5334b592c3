"""Drives a ClientMachine without a network or a clock: time is a number, packets are values, waiters are names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from contextlib import nullcontext
from random import Random
from typing import Any, Protocol, TypeAlias

import attrs

from statestore_client.core.actions import (
    Action,
    ConnectionState,
    PrefixTerms,
    StateChanged,
    Subscribe,
    WatchEvent,
    WatchOptions,
)
from statestore_client.core.connection import ClientMachine
from statestore_client.errors import ConnectionLostError, StateStoreError
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import (
    Closed,
    Connected,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
)

__all__ = ["Acknowledge", "MachineDriver", "Notify", "Publish", "Reject", "Resolve", "Seen"]

_WALL_MS = 1_700_000_000_000
#: State store protocol, "KEYNOTIFY notification topics": the client id and the key in hexadecimal. "me" is 6D65.
NOTIFICATIONS = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/6D65/command/notify/"
RESPONSES = "clients/me/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"


# What the machine does itself, as it was seen.


@attrs.frozen
class Publish:
    delivery_id: int
    message: OutgoingMessage
    again: bool = False


@attrs.frozen
class Acknowledge:
    ack_id: int


@attrs.frozen
class Resolve:
    waiter: Hashable
    result: Any


@attrs.frozen
class Reject:
    waiter: Hashable
    error: StateStoreError


@attrs.frozen
class Notify:
    event: WatchEvent | StateStoreError


Done: TypeAlias = Publish | Acknowledge | Resolve | Reject | Notify | Action


class Seen(list[WatchEvent | StateStoreError]):
    """An observer that keeps what it is told."""

    def __init__(self, done: list[Done] | None = None) -> None:
        super().__init__()
        self._done = [] if done is None else done

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        self._done.append(Notify(event))
        self.append(event)
        return True

    __hash__ = object.__hash__


@attrs.frozen
class Waiter:
    """A caller with a name."""

    name: Hashable
    _done: list[Done] = attrs.field(eq=False, repr=False)

    def resolve(self, result: object) -> None:
        self._done.append(Resolve(self.name, result))

    def reject(self, error: StateStoreError) -> None:
        self._done.append(Reject(self.name, error))


class Line(Protocol):
    """What a driver knows of its connection."""

    @property
    def heard_at(self) -> float | None: ...

    @property
    def url(self) -> str: ...


@attrs.frozen
class _NoLine:
    heard_at: float | None = None
    url: str = "mqtt://broker"


@attrs.frozen
class _Connection:
    """Takes what the machine sends."""

    _done: list[Done]
    _line: Line

    @property
    def heard_at(self) -> float | None:
        return self._line.heard_at

    @property
    def url(self) -> str:
        return self._line.url

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        self._done.append(Publish(delivery_id, message, again))

    def acknowledge(self, ack_id: int) -> None:
        self._done.append(Acknowledge(ack_id))

    def flush(self) -> None:
        """Nothing is held back here."""


class MachineDriver:
    """A machine named "me", the moment, and everything that the machine asked for."""

    def __init__(self, line: Line | None = None, **options: Any) -> None:
        self.clock = HybridLogicalClock("me", guard=nullcontext())
        self.machine = ClientMachine(
            "me",
            clock=self.clock,
            random=Random(1),
            **{
                "max_in_flight": 4,
                "request_timeout": 10.0,
                "clean_start": True,
                "retry_first_connect": False,
                **options,
            },
        )
        self.time = 1000.0
        self.wall_ms = _WALL_MS
        self._done: list[Done] = []  # since the last look
        self.machine.output.connection = _Connection(self._done, line or _NoLine())
        self.actions: list[Done] = []
        self._waiters: dict[Hashable, Waiter] = {}
        self.outcomes: dict[Hashable, list[Any]] = defaultdict(list)
        self.states: list[tuple[ConnectionState, StateStoreError | None]] = []
        self.on_the_wire: list[Publish] = []  # published on this connection, not acknowledged
        self.published: list[Publish] = []  # ever
        self.subscribing: list[Subscribe] = []
        self.acknowledged: list[int] = []

    @property
    def now(self) -> Instant:
        return Instant(self.time, self.wall_ms)

    # -- actions -------------------------------------------------------------------------------------------------------

    def waiter(self, name: Hashable) -> Waiter:
        """The caller of this name."""
        return self._waiters.setdefault(name, Waiter(name, self._done))

    def take(self) -> list[Done]:
        """Carry out what the machine wants; what that was, behind what it has done itself."""
        actions = [*self._done, *self.machine.take_actions()]
        self._done.clear()
        self.actions += actions
        for action in actions:
            match action:
                case Publish():
                    self.on_the_wire.append(action)
                    self.published.append(action)
                case Subscribe():
                    self.subscribing.append(action)
                case Resolve(waiter=waiter, result=result):
                    self.outcomes[waiter].append(result)
                case Reject(waiter=waiter, error=error):
                    self.outcomes[waiter].append(error)
                case StateChanged(state=state, error=error):
                    self.states.append((state, error))
                case Acknowledge(ack_id=ack_id):
                    self.acknowledged.append(ack_id)
        return actions

    def outcome(self, waiter: Hashable) -> Any:
        """The one outcome of a waiter."""
        (outcome,) = self.outcomes[waiter]
        return outcome

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(self, command: Command, waiter: Hashable, timeout: float | None = 10.0, **options: Any) -> Any:
        caller = self.waiter(waiter)
        request = self.machine.request_table.submit(command, caller, self.now, timeout=timeout, **options)
        self.take()
        return request

    def watch(self, key: bytes, waiter: Hashable, **options: Any) -> Seen:
        seen = Seen(self._done)
        self.machine.watch(key, seen, self.waiter(waiter), self.now, WatchOptions(**options))
        self.take()
        return seen

    def watch_prefix(
        self, prefix: bytes, waiter: Hashable, *, rescan: float | None = 10.0, max_keys: int = 100, **options: Any
    ) -> Seen:
        return self.watch(prefix, waiter, prefix=PrefixTerms(rescan, max_keys), **options)

    def unwatch(self, key: bytes, seen: Seen) -> list[Done]:
        self.machine.unwatch(key, seen, self.now)
        return self.take()

    def close(self) -> list[Done]:
        self.machine.close(self.now)
        return self.take()

    def open(self, waiter: Hashable | None = "open") -> list[Done]:
        self.machine.open(None if waiter is None else self.waiter(waiter))
        return self.take()

    # -- the driver's events -------------------------------------------------------------------------------------------

    def receive(self, event: Any) -> list[Done]:
        self.machine.receive([event], self.now)
        return self.take()

    def connect(self, *, session_present: bool = False, **options: Any) -> list[Done]:
        """CONNACK, and SUBACK for whatever is subscribed to."""
        self.on_the_wire.clear()
        self.subscribing.clear()
        actions = self.receive(Connected(session_present, **options))
        return actions + self.suback()

    def suback(self) -> list[Done]:
        actions: list[Done] = []
        while self.subscribing:
            wanted = self.subscribing.pop(0)
            actions += self.receive(Subscribed(wanted.subscribe_id, (1,) * len(wanted.topic_filters)))
        return actions

    def ready(self) -> MachineDriver:
        """Opened and connected for the first time."""
        return self.open_with()

    def open_with(self, **limits: Any) -> MachineDriver:
        """The same, to a broker with these limits."""
        self.open()
        self.connect(**limits)
        return self

    def lose(self, error: StateStoreError | None = None, **options: Any) -> list[Done]:
        self.on_the_wire.clear()
        self.subscribing.clear()
        return self.receive(Closed(error or ConnectionLostError("the cable was cut"), **options))

    def reconnect(self, *, session_present: bool = True, **options: Any) -> list[Done]:
        """Wait for the back-off, then connect."""
        deadline = self.machine._reconnection.retry_at
        assert deadline is not None
        self.at(deadline)
        return self.connect(session_present=session_present, **options)

    def cut(self, **options: Any) -> list[Done]:
        """The connection breaks and comes back."""
        self.lose()
        return self.reconnect(**options)

    def puback(self, publish: Publish | None = None, reason_code: int = 0) -> list[Done]:
        """PUBACK for a publication, by default the oldest."""
        publish = publish or self.on_the_wire[0]
        self.on_the_wire.remove(publish)
        return self.receive(Published(publish.delivery_id, reason_code))

    def reply(
        self, publish: Publish | OutgoingMessage | bytes, payload: bytes, *properties: tuple[str, str], ack_id: int = 7
    ) -> list[Done]:
        """The state store's answer to a publication."""
        if isinstance(publish, Publish):
            publish = publish.message
        correlation_data = publish.correlation_data if isinstance(publish, OutgoingMessage) else publish
        message = IncomingMessage(RESPONSES, payload, correlation_data, properties, ack_id)
        return self.receive(message)

    def answer(self, payload: bytes, *properties: tuple[str, str]) -> list[Done]:
        """PUBACK and answer for the oldest publication."""
        publish = self.on_the_wire[0]
        return self.puback(publish) + self.reply(publish, payload, *properties)

    def notify(self, key: bytes, payload: bytes, version: str | None = None) -> list[Done]:
        """A notification of the state store."""
        properties = () if version is None else (("__ts", version),)
        message = IncomingMessage(NOTIFICATIONS + key.hex().upper(), payload, None, properties, 9)
        return self.receive(message)

    # -- time ----------------------------------------------------------------------------------------------------------

    def at(self, time: float) -> list[Done]:
        """The clock reaches ``time``, and the machine is told."""
        self.wall_ms += round((time - self.time) * 1000)
        self.time = time
        self.machine.tick(self.now)
        return self.take()

    def after(self, seconds: float) -> list[Done]:
        return self.at(self.time + seconds)
