"""No message costs its reader much: what strangers send is read, or refused, in a bounded time and memory for its size.

Messages are real ones that were spoiled: bits, lengths and counts are others, pieces are repeated thousands of times,
cut out, or put elsewhere. Repeating is what finds work that grows faster than what causes it.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from random import Random
from typing import Final

import msgpack
import pytest
from support.schedules import SEED, scaled

from raft_client._common.http_server import RequestReader
from raft_client.errors import RaftError
from raft_client.wire.configuration import decode_config
from raft_client.wire.frames import decode_json
from statestore_client.errors import StateStoreError
from statestore_client.mqtt.packets import Connect, Publish, PublishProperties, Subscribe, Subscription, Will, encode
from statestore_client.mqtt.packets.decoder import MessageDecoder, PacketDecoder
from statestore_client.server.runtime.transport.connection import _PIECE
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import StateStore
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.kvstore.codec import decode as decode_site_message
from statestore_client.wire.protocol import Dialect
from statestore_client.wire.replies import decode_notification, decode_reply

pytestmark = [pytest.mark.ci, pytest.mark.scaled]

#: Of each door.
_MESSAGES: Final = scaled(5_000, 250_000)
#: Bounds of one message: seconds of processor, and bytes for each of its own, above what anything costs.
_MOST_S: Final = 0.05
_MOST_BYTES: Final = 20
_ANY_BYTES: Final = 1024 * 1024
#: Looking at memory is slow, and repeating is what takes some.
_LOOK_AT_MEMORY: Final = 20
_LONGEST: Final = 1024 * 1024


def _requests(dialect: Dialect) -> Callable[[bytes], object]:
    store = StateStore(clock=HybridLogicalClock("S", guard=nullcontext()), dialect=dialect)
    service = StateStoreService(store, token_key=bytes(TOKEN_KEY_BYTES), dialect=dialect)
    properties = PublishProperties(response_topic="clients/c/answer", correlation_data=b"0123456789abcdef")
    topic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
    now = Instant(100.0, 1_700_000_000_000)

    def handle(payload: bytes) -> object:
        return service.handle("c", Publish(topic, payload, 1, packet_id=1, properties=properties), now)

    return handle


def _packets(data: bytes) -> object:
    """Of a stream the server decodes so much at a time, and then others have their turn."""
    return PacketDecoder(version=None, max_packet_size=_LONGEST, max_connect_size=_LONGEST).feed(data[:_PIECE])


def _messages(data: bytes) -> object:
    return MessageDecoder(version=5, max_packet_size=_LONGEST).feed(data[:_PIECE])


def _http(data: bytes) -> object:
    return RequestReader(("GET", "POST"), 8192).feed(data, "")


_SET: Final = b"*5\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n$2\r\nNX\r\n$2\r\nPX\r\n"
_SUBSCRIBE: Final = Subscribe(1, (Subscription("a/+/#", 1), Subscription("$share/g/b", 0)))
_PUBLISH: Final = Publish("a/b", b"x" * 40, 1, packet_id=7, properties=PublishProperties(user_properties=(("a", "b"),)))

#: What reads, and real messages.
DOORS: Final[dict[str, tuple[Callable[[bytes], object], list[bytes]]]] = {
    **{
        f"requests, {dialect.name.lower()} dialect": (
            _requests(dialect),
            [
                _SET,
                b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
                b"*3\r\n$4\r\nVDEL\r\n$3\r\nkey\r\n$1\r\nv\r\n",
                b"*2\r\n$9\r\nKEYNOTIFY\r\n$3\r\nkey\r\n",
                b"*2\r\n$4\r\nSCAN\r\n$8\r\n*a?[b-c]*\r\n",
            ],
        )
        for dialect in Dialect
    },
    "packets": (
        _packets,
        [encode(Connect("client", will=Will("w", b"gone"))), encode(_SUBSCRIBE), encode(_PUBLISH)],
    ),
    "messages for clients": (_messages, [encode(_PUBLISH)]),
    "answers for clients": (decode_reply, [b"+OK\r\n", b"$5\r\nvalue\r\n", b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", b":1\r\n"]),
    "notifications for clients": (
        decode_notification,
        [b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"],
    ),
    "messages between sites": (
        decode_site_message,
        [msgpack.packb([code, 1, "a", ["default"], {"k": [1, "a", b"v", 2, 3]}, [], False]) for code in range(30)],
    ),
    "members of a Raft cluster": (decode_config, [msgpack.packb([[["1", "tcp://127.0.0.1:1"]], None])]),
    "JSON of a Raft peer": (decode_json, [b'{"a": [1, 2.5, null, {"b": "c"}], "peers": [["1", "tcp://h:1"]]}']),
    "HTTP requests": (_http, [b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"]),
}


def spoiled(message: bytes, random: Random) -> bytes:
    """A few changes, of which one may make it a thousand times as long."""
    data = bytearray(message)
    for _ in range(random.randint(1, 3)):
        at, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
        kind = random.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] = random.randrange(256)
        elif kind == 1:
            data[at:end] = b""
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind == 3:
            data[at:end] = random.choice(
                [b"1048576", b"999999999", b"-1", b"\xff\xff\xff\x7f", b"\xdd\xff\xff\xff\xff"]
            )
        elif kind == 4:
            piece = bytes(data[at:end]) or b"*1\r\n"
            data[at:end] = piece * min(10 ** random.randint(1, 5), _LONGEST // len(piece))
        else:
            data[at:at] = random.choice([b"$0\r\n\r\n", b"*1\r\n", b"[", b"\x91", b"\x00", b"\r\n"]) * random.randint(
                1, 5000
            )
    return bytes(data[:_LONGEST])


def _seconds(read: Callable[[bytes], object], data: bytes) -> float:
    """Of the processor, for this thread."""
    began = time.thread_time()
    with suppress(StateStoreError, RaftError):
        read(data)
    return time.thread_time() - began


@pytest.mark.attack("every decoder", "messages that cost more processor or memory than they are worth")
@pytest.mark.parametrize("door", DOORS)
def test_no_message_costs_much(door: str) -> None:
    """At most 50 ms of processor and 20 times its size of memory, whatever it is."""
    read, messages = DOORS[door]
    random = Random(SEED)
    longest = 0.0
    for number in range(_MESSAGES):
        data = spoiled(random.choice(messages), random)
        taken = _seconds(read, data)
        if taken > _MOST_S:  # something else on the machine may have been in the way
            taken = min(_seconds(read, data) for _ in range(3))
        longest = max(longest, taken)
        assert taken <= _MOST_S, f"message {number} of seed {SEED}: {len(data)} bytes, {data[:100]!r}"
        if number % _LOOK_AT_MEMORY == 0:
            tracemalloc.start()
            try:
                _seconds(read, data)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            bound = _MOST_BYTES * len(data) + _ANY_BYTES
            assert peak <= bound, f"message {number} of seed {SEED}: {len(data)} bytes, {data[:100]!r}"
    assert longest > 0
