"""Values so large that a broker cannot keep the answers to all requests: any size goes through, at any count."""

from __future__ import annotations

import asyncio

import pytest
from evil_broker import EvilBroker, Say, reply
from support.shells import Shell

from statestore_client.core import request_table
from statestore_client.mqtt.packets import Connack, Connect, Disconnect, Packet, Puback, Publish, encode
from statestore_client.server import BrokerLimits, EmbeddedServer

_VALUE = bytes(100_000)


class BrokerWithLittleRoom:
    """Keeps a few answers for a client that has not acknowledged them, and throws out a client that asks for more, as
    brokers with a limit of bytes do. Its sessions survive that. Answers that it had no room for are lost.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._owed: set[int] = set()  # packet identifiers
        self._last_id = 0
        self._is_out = False
        self.thrown_out = 0

    def behave(self, packet: Packet, say: Say) -> bool:
        if isinstance(packet, Connect):
            say(encode(Connack(session_present=not packet.clean_start), 5))
            self._owed.clear()
            self._is_out = False
        elif isinstance(packet, Puback):
            self._owed.discard(packet.packet_id)
        elif self._is_out:
            pass  # what was sent before it was read
        elif isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5))
            if len(self._owed) >= self._room:
                self.thrown_out += 1
                self._is_out = True
                say(encode(Disconnect(0x97), 5))
                return True
            self._last_id += 1
            self._owed.add(self._last_id)
            say(reply(packet, b"$100000\r\n" + _VALUE + b"\r\n", packet_id=self._last_id))
        else:
            return False
        return True


@pytest.mark.quick
async def test_a_broker_without_room_for_the_answers(shell: Shell) -> None:
    """``get_many`` from a broker that answers 0x97 to more than two requests at a time returns every value."""
    little_room = BrokerWithLittleRoom(2)
    async with EvilBroker(little_room.behave) as broker, shell.client(broker.url) as store:
        items = await asyncio.wait_for(store.get_many([f"k{i}" for i in range(40)]), 30)
        assert [item.value for item in items] == [_VALUE] * 40
    assert 1 <= little_room.thrown_out <= 4  # 8, 4, 2


@pytest.fixture
def greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client looks at the number of its requests only, as others do."""
    monkeypatch.setattr(request_table, "MOST_BYTES", 1 << 40)


@pytest.mark.quick
@pytest.mark.usefixtures("greedy")
async def test_the_server_lets_requests_wait(shell: Shell) -> None:
    """A client that asks for 64 answers of 100 kB at once, where 500 kB may wait for it, gets them all, on one
    connection."""
    limits = BrokerLimits(packet_bytes=200_000, in_flight_bytes=100_000, queued_bytes=500_000)
    with EmbeddedServer(broker_limits=limits) as server:
        async with shell.client(server.url) as store:
            await store.set("k", _VALUE)
            items = await store.get_many(["k"] * 80)
            assert [item.value for item in items] == [_VALUE] * 80
            assert store.stats.resent == 0
        assert server.counters.connects == 1


@pytest.mark.quick
async def test_watches_of_large_values(shell: Shell) -> None:
    """A watch on the prefix of 30 values of 100 kB begins with all of them, where the server keeps 500 kB for it."""
    limits = BrokerLimits(packet_bytes=200_000, in_flight_bytes=100_000, queued_bytes=500_000)
    with EmbeddedServer(broker_limits=limits) as server:
        async with shell.client(server.url) as store:
            await store.set_many([(f"k{i}", _VALUE) for i in range(30)])
            async with store.watch_prefix("k", initial=True) as watch:
                seen = {(await anext(aiter(watch))).key for _ in range(30)}
        assert seen == {b"k%d" % i for i in range(30)}
        assert server.counters.connects == 1


async def test_a_hundred_large_values(shell: Shell) -> None:
    """``get_many`` of 100 values of 2 MB, and with our own driver of 8 MB, with all defaults, on one connection."""
    size = 8_000_000 if shell.driver == "native" else 2_000_000
    with EmbeddedServer() as server:
        async with shell.client(server.url) as store:
            await store.set_many([("k", bytes(size))] * 10)
            items = await store.get_many(["k"] * 100)
            assert [len(item.value) for item in items] == [size] * 100
            assert store.stats.resent == 0
        assert server.counters.connects == 1


@pytest.mark.usefixtures("greedy")
async def test_a_hundred_large_values_at_once(shell: Shell) -> None:
    """The same of 2 MB for a client that asks for 64 at once: four times what the server keeps for it."""
    with EmbeddedServer() as server:
        async with shell.client(server.url) as store:
            await store.set("k", bytes(2_000_000))
            items = await store.get_many(["k"] * 100)
            assert [len(item.value) for item in items] == [2_000_000] * 100
        assert server.counters.connects == 1
