"""Plain sockets as transports: every test runs on asyncio's own transport as well, which is the judge."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from statestore_client.server.runtime.transport.sockets import Acceptor, SocketTransport, take_over

Make = Callable[..., Awaitable[tuple[asyncio.Transport, "Recorder", socket.socket]]]


class Recorder(asyncio.Protocol):
    """Remembers what it hears; ``heard`` is set each time."""

    def __init__(self, *, stays_open: bool = False) -> None:
        self.events: list[object] = []
        self.heard = asyncio.Event()
        self.received = bytearray()
        self.is_broken = False
        self._stays_open = stays_open

    def _note(self, event: object) -> None:
        self.events.append(event)
        self.heard.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._note("made")

    def data_received(self, data: bytes) -> None:
        if self.is_broken:
            raise RuntimeError("a defect")
        self.received += data
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return self._stays_open

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self._note(("lost", None if exc is None else type(exc)))

    async def hears(self, event: object) -> None:
        """Wait for an event."""
        async with asyncio.timeout(10):
            while event not in self.events:
                self.heard.clear()
                await self.heard.wait()


async def _own(protocol: Recorder, sock: socket.socket) -> asyncio.Transport:
    return SocketTransport(asyncio.get_running_loop(), sock, sock.getpeername(), protocol)


async def _of_asyncio(protocol: Recorder, sock: socket.socket) -> asyncio.Transport:
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, sock)
    return transport


@pytest.fixture(params=[_own, _of_asyncio], ids=["ours", "asyncio's"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Makes a transport, its protocol, and the peer at the other end of the TCP connection."""
    peers: list[socket.socket] = []

    async def made(*, stays_open: bool = False) -> tuple[asyncio.Transport, Recorder, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peers.append(peer := socket.create_connection(listening.getsockname(), 10))
            sock, _ = listening.accept()
        sock.setblocking(False)
        protocol = Recorder(stays_open=stays_open)
        return await request.param(protocol, sock), protocol, peer

    yield made
    for peer in peers:
        peer.close()


async def _read_all(peer: socket.socket) -> bytes:
    """Everything up to the end of the stream, in a thread."""

    def read() -> bytes:
        found = bytearray()
        while data := peer.recv(65_536):
            found += data
        return bytes(found)

    return await asyncio.to_thread(read)


async def _overfill(transport: asyncio.Transport, protocol: Recorder) -> bytes:
    """Write until the socket takes no more; everything that was written."""
    written = bytearray()
    while "pause" not in protocol.events:
        part = bytes([len(written) // 65_536 % 251]) * 65_536
        transport.write(part)
        written += part
    return bytes(written)


async def test_data_and_the_end(make: Make) -> None:
    """A protocol gets the peer's data, then its end, then once the loss of the connection."""
    _transport, protocol, peer = await make()
    peer.sendall(b"some")
    await protocol.hears("data")
    peer.sendall(b"thing")
    peer.close()
    await protocol.hears(("lost", None))
    assert protocol.received == b"something"
    assert [event for event in protocol.events if event != "data"] == ["made", "eof", ("lost", None)]


async def test_it_knows_its_peer(make: Make) -> None:
    """A transport tells its socket and the peer's address."""
    transport, _protocol, peer = await make()
    assert transport.get_extra_info("peername") == peer.getsockname()
    assert transport.get_extra_info("socket").getsockname() == peer.getpeername()
    assert transport.get_extra_info("peercert") is None
    transport.abort()


async def test_a_slow_peer(make: Make) -> None:
    """A peer that does not read pauses the protocol, and gets every byte when it reads."""
    transport, protocol, peer = await make()
    written = await _overfill(transport, protocol)
    assert transport.get_write_buffer_size() > 65_536
    reading = asyncio.create_task(_read_all(peer))
    await protocol.hears("resume")
    transport.write(b"after")
    transport.close()
    assert await reading == written + b"after"
    await protocol.hears(("lost", None))


async def test_closing_sends_what_is_left(make: Make) -> None:
    """close() waits until the peer has taken everything."""
    transport, protocol, peer = await make()
    written = await _overfill(transport, protocol)
    transport.close()
    assert transport.is_closing()
    assert not transport.is_reading()
    assert await _read_all(peer) == written
    await protocol.hears(("lost", None))


async def test_aborting_does_not(make: Make) -> None:
    """abort() drops what the peer did not take, and the protocol is told afterwards."""
    transport, protocol, peer = await make()
    written = await _overfill(transport, protocol)
    transport.abort()
    transport.abort()
    transport.write(b"ignored")
    assert protocol.events[-1] == "pause"
    await protocol.hears(("lost", None))
    assert protocol.events.count(("lost", None)) == 1
    assert len(await _read_all(peer)) < len(written)


async def test_half_closing(make: Make) -> None:
    """The write side ends after what is buffered, and reading goes on."""
    transport, protocol, peer = await make()
    assert transport.can_write_eof()
    written = await _overfill(transport, protocol)
    transport.write_eof()
    assert await _read_all(peer) == written
    peer.sendall(b"still heard")
    await protocol.hears("data")
    peer.close()
    await protocol.hears(("lost", None))


async def test_the_peer_half_closes(make: Make) -> None:
    """A protocol may answer a peer that has closed its writing side."""
    transport, protocol, peer = await make(stays_open=True)
    peer.shutdown(socket.SHUT_WR)
    await protocol.hears("eof")
    transport.write(b"answer")
    transport.close()
    assert await _read_all(peer) == b"answer"
    await protocol.hears(("lost", None))


async def test_a_paused_transport(make: Make) -> None:
    """While reading is paused nothing is read; pausing and resuming twice is harmless."""
    transport, protocol, peer = await make()
    transport.pause_reading()
    transport.pause_reading()
    assert not transport.is_reading()
    peer.sendall(b"wait")
    await asyncio.to_thread(lambda: None)  # a round of the loop with the bytes there
    assert not protocol.received
    transport.resume_reading()
    transport.resume_reading()
    await protocol.hears("data")
    assert protocol.received == b"wait"
    transport.abort()


async def test_a_reset(make: Make) -> None:
    """A connection that the peer resets is lost with the error."""
    _transport, protocol, peer = await make()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    await protocol.hears(("lost", ConnectionResetError))


async def test_a_defect_of_the_protocol(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A protocol that raises loses its connection, and the error is logged."""
    _transport, protocol, peer = await make()
    protocol.is_broken = True
    peer.sendall(b"x")
    await protocol.hears(("lost", RuntimeError))
    assert "a defect" in caplog.text


# -- accepting --------------------------------------------------------------------------------------------------------


async def test_many_connect_at_once() -> None:
    """All waiting sockets are accepted, and what they have already sent is read."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    made: list[Recorder] = []
    all_made = asyncio.Event()

    def protocol() -> Recorder:
        made.append(Recorder())
        if len(made) == 50:
            all_made.set()
        return made[-1]

    acceptor = Acceptor(asyncio.get_running_loop(), listening, protocol)
    peers = [socket.create_connection(listening.getsockname()) for _ in range(50)]
    for number, peer in enumerate(peers):
        peer.sendall(b"%d" % number)
    async with asyncio.timeout(10):
        await all_made.wait()
    for recorder in made:
        await recorder.hears("data")
    assert sorted(int(recorder.received) for recorder in made) == list(range(50))
    acceptor.close()
    acceptor.close()
    for peer, recorder in zip(peers, made, strict=True):
        peer.close()
        recorder.transport.abort()
    await asyncio.sleep(0)


async def test_nobody_is_accepted_afterwards() -> None:
    """A closed acceptor has closed its socket and accepts nobody."""
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    Acceptor(asyncio.get_running_loop(), listening, Recorder).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_no_file_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without file descriptors the acceptor says so once, and accepts again when there are some."""
    monkeypatch.setattr("statestore_client.server.runtime.transport.sockets._ACCEPT_PAUSE_S", 0.01)
    listening = socket.create_server(("127.0.0.1", 0))
    recorder = Recorder()
    acceptor = Acceptor(asyncio.get_running_loop(), listening, lambda: recorder)
    peer = socket.create_connection(listening.getsockname())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (listening.fileno(), hard))
    try:
        with pytest.raises(OSError, match="Too many") as refused:
            socket.socket()
        assert refused.value.errno == errno.EMFILE
        for _ in range(5):
            await asyncio.sleep(0)
        assert recorder.events == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await recorder.hears("made")
    acceptor.close()
    recorder.transport.abort()
    peer.close()
    await asyncio.sleep(0)


async def test_taking_over_from_asyncio() -> None:
    """A server of asyncio hands its sockets over, and without a protocol to make it goes on itself."""
    theirs, ours = Recorder(), Recorder()
    server = await asyncio.get_running_loop().create_server(lambda: theirs, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    assert take_over(server, None, backlog=10) == []
    with socket.create_connection(address):
        await theirs.hears("made")
        (acceptor,) = take_over(server, lambda: ours, backlog=10)
        with socket.create_connection(address):
            await ours.hears("made")
        await ours.hears(("lost", None))
    await theirs.hears(("lost", None))
    assert theirs.events.count("made") == 1
    acceptor.close()
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
