"""Packets with bytes changed, cut, repeated and inserted: the decoder and the broker never raise, hang or grow.

``tests/support/schedules.py`` says how many inputs there are. The broker, which does ten times as much for each, gets a
tenth of them. A failure names the seed from which to begin again. The inputs are made from
packets that were put together by hand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from handmade import (
    Will,
    ack,
    auth,
    connect,
    disconnect,
    number,
    properties,
    publish,
    split,
    subscribe,
    text,
    unsubscribe,
)
from handmade_peer import Peer
from support.broker_driver import World
from support.broker_invariants import audit
from support.schedules import SEED, scaled

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import PacketDecoder

pytestmark = pytest.mark.scaled

INPUTS = scaled(200_000, 10_000_000)

#: Seconds for one input of less than 64 KiB, on a busy machine: anything quadratic takes longer.
PATIENCE_S = 2.0

#: All properties that clients may send somewhere, with their numbers from MQTT 5.0, 2.2.2.2.
_PUBLISH_PROPS = [
    (0x01, 1),
    (0x02, 60),
    (0x03, "text/plain"),
    (0x08, "answers"),
    (0x09, b"\x00\x01"),
    (0x26, ("a", "b")),
]
_CONNECT_PROPS = [(0x11, 60), (0x21, 10), (0x27, 1000), (0x22, 5), (0x19, 1), (0x17, 1), (0x26, ("a", "b"))]

SAMPLES: dict[int, list[bytes]] = {
    version: [
        connect(version=version, username="u", password=b"p", will=Will(qos=1, retain=True)),
        connect("", version, keep_alive=10, props=_CONNECT_PROPS if version == 5 else ()),
        publish("a/b", b"payload", 1, 1, version, props=_PUBLISH_PROPS if version == 5 else ()),
        publish("a/b", b"x" * 200, 2, 2, version, retain=True),
        publish("a", b"", 0, 0, version, props=[(0x23, 1)] if version == 5 else ()),
        publish("", b"y", 0, 0, version, props=[(0x23, 1)] if version == 5 else ()),
        subscribe(3, ("a/#", 2), ("+/b", 1), ("$share/g/a", 0), version=version),
        subscribe(4, ("$SYS/#", 0), version=version, props=[(0x0B, 300)] if version == 5 else ()),
        unsubscribe(5, "a/#", "+/b", version=version),
        *(ack(first, 1) for first in (0x40, 0x50, 0x62, 0x70)),
        *((ack(0x40, 2, 0x10), ack(0x50, 2, 0x97), ack(0x62, 2, 0x92)) if version == 5 else ()),
        bytes.fromhex("c000"),
        disconnect(),
        *((disconnect(4, (0x11, 5), (0x1F, "bye")), auth(0x18, (0x15, "X"), (0x16, b"data"))) if version == 5 else ()),
        # what only servers send: CONNACK, SUBACK, UNSUBACK, PINGRESP
        *map(bytes.fromhex, ("20020000", "9003000100", "b0020001", "d000")),
    ]
    for version in (4, 5)
}
#: What is put in: values at the edges of lengths, property identifiers and UTF-8.
SPICE = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff", b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80", "\ud7ff".encode()]
SPICE += [
    b"\xed\xa0\x80",
    b"\xc0\x80",
    text("#"),
    text("a/+"),
    text(b"\xff"),
    number(128),
    properties((0x26, ("k", "v"))),
]


def spoiled(chance: random.Random, samples: list[bytes]) -> bytes:
    """One to three packets, with up to four things done to them."""
    data = bytearray(b"".join(chance.choices(samples, k=chance.randint(1, 3))))
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(data) + 1)
        deed = chance.randrange(6)
        if deed == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif deed == 1 and at < len(data):
            data[at] = chance.randrange(256)
        elif deed == 2:
            data[at:at] = chance.choice(SPICE)
        elif deed == 3:
            del data[at : at + chance.randint(1, 8)]
        elif deed == 4:
            data[at:at] = data[at : at + chance.randint(1, 40)] * chance.choice((1, 2, 50))
        elif len(data) > 2:
            data[1] = chance.randrange(128)
    return bytes(data)


def pieces(chance: random.Random, data: bytes) -> Iterator[bytes]:
    """As a network would cut it."""
    begin = 0
    while begin < len(data):
        end = begin + chance.choice((1, 3, 50, 10_000))
        yield data[begin:end]
        begin = end


@pytest.mark.timeout(3600)
def test_the_decoder() -> None:
    """The decoder gives packets or a PacketError, quickly, and keeps no more than what came in."""
    for seed in range(SEED, SEED + INPUTS):
        chance = random.Random(seed)
        version = chance.choice((4, 5))
        data = spoiled(chance, SAMPLES[version])
        decoder = PacketDecoder(version=chance.choice((None, version)), max_packet_size=chance.choice((100, 1 << 20)))
        began, code = time.perf_counter(), 0x80
        try:
            for piece in pieces(chance, data):
                decoder.feed(piece)
                assert decoder.buffered <= len(data)
        except PacketError as error:
            code = error.reason_code
            decoder.take()
        except Exception as error:
            raise AssertionError(f"STATESTORE_TEST_SEED={seed}, input {data.hex()}") from error
        assert 0x80 <= code <= 0xFF, f"STATESTORE_TEST_SEED={seed}, input {data.hex()}"
        assert time.perf_counter() - began < PATIENCE_S, f"STATESTORE_TEST_SEED={seed}, input {data.hex()}"


@pytest.mark.timeout(3600)
def test_the_broker() -> None:
    """A broker with a few clients raises nothing, answers in whole packets, has no fault, and keeps its limits."""
    world = World(
        sessions=50, retained_messages=50, subscriptions_per_session=20, queued_messages=20, packet_bytes=10_000
    )
    peers: dict[int, Peer] = {}
    for seed in range(SEED, SEED + INPUTS // 10):
        chance = random.Random(seed)
        slot, version = chance.randrange(4), chance.choice((4, 5))
        samples = SAMPLES[version]
        peer = peers.get(slot)
        data = spoiled(chance, samples)
        try:
            if peer is None or peer.is_closed:
                if peer is not None:
                    peer.lose()
                peers[slot] = peer = Peer(world, version)
                data = connect(chance.choice(("", "a", "b")), version) + data
            for piece in pieces(chance, data):
                peer.send(piece)
            for other in peers.values():
                split(other.raw())
            if seed % 50 == 0:
                world.sleep(chance.choice((0.1, 20)))
            assert not world.broker.reports.take_faults()
        except Exception as error:
            at = f"STATESTORE_TEST_SEED={SEED}, {seed - SEED} later"
            raise AssertionError(f"{at}: {data.hex()}") from error
    assert world.broker.usage.sessions <= 50
    assert world.broker.usage.retained_messages <= 50 + 20
    for peer in peers.values():
        peer.lose()
    world.sleep(100_000)
    assert world.broker.usage.held_bytes == 0
    assert audit(world.broker) == ()
