"""Where a client's connection goes: to this server while it is active, otherwise on to the server that is.

While nobody is active the client waits. When another server becomes active its connection is cut, so that it connects
again and finds that one: a packet that the former one did not answer would be lost in silence. While the log has no
leader nobody can be active, for as long as that lasts: then a client is refused, and hears why.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from statestore_client.clocks import monotonic
from statestore_client.errors import PacketError, RemoteProtocolError
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    ConnackProperties,
    Connect,
    PacketDecoder,
    ReasonCode,
    encode,
)
from statestore_client.server.runtime.fairness import SLICE_S
from statestore_client.server.runtime.observability.logs import log_event
from statestore_client.server.runtime.replication.internal import Hello, dial
from statestore_client.server.runtime.transport.peers import peer_name
from statestore_client.server.runtime.transport.sockets import set_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.replication.internal import ClusterSecret, Sockets
    from statestore_client.server.runtime.transport.peers import Peer

# -- refusal -----------------------------------------------------------------------------------------------------------


def _refusal(scheme: str, early: bytes, reason: str) -> bytes | None:
    """What refuses who has sent this, with *server unavailable* (MQTT 5.0, 3.2.2.2); nothing for what makes no sense,
    None if more of it has to come.
    """
    if scheme.startswith("ws"):
        body = f"{reason}\n".encode()
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + body if b"\r\n\r\n" in early else None
    try:
        packets = PacketDecoder(version=None, max_packet_size=_MOST_EARLY_BYTES).feed(early)
    except PacketError:
        return b""
    if not packets:
        return None
    if not isinstance(packets[0], Connect):
        return b""
    connect, code = packets[0], ReasonCode.SERVER_UNAVAILABLE
    if connect.version != MQTT_5_0:
        return encode(Connack(False, code), connect.version)
    wants_reasons = connect.properties.request_problem_information == 1
    answer = encode(Connack(False, code, ConnackProperties(reason_string=reason if wants_reasons else None)))
    most = connect.properties.maximum_packet_size
    return answer if most is None or len(answer) <= most else encode(Connack(False, code))


# -- splice ------------------------------------------------------------------------------------------------------------
#
# A client's connection on its way to the server that is active: bytes are passed on as they are, both ways.


#: What a client may send before it is passed on.
_MOST_EARLY_BYTES: Final = 64 * 1024
#: How long the active server may take to let a client in, in seconds.
_DIAL_S: Final = 2.0


class _Side(asyncio.Protocol):
    """One of the two sockets."""

    _transport: asyncio.Transport | None = None

    def pause(self) -> None:
        """Read no more: the other one takes nothing for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()


