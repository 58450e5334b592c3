"""A connection from one replicated server to another one, up to the point where both know who the other is."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final, cast

import attrs

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.replication.cluster_secret import ClusterSecret
from statestore_client.server.runtime.replication.internal_handshake import (
    CODE_BYTES,
    ENCRYPTED,
    LENGTH_BYTES,
    MAGIC,
    NONCE_BYTES,
    PLAIN,
    Answer,
    Hello,
    Session,
    check_magic,
    length_of,
)
from statestore_client.server.runtime.transport.sockets import set_options

__all__ = ["InternalStream", "Visitor", "dial", "receive"]

#: What the other side may send ahead; more waits in the network.
_MOST_EARLY_BYTES: Final = 64 * 1024


class InternalStream(asyncio.Protocol):
    """Bytes that are awaited, until the transport gets another protocol. Belongs to the event loop."""

    def __init__(self, came: Callable[[InternalStream], None] | None = None) -> None:
        self._came = came
        self._data = bytearray()
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self.has_ended: bool = False
        #: Another protocol has the transport now.
        self.is_taken: bool = False

    @property
    def transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("not connected yet")
        return self._transport

    async def read(self, count: int) -> bytes:
        """Exactly so many. Raises EOFError if fewer come."""
        while len(self._data) < count:
            if self.has_ended:
                raise EOFError
            await self._change()
        return self._take(count)

    async def read_all(self) -> bytes:
        """Up to the end. More than may come ahead is taken as it comes."""
        rest = bytearray()
        while not self.has_ended:
            rest += self.take_rest()
            await self._change()
        return bytes(rest) + self.take_rest()

    def take_rest(self) -> bytes:
        """What came and was not read."""
        return self._take(len(self._data))

    async def start_tls(self, secret: ClusterSecret, *, is_receiver: bool) -> None:
        """Raises OSError, and RemoteProtocolError if something came before TLS: it would count as said inside."""
        if self._data:
            raise RemoteProtocolError("it does not wait for TLS to begin")
        context = secret.receiver_tls if is_receiver else secret.dialler_tls
        secured = await asyncio.get_running_loop().start_tls(self.transport, self, context, server_side=is_receiver)
        if secured is None:
            raise ConnectionResetError("the connection ended in the handshake of TLS")
        self._transport = secured

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """From here on ``protocol`` hears everything itself, as if it had been there from the beginning."""
        self.is_taken = True
        transport, rest = self.transport, self.take_rest()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest and not transport.is_closing():
            protocol.data_received(rest)
        if self.has_ended:
            protocol.connection_lost(None)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        if len(self._data) <= _MOST_EARLY_BYTES and not self.has_ended:
            self.transport.resume_reading()
        return taken

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        set_options(self._transport)
        if self._came is not None:
            self._came(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > _MOST_EARLY_BYTES:
            self.transport.pause_reading()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.has_ended = True
        self._changed.set()


async def dial(address: str, hello: Hello, secret: ClusterSecret) -> tuple[InternalStream, Session]:
    """Connect to the internal address ``host:port`` of another server, which has proven that it has the secret when
    this returns. Raises OSError, EOFError, and RemoteProtocolError.
    """
    host, _, port = address.rpartition(":")
    stream = InternalStream()
    await asyncio.get_running_loop().create_connection(lambda: stream, host.strip("[]"), int(port))
    try:
        check_magic(await stream.read(len(MAGIC)))
        if secret and hello.purpose != "pulse":
            stream.transport.write(ENCRYPTED)
            if await stream.read(len(ENCRYPTED)) != ENCRYPTED:
                raise RemoteProtocolError("it does not encrypt")
            await stream.start_tls(secret, is_receiver=False)
        else:
            stream.transport.write(PLAIN)
        session = Session(secret.key, await stream.read(NONCE_BYTES), secrets.token_bytes(NONCE_BYTES))
        stream.transport.write(hello.encode(session))
        packed = await stream.read(length_of(await stream.read(LENGTH_BYTES)))
        answer = Answer.decode(packed, await stream.read(CODE_BYTES), session)
        if not answer.is_accepted:
            raise RemoteProtocolError(answer.text)
    except BaseException:
        stream.transport.abort()
        raise
    return stream, session


@attrs.frozen
class Visitor:
    """Who has dialled this server, and has proven to have the secret."""

    hello: Hello
    stream: InternalStream
    session: Session

    def answer(self, reason: str, own_id: str) -> None:
        """Let it in; or refuse it, if there is a ``reason``."""
        self.stream.transport.write(Answer(not reason, reason or own_id).encode(self.session))


async def receive(stream: InternalStream, secret: ClusterSecret) -> Visitor:
    """The other end of :func:`dial`, before its answer. Raises OSError, EOFError, and RemoteProtocolError."""
    stream.transport.write(MAGIC)
    choice = await stream.read(len(ENCRYPTED))
    if choice == ENCRYPTED:
        if not secret:
            raise RemoteProtocolError("it has a key, and this server has none: give all the same --cluster-key-file")
        stream.transport.write(ENCRYPTED)
        await stream.start_tls(secret, is_receiver=True)
    elif choice != PLAIN:
        raise RemoteProtocolError("it does not speak as the servers of a log do")
    nonce = secrets.token_bytes(NONCE_BYTES)
    stream.transport.write(nonce)
    packed = await stream.read(length_of(await stream.read(LENGTH_BYTES)))
    session = Session(secret.key, nonce, await stream.read(NONCE_BYTES))
    hello = Hello.decode(packed, await stream.read(CODE_BYTES), session)
    if secret and choice == PLAIN and hello.purpose != "pulse":
        raise RemoteProtocolError("it has the key, and does not encrypt")
    return Visitor(hello, stream, session)
