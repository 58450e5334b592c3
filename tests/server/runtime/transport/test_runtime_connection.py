"""The states of one connection: what comes while it is read, held, congested or closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from statestore_client.mqtt.packets import MQTT_5_0, Connect, Packet, PacketDecoder, Publish, Subscribe, Subscription
from statestore_client.mqtt.packets import encode as encode_packet
from statestore_client.server.broker import Broker, BrokerLimits
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.server.runtime.clock import system_clock
from statestore_client.server.runtime.transport.connection import ServerConnection


class Line(asyncio.Transport):
    """A socket that takes ``room`` bytes before it is full, and the peer at its other end."""

    def __init__(self, driver: BrokerDriver, client_id: str = "c") -> None:
        super().__init__()
        self.driver = driver
        self.room = 1_000_000
        self.reads_again = asyncio.Event()
        self.is_read = True
        self.is_closed = False
        self._written: list[bytes] = []
        self._decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=1_000_000)
        self.connection = ServerConnection(driver)
        self.connection.connection_made(self)
        self._client_id = client_id

    async def enter(self) -> Line:
        await self.send(Connect(self._client_id, keep_alive=0), Subscribe(1, (Subscription("t", 0),)))
        self.received()
        return self

    async def send(self, *packets: Packet) -> None:
        """In one chunk; and let the server take all its turns, which a busy machine cuts short."""
        self.connection.data_received(b"".join(encode_packet(packet, MQTT_5_0) for packet in packets))
        await settle()

    def received(self) -> list[Packet]:
        written = b"".join(self._written)
        self._written.clear()
        return self._decoder.feed(written)

    def drain(self) -> None:
        """The peer has taken everything."""
        self.room = 1_000_000
        self.connection.resume_writing()

    # -- asyncio.Transport --------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self._written.append(bytes(data))
        self.room -= len(data)
        if self.room < 0:
            self.connection.pause_writing()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True
        self.reads_again.set()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


@pytest.fixture
def make() -> Callable[..., Awaitable[Line]]:
    async def line(**limits: int) -> Line:
        broker = Broker(random=random.Random(1), limits=BrokerLimits(**limits))
        return await Line(BrokerDriver(broker, system_clock, asyncio.get_running_loop())).enter()

    return line


async def settle() -> None:
    """Let all turns be taken."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_peer_that_takes_nothing_is_read_again_when_it_has(make: Callable[..., Awaitable[Line]]) -> None:
    """The peer is not read from the write on that fills its socket, in its own turn or another's, and is when it has
    taken everything."""
    line = await make()
    other = await Line(line.driver, "other").enter()
    for sender, payload in ((line, b"one"), (other, b"two"), (line, b"three")):
        line.room = 0
        await sender.send(Publish("t", payload))
        assert not line.is_read
        line.drain()
        assert line.is_read
        (message,) = line.received()
        assert isinstance(message, Publish)
        assert message.payload == payload


async def test_what_came_before_it_was_not_read_is_served_afterwards(make: Callable[..., Awaitable[Line]]) -> None:
    """Packets in the chunk behind the one that filled the socket wait, in order, and nothing is lost."""
    line = await make()
    line.room = 0
    await line.send(Publish("t", b"one"))
    await line.send(Publish("t", b"two"), Publish("t", b"three"))  # which the socket had read already
    assert len(line.received()) == 1
    line.drain()
    await settle()
    assert [packet.payload for packet in line.received() if isinstance(packet, Publish)] == [b"two", b"three"]
    assert line.is_read


async def test_nothing_is_served_once_it_is_closed(make: Callable[..., Awaitable[Line]]) -> None:
    """After an abort nothing that comes is looked at."""
    line = await make()
    line.connection.abort()
    assert line.is_closed
    await line.send(Publish("t", b"x"))
    await settle()
    assert line.received() == []


async def test_a_peer_that_sends_too_fast_rests_and_goes_on(make: Callable[..., Awaitable[Line]]) -> None:
    """Above its rate a peer is not read, until its timer says so; then all that waited is served."""
    line = await make(received_messages_per_s=10)
    for number in range(15):
        await line.send(Publish("t", b"%d" % number))
    assert not line.is_read
    line.reads_again.clear()
    await asyncio.wait_for(line.reads_again.wait(), 10)
    await settle()
    payloads = [packet.payload for packet in line.received() if isinstance(packet, Publish)]
    assert payloads == [b"%d" % number for number in range(15)]
