"""Connections between replicated servers at their ends: what is held of them, and what is taken from them."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
import sys
import tempfile
from contextlib import suppress
from typing import Any

import pytest

from statestore_client.errors import RemoteProtocolError, SettingsError
from statestore_client.server.runtime.replication.internal import (
    ENCRYPTED,
    MAGIC,
    SECOND_COMES,
    SECOND_GOES,
    ClusterSecret,
    Hello,
    InternalListener,
    InternalStream,
    Session,
    dial,
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


_OLD, _NEW = b"the old secret of them", b"the new secret of them"


def _two(head: bytes, *secrets: bytes) -> bytes:
    return head + b"\n".join(map(base64.b64encode, secrets))


#: What servers have while the secret is changed, in the order of the steps.
_STEPS = (_OLD, _two(SECOND_COMES, _OLD, _NEW), _two(SECOND_GOES, _NEW, _OLD), _NEW)
_PROVEN = (_OLD, _OLD, _NEW, _NEW)
_ACCEPTED = ((_OLD,), (_OLD, _NEW), (_NEW, _OLD), (_NEW,))


@pytest.mark.parametrize("purpose", ["status", "pulse"])
@pytest.mark.parametrize("dialler", range(4))
@pytest.mark.parametrize("receiver", range(4))
async def test_servers_whose_steps_follow_each_other_let_each_other_in(
    purpose: str, dialler: int, receiver: int
) -> None:
    """While the secret is changed. Those that are further apart do not: with TLS each has to have what the other one
    proves, and without, for signs of life, the receiver what the dialler does.
    """
    loop = asyncio.get_running_loop()
    met: asyncio.Future[InternalStream] = loop.create_future()
    server = await loop.create_server(lambda: InternalStream(met.set_result), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def let_in() -> None:
        stream = await met
        try:
            (await receive(stream, ClusterSecret(_STEPS[receiver]))).answer("", "a")
        except BaseException:
            stream.transport.abort()
            raise

    receiving = asyncio.create_task(let_in())
    async with asyncio.timeout(10), server:
        try:
            stream, _ = await dial(address, Hello(purpose, "b", address), ClusterSecret(_STEPS[dialler]))
            stream.transport.abort()
            is_in = True
        except (EOFError, OSError, RemoteProtocolError):
            is_in = False
        with suppress(OSError, RemoteProtocolError):
            await receiving
        (await met).transport.abort()
    shown, accepted = _PROVEN[dialler], _ACCEPTED[receiver]
    assert is_in == (shown in accepted and (purpose == "pulse" or _PROVEN[receiver] in _ACCEPTED[dialler]))
    assert is_in or abs(dialler - receiver) > 1


def test_a_file_of_two_secrets_that_is_damaged_is_refused() -> None:
    """Half of it is no secret, and the whole of it neither."""
    for text in (b"", base64.b64encode(_OLD), b"\n".join([base64.b64encode(_OLD)] * 3), b"?\n?"):
        with pytest.raises(SettingsError, match="has each of them in Base64"):
            ClusterSecret(SECOND_COMES + text)
    assert ClusterSecret(_STEPS[1]).fingerprints == ClusterSecret(_STEPS[2]).fingerprints[::-1]
    assert ClusterSecret(b"").fingerprints == []


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
