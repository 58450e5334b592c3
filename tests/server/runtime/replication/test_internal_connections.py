"""Connections between replicated servers at their ends: what is held of them, and what is taken from them."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import tempfile
from contextlib import suppress
from typing import Any

import pytest

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.runtime.replication.internal import (
    ENCRYPTED,
    MAGIC,
    ClusterSecret,
    InternalListener,
    InternalStream,
    Session,
    receive,
)
from statestore_client.server.runtime.replication.liveness import HeartbeatThread


async def test_an_answer_of_any_size_is_read() -> None:
    """Also one that is larger than what may come ahead."""
    answer = bytes(1_000_000)

    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    stream = InternalStream()
    async with asyncio.timeout(10), await asyncio.start_server(say, "127.0.0.1", 0) as server:
        await asyncio.get_running_loop().create_connection(lambda: stream, *server.sockets[0].getsockname())
        assert await stream.read_all() == answer


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere OpenSSL reads the key from a directory for such files")
def test_the_key_of_the_certificate_needs_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container nothing but the volume may be writable; and no disk has the key."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert ClusterSecret(bytes(16)).receiver_tls.get_ca_certs() == []


@pytest.mark.attack("replicated servers", "say something before the encryption begins")
async def test_nothing_that_came_before_tls_counts_as_said_inside() -> None:
    """Somebody in between could put it there. The connection ends."""
    loop = asyncio.get_running_loop()
    met: asyncio.Future[InternalStream] = loop.create_future()
    server = await loop.create_server(lambda: InternalStream(met.set_result), "127.0.0.1", 0)
    async with asyncio.timeout(10), server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        stream = await met
        receiving = asyncio.create_task(receive(stream, ClusterSecret(bytes(16))))
        await reader.readexactly(len(MAGIC))
        writer.write(ENCRYPTED + bytes(32))
        with pytest.raises(RemoteProtocolError, match="does not wait for TLS"):
            await receiving
        stream.transport.abort()
        writer.close()


@pytest.mark.parametrize("turns", range(7))
async def test_who_is_being_accepted_when_the_listener_closes_is_closed_as_well(turns: int) -> None:
    """At each turn of the event loop between accept() and the first word: no socket is forgotten."""
    nobody: Any = None  # is asked: the stranger says nothing
    listener = InternalListener("a", nobody, ClusterSecret(b""), nobody, nobody)
    port = await listener.open("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        with suppress(ConnectionResetError):
            async with asyncio.timeout(10):
                while await asyncio.get_running_loop().sock_recv(stranger, 100):
                    pass
    gc.collect()  # what was forgotten is a warning, which is an error


async def test_listeners_that_have_left_are_closed_while_nothing_is_said() -> None:
    """A standby that hears nothing comes anew each second, for as long as the server is not active."""
    pulse = HeartbeatThread(lambda: None, lambda: None)
    ends = [socket.socketpair() for _ in range(3)]
    for (ours, theirs), name in zip(ends, "bbc", strict=True):
        pulse.add(ours, name, 1, Session(b"", b"", b""))
        if name == "b":
            theirs.close()
    assert [ours.fileno() >= 0 for ours, _ in ends] == [False, False, True]
    assert pulse.listeners == ["c"]
    pulse.close()
    assert ends[2][0].fileno() == -1
    ends[2][1].close()