class ProxiedClient(_Side):
    """The client's side."""

    def __init__(self, router: ClientRouter, scheme: str) -> None:
        self.scheme = scheme
        self._router = router
        self._peer: Peer | None = None
        self._early = bytearray()
        self._why_refused = ""
        self._server: SplicedServer | None = None
        self._has_ended = False  # the client says no more
        self._is_answered = False  # the server says no more

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        driver = self._router.driver
        self._peer = driver.peers.accepted(stream, self, driver.now)
        if self._router.is_closing:
            stream.abort()
            return
        set_options(stream)
        stream.pause_reading()  # if it goes by TLS, what comes belongs to the handshake; others may be read already
        driver.peers.make_room(self._peer)
        if not stream.is_closing():
            # Not in this moment: a transport expects the protocol that it was made with to stay until it is.
            asyncio.get_running_loop().call_soon(self._join)

    def _join(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._router.joined(self)

    def data_received(self, data: bytes) -> None:
        if self._server is not None and self._server.is_ready:
            self._server.send(data)
            return
        self._early += data
        if self._why_refused:
            self.refuse(self._why_refused)
        if len(self._early) > _MOST_EARLY_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._server is not None:
            self._server.end()
        return self._server is not None and not self._is_answered

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.pause()

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def drop(self, error: PacketError) -> None:
        """Chosen to go, among those who have not said who they are."""
        if self._transport is not None:
            self._router.driver.refusals.line(
                "refused",
                peer_name(self._transport),
                code=f"{error.reason_code:#04x}",
                reason=error.message,
                by="server",
            )
            self.cut()

    # -- from the router -----------------------------------------------------------------------------------------------

    @property
    def is_passed_on(self) -> bool:
        return self._server is not None

    def come_back(self) -> None:
        """If nothing was passed on yet, that server is not asked any longer."""
        if self._server is not None and not self._server.is_ready:
            server, self._server = self._server, None
            server.close()

    def cut(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Now, or when its CONNECT is complete."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._why_refused = reason
        answer = _refusal(self.scheme, bytes(self._early), reason)
        if answer is not None:
            transport.write(answer)
            transport.close()
        elif len(self._early) > _MOST_EARLY_BYTES:
            transport.close()
        else:
            transport.resume_reading()

    def come_in(self, protocol: asyncio.Protocol) -> None:
        """This server is active: from here on the connection hears everything itself."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._leave()
        transport.set_protocol(protocol)
        transport.resume_reading()
        protocol.connection_made(transport)
        if self._early:
            protocol.data_received(bytes(self._early))
        if self._has_ended:
            transport.close()

    def pass_on(self, address: str) -> None:
        """To the active server."""
        if self._transport is not None and not self._transport.is_closing():
            self._why_refused = ""
            self._server = self._router.pass_on(self, address)

    @property
    def address(self) -> tuple[str, int]:
        """Of the client; empty and 0 for one on a Unix socket."""
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return (str(address[0]), int(address[1])) if isinstance(address, tuple) and len(address) >= 2 else ("", 0)

    def _leave(self) -> None:
        self._router.left(self)
        if self._peer is not None:
            self._router.driver.peers.gone(self._peer)

    # -- from the server's side ---------------------------------------------------------------------------------------

    def let_in(self) -> None:
        """What was sent so far goes on its way."""
        if self._peer is not None:
            self._router.driver.peers.authenticated(self._peer)
        if self._server is not None and self._transport is not None:
            self._server.send(bytes(self._early))
            self._early.clear()
            self._transport.resume_reading()
            if self._has_ended:
                self._server.end()

    def receive(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> None:
        """The server says no more. If the client does not either, that is all."""
        self._is_answered = True
        if self._transport is None:
            return
        if self._has_ended:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()

    def server_left(self, server: SplicedServer) -> None:
        """If nothing was passed on yet, the client waits on."""
        if self._transport is None or server is not self._server:
            return
        if server.is_ready:
            self._transport.close()
        else:
            self._server = None
            self._router.not_let_in(self)


class SplicedServer(_Side):
    """The side of the active server: ``hello`` has its address."""

    def __init__(self, client: ProxiedClient, hello: Hello, secret: ClusterSecret) -> None:
        self._client = client
        self._task = asyncio.get_running_loop().create_task(self._dial(hello, secret))
        self.is_ready: bool = False

    async def _dial(self, hello: Hello, secret: ClusterSecret) -> None:
        try:
            async with asyncio.timeout(_DIAL_S):
                stream, _ = await dial(hello.receiver, hello, secret)
        except (OSError, EOFError, RemoteProtocolError) as error:
            reason = error.message if isinstance(error, RemoteProtocolError) else str(error) or "no answer"
            log_event(logging.INFO, "not passed on", to=hello.receiver, reason=reason)
            self._client.server_left(self)
        else:
            stream.hand_over(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_ready = True
        self._client.let_in()

    def data_received(self, data: bytes) -> None:
        self._client.receive(data)

    def eof_received(self) -> bool:
        self._client.end()
        return self._transport is not None and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        self._client.pause()

    def resume_writing(self) -> None:
        self._client.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._client.server_left(self)

    def send(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def end(self) -> None:
        """The client says no more. TLS has no half of an end: what the server would still answer is lost then, as it is
        for a client that speaks TLS with it.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        with suppress(OSError):  # it is gone, and nobody was told yet
            transport.write_eof()

    def close(self) -> None:
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()


# -- client router -----------------------------------------------------------------------------------------------------


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
        self._clients: dict[ProxiedClient, None] = {}  # in the order of their arrival
        self._to_place: dict[ProxiedClient, None] = {}  # those of them for whom something has changed
        self._is_queued = False  # for another turn of that
        self._driver: Sockets | None = None
        self._is_open = False
        self._address: str | None = None
        self._obstacle = ""  # why nobody can be active
        self.is_closing: bool = False

    def bind(self, driver: Sockets) -> None:
        """It counts the sockets."""
        self._driver = driver

    @property
    def driver(self) -> Sockets:
        if self._driver is None:
            raise RuntimeError("the router does not belong to a server yet")
        return self._driver

    @property
    def proxied(self) -> int:
        """How many clients are passed on, or wait."""
        return len(self._clients)

    def guard(self, scheme: str, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """``make`` makes the protocol of a client that comes in at this endpoint."""
        self._makes[scheme] = make
        return lambda: make() if self._is_open and not self._obstacle else ProxiedClient(self, scheme)

    def protocol(self, scheme: str) -> asyncio.Protocol | None:
        """Of a client that another server passes on; None if this one is not active, or has no such endpoint."""
        make = self._makes.get(scheme)
        return make() if make is not None and self._is_open and not self._obstacle else None

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

    def hinder(self, obstacle: str) -> None:
        """Nobody can be active, for this reason, so those who wait are refused; with none, they are let in again.
        Clients that are here, or were passed on, stay.
        """
        self._obstacle = obstacle
        for client in tuple(self._clients):
            if not client.is_passed_on:
                self.place(client)

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
        ends = monotonic() + SLICE_S
        while self._to_place and monotonic() < ends:
            self.place(next(iter(self._to_place)))
        self._is_queued = bool(self._to_place)
        return self._is_queued

    def place(self, client: ProxiedClient) -> None:
        """A client that waits, or was passed on elsewhere."""
        self._to_place.pop(client, None)
        client.come_back()
        if client.is_passed_on or self.is_closing:
            client.cut()
        elif self._obstacle and (self._is_open or self._address is None):
            client.refuse(self._obstacle)
        elif self._is_open:
            client.come_in(self._makes[client.scheme]())
        elif self._address is not None:
            client.pass_on(self._address)

    def not_let_in(self, client: ProxiedClient) -> None:
        """The active server did not let it in: mostly, that one is gone, and another one will be active."""
        if self._obstacle:
            client.refuse(self._obstacle)
            return
        asyncio.get_running_loop().call_later(_AGAIN_S, self._place_again, client)

    def _place_again(self, client: ProxiedClient) -> None:
        if client in self._clients and not client.is_passed_on:
            self.place(client)

    def joined(self, client: ProxiedClient) -> None:
        self._clients[client] = None
        self.place(client)

    def left(self, client: ProxiedClient) -> None:
        self._clients.pop(client, None)
        self._to_place.pop(client, None)

    def pass_on(self, client: ProxiedClient, address: str) -> SplicedServer:
        """To the active server."""
        host, port = client.address
        return SplicedServer(client, Hello("splice", self._id, address, client.scheme, host, port), self._secret)
