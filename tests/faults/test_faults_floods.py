"""A broker that sends more than it may, or reads nothing: what it can make a client keep has a bound, and a way out."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from evil_broker import EvilBroker, Say
from support.shells import SHELLS, Shell
from support.waiting import until

from statestore_client import ConnectionLostError, ConnectionState, StateStoreError
from statestore_client.mqtt import client_connection
from statestore_client.mqtt.packets import (
    ConnackProperties,
    Packet,
    Pingreq,
    Publish,
    PublishProperties,
    Pubrel,
    Suback,
    Subscribe,
    encode,
)

TIMEOUT_S = 20.0
#: PUBLISH with QoS 1 to "a": remaining length and property length as large as can be (MQTT 5.0, 1.5.5), then a few of
#: the promised pairs (a, b).
ENDLESS = bytes.fromhex("32 ffffff7f 0001 61 000a f0ffff7f") + bytes.fromhex("26 0001 61 0001 62") * 1000
#: The same in packets that have no payload: SUBACK, and DISCONNECT.
ENDLESS_SUBACK = bytes.fromhex("90 ffffff7f 0001 f7ffff7f") + bytes.fromhex("26 0001 61 0001 62") * 1000
ENDLESS_DISCONNECT = bytes.fromhex("e0 ffffff7f 00 f8ffff7f") + bytes.fromhex("26 0001 61 0001 62") * 1000


def _too_many(_packet: Publish) -> bytes:
    """1,100 messages with QoS 2; the client allows 1024."""
    return b"".join(encode(Publish("a", b"", 2, packet_id=i), 5) for i in range(1, 1101))


@pytest.mark.parametrize(
    "breach", [lambda _: ENDLESS, lambda _: ENDLESS_SUBACK, lambda _: ENDLESS_DISCONNECT, _too_many],
    ids=["message", "suback", "disconnect", "too many"],
)  # fmt: skip
@pytest.mark.attack("clients", "a broker that fills memory")
async def test_the_connection_is_left_and_not_its_memory_filled(
    shell: Shell, breach: Callable[[Publish], bytes]
) -> None:
    """The connection is left at the first word of an oversized packet, without waiting for it, and the next one
    answers."""
    told: list[StateStoreError] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and broker.connections == 1:
            say(breach(packet))
            return True
        return False

    async with (
        EvilBroker(behave) as broker,
        shell.client(broker.url, on_state=lambda _, error: error and told.append(error)) as store,
    ):
        began = time.monotonic()
        with pytest.raises(ConnectionLostError):
            await store.set("k", b"1", timeout=TIMEOUT_S)  # the session is lost, and the outcome unknown
        assert (await store.set("k", b"2", timeout=TIMEOUT_S)).applied
        assert time.monotonic() - began < TIMEOUT_S / 2
        assert broker.connections == 2
        assert "sent a packet that MQTT does not allow" in str(told[0])


def _notification(number: int, topic: str, qos: int) -> bytes:
    version = PublishProperties(user_properties=(("__ts", f"{number}:0:store"),))
    payload = b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nv\r\n"
    return encode(Publish(topic, payload, qos, packet_id=number if qos else 0, properties=version), 5)


async def test_a_broker_that_does_not_wait_for_acknowledgements(shell: Shell) -> None:
    """A full watch holds acknowledgements back, and a message beyond the receive maximum ends the connection, not the
    watch."""
    topic = f"clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/{b'flooded'.hex().upper()}/command/notify/6B"

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and b"SET" in packet.payload and broker.connections == 1:
            for number in range(1, 1030):
                say(_notification(number, topic, 1))
        return False

    async with (
        EvilBroker(behave) as broker,
        shell.client(broker.url, client_id="flooded") as store,
        store.watch("k", max_queued=1, overflow="block") as events,
    ):
        await asyncio.wait([asyncio.ensure_future(store.set("k", b"1", timeout=TIMEOUT_S))])
        await until(lambda: broker.connections >= 2 and store.state is ConnectionState.CONNECTED)
        assert (await events.get(timeout=TIMEOUT_S)).value == b"v"
        assert (await store.set("k2", b"", timeout=TIMEOUT_S)).applied


async def test_a_suback_for_other_filters(shell: Shell) -> None:
    """A SUBACK with three codes for one or two filters is not believed, and the broker is asked again
    (MQTT-3.8.4-6)."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Subscribe) and broker.connections == 1:
            say(encode(Suback(packet.packet_id, (1, 1, 1)), 5))
            return True
        return False

    async with EvilBroker(behave) as broker, shell.client(broker.url, retry_first_connect=True) as store:
        assert (await store.set("k", b"1", timeout=TIMEOUT_S)).applied
        assert broker.connections == 2


# -- a broker that does not read ---------------------------------------------------------------------------------------


@pytest.fixture
def narrow() -> Iterator[Callable[[str, int, float], socket.socket]]:
    """Opens sockets into which little fits."""

    def open_socket(host: str, port: int, timeout: float) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.settimeout(timeout)
        sock.connect((host, port))
        return sock

    return open_socket


@pytest.mark.parametrize("name", ["sync", "aio"])
async def test_answers_that_nobody_reads_end_the_connection(
    name: str,
    executor: ThreadPoolExecutor,
    narrow: Callable[[str, int, float], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """100,000 PUBRELs for nothing (each needs an answer: MQTT 5.0, 4.3.3) end the connection when nobody reads the
    answers."""
    # Of 200,000, for a test that is short. Up to so many are on their way to the socket when the others begin to wait.
    monkeypatch.setattr(client_connection, "MOST_WAITING", 40_000)
    flood = b"".join(encode(Pubrel(number), 5) for number in range(1, 20_001))
    stopped = asyncio.Event()

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and broker.connections == 1:
            broker.stop_reading()
            for _ in range(5):
                say(flood)
            stopped.set()
            return True
        return False

    shell = Shell(name, "native", executor)
    async with (
        EvilBroker(behave, receive_buffer=4096) as broker,
        shell.client(broker.url, open_socket=narrow) as store,
    ):
        with pytest.raises(ConnectionLostError):
            await store.set("k", b"1", timeout=TIMEOUT_S)
        assert stopped.is_set()
        assert (await store.set("k", b"2", timeout=TIMEOUT_S)).applied
        assert broker.connections == 2


# -- the keep-alive that a broker names --------------------------------------------------------------------------------


async def test_a_short_keep_alive_of_the_broker_is_kept(executor: ThreadPoolExecutor) -> None:
    """With a keep-alive of one second an idle client sends PINGREQ soon after it, and not at its next look at the
    clock. A broker waits for one and a half (MQTT 5.0, 3.1.2.10); a quarter of a second more is the test machine's."""

    async def one(shell: Shell) -> None:
        heard: list[float] = []

        def behave(packet: Packet, _say: Say) -> bool:
            heard.append(time.monotonic())
            if isinstance(packet, Pingreq):
                pinged.set()
            return False

        pinged = asyncio.Event()
        short = ConnackProperties(server_keep_alive=1)
        async with EvilBroker(behave, connack=short) as broker, shell.client(broker.url) as store:
            await asyncio.sleep(0.1)  # off the beat in which a driver might look at the clock
            await store.set("k", b"", timeout=TIMEOUT_S)
            await asyncio.wait_for(pinged.wait(), TIMEOUT_S)
            assert max(b - a for a, b in pairwise(heard)) < 1.75
            assert broker.connections == 1

    await asyncio.gather(*(one(Shell(*names, executor)) for names in SHELLS))
