"""Where the other servers connect: for the clients that they pass on, and to hear that this one lives."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from typing import TYPE_CHECKING, Final, cast

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.observability.event_log import log_event
from statestore_client.server.runtime.replication.internal_handshake import (
    ACCEPTED,
    CHALLENGE_BYTES,
    ClientHello,
    ServerHello,
    hello_size,
)
from statestore_client.server.runtime.transport.peers import peer_name
from statestore_client.server.runtime.transport.sockets import set_options

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from statestore_client.server.runtime.replication.client_router import ClientRouter

__all__ = ["InternalListener"]

#: A stranger has this time to say who he is, and so many may try at once.
_HELLO_S: Final = 2.0
_MOST_STRANGERS: Final = 256


class InternalListener:
    """Belongs to the event loop."""

    def __init__(
        self,
        router: ClientRouter,
        key: bytes,
        add_pulse: Callable[[socket.socket, str, int], None],
        command: Callable[[str, str], Awaitable[dict[str, object]]],
    ) -> None:
        """``add_pulse`` takes the socket of a server that listens for signs of life, its id, and the newest format that
        it knows. ``command`` carries out what people ask for, by purpose and argument.
        """
        self._router = router
        self._command = command
        self._commands: set[asyncio.Task[None]] = set()
        self._key = key
        self._add_pulse = add_pulse
        self._strangers: dict[_IncomingConnection, None] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _IncomingConnection(self), host, port)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    def close(self) -> None:
        """Safe to call twice."""
        if self._server is not None:
            self._server.close()
        for stranger in tuple(self._strangers):
            stranger.abort()

    # -- from the connections -----------------------------------------------------------------------------------------

    def came(self, stranger: _IncomingConnection) -> None:
        self._strangers[stranger] = None
        if len(self._strangers) > _MOST_STRANGERS:
            next(iter(self._strangers)).abort()

    def left(self, stranger: _IncomingConnection) -> None:
        self._strangers.pop(stranger, None)

    def read(self, data: bytes, challenge: bytes) -> ClientHello:
        return ClientHello.decode(data, challenge, self._key)

    def let_in(self, hello: ClientHello, transport: asyncio.Transport, rest: bytes) -> bool:
        """Returns whether the connection is somebody else's from now on."""
        if hello.purpose == "pulse":
            transport.write(ACCEPTED)
            sock = cast("socket.socket", transport.get_extra_info("socket"))
            self._add_pulse(sock.dup(), hello.id, int(hello.endpoint) if hello.endpoint.isdecimal() else 1)
            transport.abort()
            return True
        if hello.purpose != "splice":
            task = asyncio.get_running_loop().create_task(self._carry_out(hello, transport))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)
            return True
        protocol = self._router.protocol(hello.endpoint)
        if protocol is None:
            return False
        if hello.host:
            self._router.driver.peers.came_from(transport, (hello.host, hello.port))
        transport.write(ACCEPTED)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest and not transport.is_closing():
            protocol.data_received(rest)
        return True

    async def _carry_out(self, hello: ClientHello, transport: asyncio.Transport) -> None:
        answer = await self._command(hello.purpose, hello.endpoint)
        transport.write(ACCEPTED + json.dumps(answer).encode() + b"\n")
        transport.close()


class _IncomingConnection(asyncio.Protocol):
    """Somebody who has not said who he is."""

    def __init__(self, listener: InternalListener) -> None:
        self._listener = listener
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast("asyncio.Transport", transport)
        set_options(stream)
        self._timer = asyncio.get_running_loop().call_later(_HELLO_S, self.abort)
        stream.write(ServerHello(self._challenge).encode())
        self._listener.came(self)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._data += data
        try:
            size = hello_size(self._data)
            if size is None or len(self._data) < size:
                return
            hello = self._listener.read(bytes(self._data[:size]), self._challenge)
        except RemoteProtocolError as error:
            log_event(logging.WARNING, "server refused", peer=peer_name(transport), reason=error.message)
            transport.abort()
            return
        self._forget()
        if not self._listener.let_in(hello, transport, bytes(self._data[size:])):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._forget()

    def _forget(self) -> None:
        self._listener.left(self)
        if self._timer is not None:
            self._timer.cancel()
