"""The broker and the state store of the product, on simulated sockets and clocks. In memory: a restart forgets all."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING

from sim_carelessness import CarelessService
from sim_world import Host, World

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import PacketDecoder
from statestore_client.server.broker import Broker, Connection
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.store import Outcome, RequestContext, StateStore
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HybridLogicalClock

if TYPE_CHECKING:
    from sim_audit import Audit
    from sim_network import Link


class _AuditedStore(StateStore):
    """Shows the audit what was done, in the order in which it was done."""

    __slots__ = ("audit",)
    audit: Audit

    def apply(self, command: Command, request: RequestContext) -> Outcome:
        outcome = super().apply(command, request)
        self.audit.applied(command, request, outcome)
        return outcome


class SimulatedServer(Host):
    """Does for the pure server what ``server.runtime`` does in production."""

    def __init__(self, world: World, audit: Audit, *, rate: float, cache_limits: ResponseCacheLimits) -> None:
        super().__init__(world, "server", rate=rate, wall_offset_ms=0)
        self.incarnation = 0
        self.is_up = False
        self._audit = audit
        self._cache_limits = cache_limits
        self.start()

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A new, empty server."""
        self.incarnation += 1
        self.is_up = True
        self.store = _AuditedStore(clock=HybridLogicalClock("StateStore", guard=nullcontext()))
        self.store.audit = self._audit
        token_key = Random(self.incarnation).randbytes(TOKEN_KEY_BYTES)  # another one, as all that it knew is gone
        service = CarelessService(self.world, self.store, token_key=token_key, cache_limits=self._cache_limits)
        self.broker = Broker(random=Random(1), applications=(service,))
        self._connections: dict[Link, tuple[Connection, PacketDecoder]] = {}
        self._links: dict[Connection, Link] = {}
        self._armed = float("inf")

    def crash(self) -> None:
        """It is gone, with everything that it knew."""
        self.world.note(self.name, "crashes")
        self.is_up = False
        self.incarnation += 1
        self.wake_empty()
        for link in self._connections:
            link.server_is_gone()

    # -- its connections -----------------------------------------------------------------------------------------------

    def accept(self, link: Link) -> None:
        connection = self.broker.connection_opened(self.instant(), peer="simulated")
        self._connections[link] = (
            connection,
            PacketDecoder(version=None, max_packet_size=self.broker.limits.packet_bytes, topic_alias_maximum=32),
        )
        self._links[connection] = link
        self._flush()

    def arrived(self, link: Link, data: bytes | None) -> None:
        """Bytes from a client, or the end of its connection."""
        if link not in self._connections:
            return
        connection, decoder = self._connections[link]
        if data is None:
            self._forget(link, connection)
        else:
            try:
                packets = decoder.feed(data)
            except PacketError as error:
                self._audit.violated(f"the server could not read what a client sent: {error}")
                return
            self.broker.receive(connection, packets, self.instant())
        self._flush()

    def _forget(self, link: Link, connection: Connection) -> None:
        del self._connections[link], self._links[connection]
        self.broker.connection_lost(connection, self.instant())

    def _flush(self) -> None:
        broker = self.broker
        while broker.dirty:
            for connection in broker.take_dirty():
                if (link := self._links.get(connection)) is not None:
                    self._write(link, connection)
        for fault in broker.reports.take_faults():
            self._audit.violated(f"the state store failed: {fault!r}")
        self._arm()

    def _write(self, link: Link, connection: Connection) -> None:
        if connection.outbox:
            link.down.send(connection.take())
        if connection.ending is not None:
            link.down.send(None)
            self._forget(link, connection)
        elif connection.has_backlog:
            self.broker.drained(connection, self.instant())

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        deadline = self.broker.next_deadline()
        if deadline is None or deadline >= self._armed:
            return
        self._armed = deadline
        incarnation = self.incarnation

        def tick() -> None:
            if self.incarnation == incarnation and self._armed == deadline:
                self._armed = float("inf")
                self.broker.tick(self.instant())
                self._flush()

        self.at(deadline, tick)
