"""Values so large that a broker cannot keep the answers to all requests: any size goes through, at any count."""

from __future__ import annotations

import asyncio

import pytest
from evil_broker import EvilBroker, Say, reply
from support.shells import Shell

from statestore_client.mqtt.packets import Connack, Connect, Disconnect, Packet, Puback, Publish, encode

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
