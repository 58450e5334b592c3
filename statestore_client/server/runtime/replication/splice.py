"""A client's connection on its way to the server that is active: bytes are passed on as they are, both ways."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.observability.event_log import log_event
from statestore_client.server.runtime.replication.internal_connection import dial
from statestore_client.server.runtime.transport.peers import peer_name
from statestore_client.server.runtime.transport.sockets import set_options

if TYPE_CHECKING:
    from statestore_client.errors import PacketError
    from statestore_client.server.runtime.replication.client_router import ClientRouter
    from statestore_client.server.runtime.replication.cluster_secret import ClusterSecret
    from statestore_client.server.runtime.replication.internal_handshake import Hello
    from statestore_client.server.runtime.transport.peers import Peer

__all__ = ["SplicedClient", "SplicedServer"]

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


class SplicedClient(_Side):
    """The client's side."""

    def __init__(self, router: ClientRouter, scheme: str) -> None:
        self.scheme = scheme
        self._router = router
        self._peer: Peer | None = None
        self._early = bytearray()
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
            self._router.place_later(self)


class SplicedServer(_Side):
    """The side of the active server: ``hello`` has its address."""

    def __init__(self, client: SplicedClient, hello: Hello, secret: ClusterSecret) -> None:
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
