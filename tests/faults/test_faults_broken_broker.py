"""A broker that breaks the protocol in the middle of a session: typed errors or a clean reconnect, and no hanging."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from evil_broker import EvilBroker, Say, reply
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import ConnectionLostError, RequestTimeoutError
from statestore_client.mqtt.packets import Connack, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel, encode
from statestore_client.server import EmbeddedServer

TIMEOUT_S = 20.0
#: On a busy machine, a deadline is noticed so much later at most.
SLACK_S = 5.0


@pytest.fixture(params=["sync", "aio"])
def native(request: pytest.FixtureRequest, executor: ThreadPoolExecutor) -> Shell:
    """The shells on our own driver."""
    return Shell(request.param, "native", executor)


def _garbage(_packet: Publish) -> bytes:
    return b"\xff" * 100


def _reserved_flags(packet: Publish) -> bytes:
    return b"\x41\x02" + packet.packet_id.to_bytes(2, "big")  # PUBACK with a flag (MQTT 5.0, 2.1.3)


def _second_connack(_packet: Publish) -> bytes:
    return encode(Connack(), 5)


def _not_for_clients(_packet: Publish) -> bytes:
    return b"\xc0\x00"  # PINGREQ


def _answer_of_another_exchange(packet: Publish) -> bytes:
    return encode(Pubrec(packet.packet_id), 5)  # to a PUBLISH of QoS 1


def _five_thousand_properties(packet: Publish) -> bytes:
    return reply(packet, more=(("a", "b"),) * 5000)


def _properties_longer_than_the_packet(_packet: Publish) -> bytes:
    return b"\x30\x06\x00\x01a\xff\xff\x7f" + b"\x26\x00\x01a\x00\x01b" * 10_000


@pytest.mark.parametrize(
    "breach",
    [
        _garbage,
        _reserved_flags,
        _second_connack,
        _not_for_clients,
        _answer_of_another_exchange,
        _five_thousand_properties,
        _properties_longer_than_the_packet,
    ],
)
async def test_a_breach_costs_the_connection(native: Shell, breach: Callable[[Publish], bytes]) -> None:
    """After a breach of the protocol the client reconnects; reads are repeated, and a write may have been applied,
    since this broker knows no session. Breaches that paho accepts are excepted."""
    first: list[Publish] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and broker.connections == 1:
            first.append(packet)
            if len(first) == 2:
                say(breach(packet))
        elif isinstance(packet, Publish):
            say(encode(Puback(packet.packet_id), 5) + reply(packet, b"$1\r\nv\r\n"))
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, native.client(broker.url) as store:
        calls = (store.get("k", timeout=TIMEOUT_S), store.set("k", b"w", timeout=TIMEOUT_S))
        found, refused = await asyncio.gather(*calls, return_exceptions=True)
        assert found.value == b"v"
        assert isinstance(refused, ConnectionLostError)
        assert refused.may_have_been_applied
        assert broker.connections == 2


@pytest.mark.parametrize("code", [0x01, 0x02, 0x18])
async def test_a_success_that_mqtt_does_not_know_is_a_success(
    native: Shell, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Any PUBACK below 0x80 is one, as mochi-mqtt 2.7.9 sends it; the log says so once for each connection. paho 2.2
    ends the connection."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            say(b"\x40\x03" + packet.packet_id.to_bytes(2, "big") + bytes((code,)) + reply(packet))
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, native.client(broker.url) as store:
        for _ in range(3):
            assert (await store.set("k", b"v", timeout=TIMEOUT_S)).applied
        assert broker.connections == 1
        await until(lambda: store.stats.broker_mistakes == 3)
    remarks = [r.getMessage() for r in caplog.records if "does not keep to MQTT 5" in r.getMessage()]
    (remark,) = remarks
    assert f"reason code {code:#04x} in PUBACK" in remark


async def test_half_a_packet_and_then_silence(shell: Shell) -> None:
    """A request ends at its deadline after half a packet, and the late rest of the packet does no harm."""
    halves: list[bytes] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            if halves:
                say(halves.pop())
                return False
            answer = encode(Puback(packet.packet_id), 5) + reply(packet)
            say(answer[:-3])
            halves.append(answer[-3:])
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            await store.set("k", b"1", timeout=0.2)
        assert time.monotonic() - began < SLACK_S
        assert (await store.set("k", b"2", timeout=TIMEOUT_S)).applied
        assert store.stats.late_or_unknown_replies == 1
        assert broker.connections == 1


async def test_unknown_packet_identifiers(shell: Shell) -> None:
    """Acknowledgements of every kind for unknown packets are harmless (MQTT 5.0, 4.3.3, 4.4)."""

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            for number in (60_000, 60_001):
                say(encode(Puback(number), 5) + encode(Pubcomp(number), 5))
                say(encode(Pubrec(number), 5) + encode(Pubrel(number), 5))
        return False

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        for _ in range(3):
            assert (await store.set("k", b"v", timeout=TIMEOUT_S)).applied
        assert broker.connections == 1


async def test_answers_in_any_order_reach_their_own_requests(shell: Shell) -> None:
    """Thirty answers, last first, each twice, with late PUBACKs and foreign answers between them, reach their own
    requests."""
    waiting: list[Publish] = []
    first: list[Publish] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish) and not first:
            first.append(packet)
            say(encode(Puback(packet.packet_id), 5) + reply(packet, _own_key(packet)))
        elif isinstance(packet, Publish):
            waiting.append(packet)
            if len(waiting) == 30:
                for publish in reversed(waiting):
                    say(reply(publish, b"$7\r\nforeign\r\n", correlation=bytes(16), packet_id=2))
                    say(reply(publish, _own_key(publish)) + reply(publish, b"$5\r\nother\r\n", packet_id=3))
                for publish in reversed(waiting):
                    say(encode(Puback(publish.packet_id), 5))
                waiting.clear()
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        await store.get("key 00")  # how large an answer is: with larger ones, fewer requests are under way
        for _ in range(2):
            items = await asyncio.gather(*(store.get(f"key {i:02}", timeout=TIMEOUT_S) for i in range(30)))
            assert [item.value for item in items] == [b"key %02d" % i for i in range(30)]
        assert store.stats.late_or_unknown_replies == 2 * 2 * 30
        assert broker.connections == 1


async def test_an_answer_to_a_request_that_was_given_up_is_nobodys(shell: Shell) -> None:
    """A late answer to a request that timed out or was cancelled does not become the answer to the next one for the
    key."""
    held: list[Publish] = []

    def behave(packet: Packet, say: Say) -> bool:
        if isinstance(packet, Publish):
            held.append(packet)
            say(encode(Puback(packet.packet_id), 5))
            if len(held) == 3:
                say(b"".join(reply(p, b"$1\r\n%d\r\n" % n, packet_id=n + 1) for n, p in enumerate(held)))
        return isinstance(packet, Publish)

    async with EvilBroker(behave) as broker, shell.client(broker.url) as store:
        with pytest.raises(RequestTimeoutError):
            await store.get("k", timeout=0.1)
        if shell.is_aio:
            cancelled = asyncio.ensure_future(store.get("k", timeout=TIMEOUT_S))
            await until(lambda: len(held) == 2)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        else:
            with pytest.raises(RequestTimeoutError):
                await store.get("k", timeout=0.1)
        assert (await store.get("k", timeout=TIMEOUT_S)).value == b"2"
        assert store.stats.late_or_unknown_replies == 2
        assert broker.connections == 1


def _own_key(publish: Publish) -> bytes:
    """The key of a GET as a value: ``*2 $3 GET $6 key 01`` becomes ``$6 key 01`` (state store protocol, RESP3)."""
    return b"$" + bytes(publish.payload).split(b"$")[-1]


async def test_a_peer_that_stops_reading_delays_nobody_beyond_the_deadline(
    shell: Shell, server: EmbeddedServer
) -> None:
    """Requests that cannot be written end in time, and when the peer reads again, the next one is answered."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, max_in_flight=8) as store:
        await store.set("k", b"0", timeout=TIMEOUT_S)
        proxy.hold("up")
        began = time.monotonic()
        calls = (store.set(f"k{i}", bytes(1_000_000), timeout=0.3) for i in range(12))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, RequestTimeoutError) for outcome in outcomes)
        assert time.monotonic() - began < SLACK_S
        proxy.flow("up")
        assert (await store.set("k", b"1", timeout=TIMEOUT_S)).applied
        assert (await store.get("k", timeout=TIMEOUT_S)).value == b"1"
