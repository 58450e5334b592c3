"""Clients of a hostile broker: odd answers are understood, others are typed errors, and nothing becomes a storm."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import pytest
from evil_broker import EvilBroker, Say, reply
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    ConnectionState,
    InvalidArgumentError,
    RequestTimeoutError,
    StateStoreError,
    UnexpectedReplyError,
)
from statestore_client.mqtt.packets import (
    ConnackProperties,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    encode,
)


def _byte_by_byte(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        for byte in encode(Puback(packet.packet_id), 5) + reply(packet):
            say(bytes((byte,)))
    return isinstance(packet, Publish)


def _unknown_first(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        for number in range(500):
            say(reply(packet, b"-ERR syntax error\r\n", correlation=number.to_bytes(16, "big"), packet_id=number + 1))
    return False


def _duplicates(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) * 3 + reply(packet) * 50)
    return isinstance(packet, Publish)


def _at_most_once(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, qos=0))
    return isinstance(packet, Publish)


def _exactly_once(packet: Packet, say: Say) -> bool:
    assert not isinstance(packet, Puback), "QoS 2 ends with PUBCOMP (MQTT 5.0, 4.3.3)"
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, qos=2))
    elif isinstance(packet, Pubrec):
        say(encode(Pubrel(packet.packet_id), 5))
    return isinstance(packet, (Publish, Pubrec))


def _far_future(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, more=(("__ts", f"{2**63 - 1}:{2**64 - 1}:store"),)))
    return isinstance(packet, Publish)


def _many_properties(packet: Packet, say: Say) -> bool:
    if isinstance(packet, Publish):
        say(encode(Puback(packet.packet_id), 5) + reply(packet, more=(("a", "b"),) * 1000))
    return isinstance(packet, Publish)


@pytest.mark.parametrize(
    "behave",
    [_byte_by_byte, _unknown_first, _duplicates, _at_most_once, _exactly_once, _far_future, _many_properties],
)
async def test_odd_answers_are_answers(shell: Shell, behave: Callable[[Packet, Say], bool]) -> None:
    """An answer is understood if it comes in bytes, behind unknown ones, twice, with another QoS, time or many
    properties."""
    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        for _ in range(3):
            assert (await store.set("k", b"v", timeout=5)).applied
        assert broker.connections == 1


@pytest.mark.parametrize(("qos", "last"), [(1, Puback), (2, Pubcomp)])
async def test_an_answer_is_acknowledged_although_nothing_follows(shell: Shell, qos: int, last: type[Packet]) -> None:
    """An answer is acknowledged at once or a moment later, and not only with the next request."""
    seen: set[type[Packet]] = set()

    def behave(packet: Packet, say: Say) -> bool:
        seen.add(type(packet))
        if isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet, qos=qos))
        elif isinstance(packet, Pubrec):
            say(encode(Pubrel(packet.packet_id), 5))
        return isinstance(packet, (Publish, Pubrec))

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        assert (await store.set("k", b"v")).applied
        await until(lambda: last in seen)
        assert Pingreq not in seen


async def test_a_broker_that_has_one_message_in_flight(shell: Shell) -> None:
    """All requests are answered by a broker that waits for each acknowledgement before its next answer (MQTT 5.0,
    4.9)."""
    owed: deque[Publish] = deque()

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            owed.append(packet)
            say(encode(Puback(packet.packet_id), 5))
        elif isinstance(packet, Puback):
            owed.popleft()
        else:
            return False
        if owed and (isinstance(packet, Puback) or len(owed) == 1):
            say(reply(owed[0]))
        return True

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        results = await store.set_many([(f"k{number}", b"v") for number in range(100)])
        assert all(result.applied for result in results)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff" * 100, b"*1\r\n" * 10_000, b":" + b"9" * 10_000 + b"\r\n", b"$999999999999\r\n", b"+YES\r\n"],
)
@pytest.mark.attack("clients", "answers of a broker that are none")
async def test_answers_that_are_none(shell: Shell, payload: bytes) -> None:
    """An unreadable answer is a typed error of its request, and the next request goes on the same connection."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet, payload))
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        for _ in range(2):
            with pytest.raises(UnexpectedReplyError):
                await store.set("k", b"v", timeout=5)
        assert broker.connections == 1


async def test_a_window_of_one(shell: Shell) -> None:
    """If CONNACK allows one unacknowledged message, a hundred calls are sent one by one."""
    unacknowledged: list[Publish] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            unacknowledged.append(packet)
            assert len(unacknowledged) == 1
            asyncio.get_running_loop().call_soon(_finish, unacknowledged, say)
        return isinstance(packet, Publish)

    def _finish(publishes: list[Publish], say: Say) -> None:
        publish = publishes.pop()
        say(encode(Puback(publish.packet_id), 5) + reply(publish))

    narrow = ConnackProperties(receive_maximum=1)
    async with EvilBroker(behave, connack=narrow) as broker, shell.client(broker.url) as store:
        done = await asyncio.gather(*(store.set(f"k{i}", b"") for i in range(100)))
        assert all(d.applied for d in done)


async def test_a_broker_that_accepts_packets_of_250_bytes(shell: Shell) -> None:
    """A broker's packet limit of 250 bytes fits SUBSCRIBE; a larger request is refused unsent, and its error names both
    sizes."""
    tiny = ConnackProperties(maximum_packet_size=250)
    async with EvilBroker(lambda _packet, _say: False, connack=tiny) as broker, shell.client(broker.url) as store:
        with pytest.raises(InvalidArgumentError, match="the broker accepts 250"):
            await store.set("k", b"v")


async def test_a_broker_whose_rules_are_away(shell: Shell) -> None:
    """A broker that refuses even the subscription to the answers for a while ends nothing: the client tries again."""
    away, refused = [True], []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe) and away[0]:
            say(encode(Suback(packet.packet_id, (0x87,) * len(packet.subscriptions)), 5))
            refused.append(packet)
            return True
        return False

    async with EvilBroker(behave) as broker:
        store = shell.client(broker.url, retry_first_connect=True, reconnect_delay=0.01, max_reconnect_delay=0.05)
        with pytest.raises(RequestTimeoutError, match="refused the subscription"):
            await store.open(timeout=0.3)
        away[0] = False
        await store.open(timeout=20)
        away[0] = True
        before = len(refused)
        broker.drop()
        await until(lambda: len(refused) >= before + 3)
        assert "refused the subscription" in store.trouble
        away[0] = False
        await until(lambda: store.state is ConnectionState.CONNECTED)
        await store.close()


async def test_a_broker_that_closes_after_suback(shell: Shell) -> None:
    """Back-off grows when a broker accepts each connection and closes it after SUBACK."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe):
            say(encode(Suback(packet.packet_id, (1,) * len(packet.subscriptions)), 5))
            say(encode(Disconnect(ReasonCode.SERVER_BUSY), 5))
        return isinstance(packet, Subscribe)

    async with EvilBroker(behave) as broker:
        store = shell.client(broker.url, retry_first_connect=True)
        deadline = time.monotonic() + 1.0
        with suppress(StateStoreError):
            await store.open(timeout=0.3)
        while time.monotonic() < deadline:
            with suppress(StateStoreError):
                await store.get("k", timeout=0.3)
        await store.close()
        assert 1 < broker.connections < 12
