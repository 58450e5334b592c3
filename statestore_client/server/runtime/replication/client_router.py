"""Where a client's connection goes: to this server while it is active, otherwise on to the server that is.

While nobody is active the client waits. When another server becomes active its connection is cut, so that it connects
again and finds that one: a packet that the former one did not answer would be lost in silence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from statestore_client.clocks import monotonic
from statestore_client.server.runtime.replication.internal_handshake import Hello
from statestore_client.server.runtime.replication.splice import SplicedClient, SplicedServer
from statestore_client.server.runtime.turns import TURN_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.replication.cluster_secret import ClusterSecret

__all__ = ["ClientRouter"]

#: When to try again if the active server does not let a client in, in seconds.
_AGAIN_S: Final = 0.1


class ClientRouter:
    """The endpoints of a replicated server: they serve while it is active, and pass on to the active one otherwise.

    Belongs to the event loop.
    """

    def __init__(self, server_id: str, secret: ClusterSecret) -> None:
        self._id = server_id
        self._secret = secret
        self._makes: dict[str, Callable[[], asyncio.Protocol]] = {}
        self._clients: dict[SplicedClient, None] = {}  # in the order of their arrival
        self._to_place: dict[SplicedClient, None] = {}  # those of them for whom something has changed
        self._is_queued = False  # for another turn of that
        self._driver: BrokerDriver | None = None
        self._is_open = False
        self._address: str | None = None
        self.is_closing: bool = False

    def bind(self, driver: BrokerDriver) -> None:
        """It counts the sockets."""
        self._driver = driver

    @property
    def driver(self) -> BrokerDriver:
        if self._driver is None:
            raise RuntimeError("the router does not belong to a server yet")
        return self._driver

    @property
    def spliced(self) -> int:
        """How many clients are passed on, or wait."""
        return len(self._clients)

    def guard(self, scheme: str, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """``make`` makes the protocol of a client that comes in at this endpoint."""
        self._makes[scheme] = make
        return lambda: make() if self._is_open else SplicedClient(self, scheme)

    def protocol(self, scheme: str) -> asyncio.Protocol | None:
        """Of a client that another server passes on; None if this one is not active, or has no such endpoint."""
        make = self._makes.get(scheme)
        return make() if make is not None and self._is_open else None

    # -- who is active ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """This server is: clients that wait come in."""
        self._is_open, self._address = True, None
        self._place_all()

    def shut(self, address: str | None) -> None:
        """Another one is, at its internal address ``host:port``; or nobody. Clients that were passed on are cut."""
        self._is_open, self._address = False, address
        self._place_all()

    def doubt(self) -> None:
        """The active server says nothing to this one: clients that were passed on are cut, and it is dialled anew for
        those that wait.
        """
        if not self._is_open:
            self._place_all()

    def close(self) -> None:
        """Nobody waits any longer."""
        self.is_closing = True
        for client in tuple(self._clients):
            client.cut()

    def _place_all(self) -> None:
        """In turns: there may be thousands, and those who are in already do not wait for them all."""
        self._to_place = dict.fromkeys(self._clients)
        if not self._is_queued and self._place_some():
            self.driver.turns.add(self._place_some)

    def _place_some(self) -> bool:
        ends = monotonic() + TURN_S
        while self._to_place and monotonic() < ends:
            self.place(next(iter(self._to_place)))
        self._is_queued = bool(self._to_place)
        return self._is_queued

    def place(self, client: SplicedClient) -> None:
        """A client that waits, or was passed on elsewhere."""
        self._to_place.pop(client, None)
        client.come_back()
        if client.is_passed_on or self.is_closing:
            client.cut()
        elif self._is_open:
            client.come_in(self._makes[client.scheme]())
        elif self._address is not None:
            client.pass_on(self._address)

    def place_later(self, client: SplicedClient) -> None:
        """The active server did not let it in: mostly, that one is gone, and another one will be active."""
        asyncio.get_running_loop().call_later(_AGAIN_S, self._place_again, client)

    def _place_again(self, client: SplicedClient) -> None:
        if client in self._clients and not client.is_passed_on:
            self.place(client)

    def joined(self, client: SplicedClient) -> None:
        self._clients[client] = None
        self.place(client)

    def left(self, client: SplicedClient) -> None:
        self._clients.pop(client, None)
        self._to_place.pop(client, None)

    def pass_on(self, client: SplicedClient, address: str) -> SplicedServer:
        """To the active server."""
        host, port = client.address
        return SplicedServer(client, Hello("splice", self._id, address, client.scheme, host, port), self._secret)
