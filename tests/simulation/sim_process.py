"""One client: the product's machine and its end of the MQTT connection, driven as the two shells drive them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING

from sim_network import Link
from sim_world import Host, World

from statestore_client.core.actions import (
    Disconnect,
    Drop,
    Observer,
    Open,
    Ping,
    StateChanged,
    Subscribe,
    Waiter,
    WatchOptions,
)
from statestore_client.core.connection import Backoff, ClientMachine, node_id
from statestore_client.core.request import Request
from statestore_client.errors import ConnectionLostError, StateStoreError
from statestore_client.mqtt.client_connection import ClientConnection, ClientSession
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.messages import Closed

if TYPE_CHECKING:
    from sim_lease import HeldLease
    from sim_server import SimulatedServer


_BOTH_WAYS = frozenset({"up", "down"})
_NO_WAY: frozenset[str] = frozenset()


class _Nobody:
    """Waits for the connection, and lets others get on with theirs."""

    def resolve(self, result: object) -> None:
        """Requests can leave."""

    def reject(self, error: StateStoreError) -> None:
        """The client was closed."""


class _Connection(ClientConnection):
    __slots__ = ()

    def flush(self) -> None:
        """What is queued leaves when everything is carried out."""


class Process(Host):
    """A program with one client. It can stand still, be cut off, and die.

    ``is_threaded``: it behaves as the blocking shell where the two differ.
    """

    def __init__(
        self,
        world: World,
        server: SimulatedServer,
        settings: ConnectionSettings,
        name: str,
        *,
        rate: float,
        skew_ms: int,
    ) -> None:
        super().__init__(world, name, rate=rate, wall_offset_ms=skew_ms)
        self.random = Random(world.random.random())
        self.is_threaded = world.random.random() < 0.5
        self.blocked = _NO_WAY
        self.lease: HeldLease | None = None
        self.server = server
        self.settings = settings
        self.machine = ClientMachine(
            name,
            clock=HybridLogicalClock(node_id(name), guard=nullcontext()),
            random=self.random,
            max_in_flight=settings.max_in_flight,
            request_timeout=settings.request_timeout,
            retry_first_connect=True,
            backoff=Backoff(settings.reconnect_delay, settings.max_reconnect_delay),
            silence_timeout=settings.silence_timeout,
            watch_lifetime=settings.watch_lifetime,
        )
        self._session = ClientSession()
        self._connection: _Connection | None = None
        self._link: Link | None = None
        self._links: list[Link] = []  # also closed ones: what they hold may still arrive
        self._armed = math.inf
        self._handlers: dict[type, Callable[..., None]] = {
            Open: self._open,
            Subscribe: lambda a: self._connected().subscribe(a.subscribe_id, a.topic_filters),
            StateChanged: lambda a: world.note(name, a.state, a.error or ""),
            Ping: lambda _: self._connected().ping(),
            Drop: lambda _: self._end("the connection was given up"),
            Disconnect: lambda _: self._disconnect(),
        }
        self.machine.open(_Nobody())
        self.perform()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(
        self, command: Command, waiter: Waiter, *, timeout: float, fencing_token: HlcTimestamp | None = None
    ) -> Request:
        request = self.machine.request_table.submit(
            command, waiter, self.instant(), timeout=timeout, fencing_token=fencing_token
        )
        self.perform()
        return request

    def cancel(self, request: Request) -> None:
        self.machine.request_table.cancel(request, self.instant())
        self.perform()

    def watch(self, key: bytes, observer: Observer, waiter: Waiter, options: WatchOptions) -> None:
        self.machine.watch(key, observer, waiter, self.instant(), options)
        self.perform()

    def unwatch(self, key: bytes, observer: Observer) -> None:
        self.machine.unwatch(key, observer, self.instant())
        self.perform()

    # -- what happens to it --------------------------------------------------------------------------------------------

    def cut(self) -> None:
        if self._link is not None:
            self.world.note(self.name, "is cut")
            self._link.cut()

    def block(self, directions: frozenset[str]) -> None:
        """A black hole in these directions; none ends it."""
        self.world.note(self.name, "black hole:", sorted(directions) or "over")
        self.blocked = directions
        for link in self._links:
            link.block(directions)

    def die(self) -> None:
        """kill -9: the kernel closes its socket. Or the power is off, and nobody hears a thing."""
        self.world.note(self.name, "dies")
        self.is_dead = True
        if self._link is not None and self.random.random() < 0.7:
            self._link.up.send(None)

    # -- carrying out actions ------------------------------------------------------------------------------------------

    def perform(self) -> None:
        while True:
            while actions := self.machine.take_actions():
                for action in actions:
                    self._handlers[type(action)](action)
            connection = self._connection
            if connection is None:
                break
            if connection.outbox:
                data = b"".join(connection.outbox)
                connection.outbox.clear()
                connection.keep_alive.last_sent = self.local
                if self._link is not None:
                    self._link.send_up(data)
            if not connection.events:
                break
            self._take_events(connection)
        self._arm()

    def _connected(self) -> ClientConnection:
        assert self._connection is not None
        return self._connection

    def _take_events(self, connection: ClientConnection) -> None:
        now = self.instant()
        events = connection.take_events()
        if events and isinstance(events[-1], Closed):
            self._connection = self.machine.output.connection = None
            self._hang_up()
        self.machine.receive(events, now)

    def _open(self, action: Open) -> None:
        """The TCP handshake, in another thread."""
        began, server = self.local, self.server
        connection = self._connection = _Connection(self.settings, self.name, session=self._session)
        self.machine.output.connection = connection

        def shake_hands() -> None:
            if not self.blocked and server.is_up:
                server.do(lambda: accept(server.incarnation))
            elif not self.blocked:
                self.do(lambda: failed("connection refused"))

        def accept(incarnation: int) -> None:
            if not self.is_dead and server.is_up and server.incarnation == incarnation:
                link = Link(self.world, self, server)
                self._links.append(link)
                server.accept(link)
                self.do(lambda: greet(link))

        def greet(link: Link) -> None:
            if self._connection is not connection or connection.has_ended:
                link.up.send(None)
                return
            self._link = link
            connection.connect(began, clean_start=action.clean_start, password=None)
            self.perform()

        def failed(why: str) -> None:
            if self._connection is connection and self._link is None:
                connection.end(Closed(ConnectionLostError(why)))
                self.perform()

        self.at(began + self.settings.connect_timeout, lambda: failed("no answer"))
        self.world.time.at(self.world.time.now + 2 * self.world.delay(), shake_hands)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()

    def _end(self, why: str) -> None:
        if self._connection is not None:
            self._connection.end(Closed(ConnectionLostError(why)))

    def _hang_up(self) -> None:
        """What was written is the kernel's: it may arrive after this."""
        if self._link is not None:
            if self.random.random() < 0.3:
                self._link.up.lose()
            self._link.up.send(None)
            self._link = None

    def arrived(self, link: Link, data: bytes | None) -> None:
        """Bytes from the server, or the end of the connection."""
        connection = self._connection
        if link is not self._link or connection is None:
            return
        if data is None:
            connection.end(Closed(ConnectionLostError("the connection was closed")))
        else:
            connection.receive(data, self.local)
        self.perform()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if self._connection is not None and (other := self._connection.next_deadline()) is not None:
            deadline = other if deadline is None else min(deadline, other)
        if deadline is not None and deadline < self._armed:
            self._armed = deadline
            self.at(deadline, lambda: self._tick(deadline))

    def _tick(self, deadline: float) -> None:
        if self._armed != deadline:
            return
        self._armed = math.inf
        if self._connection is not None:
            self._connection.tick(self.local)
        self.machine.tick(self.instant())
        self.perform()
