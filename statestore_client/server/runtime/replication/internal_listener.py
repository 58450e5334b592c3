"""Where the other servers connect: for the clients that they pass on, and to hear that this one lives."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from raft_client._common import event_loops
from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.observability.event_log import LOGGER
from statestore_client.server.runtime.replication.internal_connection import InternalStream, receive
from statestore_client.server.runtime.transport.peers import peer_name

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from statestore_client.server.runtime.replication.client_router import ClientRouter
    from statestore_client.server.runtime.replication.cluster_secret import ClusterSecret
    from statestore_client.server.runtime.replication.internal_connection import Visitor
    from statestore_client.server.runtime.replication.internal_handshake import Session

__all__ = ["InternalListener"]

#: A stranger has this time to say who he is, and so many may try at once.
_HELLO_S: Final = 2.0
_MOST_STRANGERS: Final = 256


class InternalListener:
    """Belongs to the event loop."""

    def __init__(
        self,
        server_id: str,
        router: ClientRouter,
        secret: ClusterSecret,
        add_pulse: Callable[[socket.socket, str, int, Session], None],
        command: Callable[[str, str], Awaitable[dict[str, object]]],
    ) -> None:
        """``add_pulse`` takes the socket of a server that listens for signs of life, its id, the newest format that it
        knows, and what its signs of life are sealed with. ``command`` carries out what people ask for, by purpose and
        argument.
        """
        self._id = server_id
        self._router = router
        self._secret = secret
        self._add_pulse = add_pulse
        self._command = command
        self._strangers: dict[InternalStream, None] = {}  # in the order of their arrival
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        #: Where the others find this server, as they have read it in the log: another name is another server's.
        self.address: str = ""

    async def open(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError, and SettingsError if TLS between the servers cannot be had."""
        if self._secret:
            _ = self._secret.receiver_tls, self._secret.dialler_tls
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: InternalStream(self._came), host, port)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def close(self) -> None:
        """Safe to call twice."""
        if self._server is not None:
            await event_loops.stop_accepting(self._server)
        for stranger in tuple(self._strangers):
            stranger.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()

    def _came(self, stranger: InternalStream) -> None:
        self._strangers[stranger] = None
        if len(self._strangers) > _MOST_STRANGERS:
            self._of_the_most_crowded_address().transport.abort()
        task = asyncio.get_running_loop().create_task(self._meet(stranger))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _of_the_most_crowded_address(self) -> InternalStream:
        """The first stranger from there: a flood does not keep another server out."""
        addresses = {each: peer_name(each.transport).rpartition(":")[0] for each in self._strangers}
        ((crowded, _),) = Counter(addresses.values()).most_common(1)
        return next(each for each, address in addresses.items() if address == crowded)

    async def _meet(self, stranger: InternalStream) -> None:
        """Until it is known who it is, and what it wants."""
        try:
            try:
                async with asyncio.timeout(_HELLO_S):
                    visitor = await receive(stranger, self._secret)
            finally:
                self._strangers.pop(stranger, None)
            await self._let_in(visitor)
        except EOFError:
            pass  # it looked whether somebody listens here
        except (OSError, RemoteProtocolError) as error:
            reason = error.message if isinstance(error, RemoteProtocolError) else str(error) or "it is silent"
            self._router.driver.refusals.line("server refused", peer_name(stranger.transport), reason=reason)
        finally:
            if not stranger.is_taken:
                stranger.transport.close()

    async def _let_in(self, visitor: Visitor) -> None:
        hello, stream = visitor.hello, visitor.stream
        if self._secret and hello.receiver != self.address:
            visitor.answer(f"its address is {self.address}: use that one", self._id)
            raise RemoteProtocolError(f"it has dialled {hello.receiver}, which is not {self.address}")
        if hello.purpose == "pulse":
            visitor.answer("", self._id)
            sock = cast("socket.socket", stream.transport.get_extra_info("socket"))
            format_ = int(hello.endpoint) if hello.endpoint.isdecimal() else 1
            self._add_pulse(sock.dup(), hello.id, format_, visitor.session)
            stream.transport.abort()
        elif hello.purpose == "splice":
            self._take_client(visitor)
        else:
            try:
                said = await self._command(hello.purpose, hello.endpoint)
            except Exception as error:  # noqa: BLE001 - our own defect; who has asked is to know
                LOGGER.exception("a command of statestore ha failed")
                visitor.answer(f"the command failed: {error}", self._id)
                return
            visitor.answer("", self._id)
            stream.transport.write(json.dumps(said).encode() + b"\n")

    def _take_client(self, visitor: Visitor) -> None:
        """A client of another server, if this one is active."""
        hello = visitor.hello
        protocol = self._router.protocol(hello.endpoint)
        if protocol is None:
            visitor.answer("this server is not active", self._id)
            return
        visitor.answer("", self._id)
        if hello.host:
            self._router.driver.peers.came_from(visitor.stream.transport, (hello.host, hello.port))
        visitor.stream.hand_over(protocol)
