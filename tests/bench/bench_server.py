"""How many state store requests a second the whole server answers, and what the broker's part of one costs.

    python tests/bench/bench_server.py [--quick] [--rounds 3]

The load generator is a process of its own on raw sockets with pre-built packets, so that the server is the limit.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import statistics
import sys
import time

import stub
from measure import Options, Report

from statestore_client.cli.bench import served
from statestore_client.mqtt.packets import (
    Connect,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    Subscribe,
    Subscription,
    encode,
)
from statestore_client.server.broker import Broker, Route
from statestore_client.wire.commands import KeyNotify
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic

_MARK = b"\xaa" * 16
_ID = 0x7A7A
_TIME = b"000000000000000"


def _request(client_id: str, packet_id: int, correlation: bytes, payload: bytes, *, wall: bytes | None = None) -> bytes:
    wall = b"%015d" % (time.time_ns() // 1_000_000) if wall is None else wall
    timestamp = f"{wall.decode()}:00000:{client_id}"
    properties = PublishProperties(
        payload_format=0,
        message_expiry=10,
        content_type="application/octet-stream",
        response_topic=response_topic(client_id),
        correlation_data=correlation,
        user_properties=(
            ("__srcId", client_id),
            ("__ts", timestamp),
            ("__protVer", "1.0"),
            ("$partition", client_id),
            ("$high_priority", ""),
        ),
    )
    return encode(Publish(COMMAND_TOPIC, payload, 1, packet_id=packet_id, properties=properties))


def _hello(client_id: str) -> bytes:
    subscription = Subscription(response_topic(client_id), 1)
    return encode(Connect(client_id)) + encode(Subscribe(1, (subscription,)))


def _load(
    port: int, in_flight: int, seconds: float, results: multiprocessing.Queue[tuple[float, float]], delay_s: float = 0.0
) -> None:
    time.sleep(delay_s)
    client_id = f"bench-{os.getpid():06d}"
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(_hello(client_id))
    time.sleep(0.2)
    sock.recv(65536)
    payload = b"*3\r\n$3\r\nSET\r\n$8\r\nbench-01\r\n$16\r\n" + b"v" * 16 + b"\r\n"
    template = _request(client_id, _ID, _MARK, payload, wall=_TIME)
    head, rest = template.split(_ID.to_bytes(2, "big"), 1)
    middle, rest = rest.split(_MARK)
    before_time, tail = rest.split(_TIME)
    nonce = os.urandom(8)
    sent = done = 0

    def build(count: int) -> bytes:
        nonlocal sent
        parts: list[bytes] = []
        wall = b"%015d" % (time.time_ns() // 1_000_000)
        for _ in range(count):
            sent += 1
            parts += (head, (sent % 60_000 + 1).to_bytes(2, "big"), middle, nonce, sent.to_bytes(8, "big"))
            parts += (before_time, wall, tail)
        return b"".join(parts)

    sock.sendall(build(1))
    time.sleep(0.3)
    size = len(sock.recv(65536))  # PUBACK and reply: every pair has this size
    sock.sendall(encode(Puback(1)))
    done = 1
    started, cpu = time.perf_counter(), time.process_time()
    deadline = started + seconds
    sock.sendall(build(in_flight))
    received = 0
    while time.perf_counter() < deadline:
        received += len(sock.recv(262_144))
        complete, received = divmod(received, size)
        if complete:
            acks = b"".join([b"\x40\x02" + ((done + i) % 65_535 + 1).to_bytes(2, "big") for i in range(complete)])
            done += complete
            sock.sendall(acks + build(complete))
    elapsed = time.perf_counter() - started
    results.put((done / elapsed, (time.process_time() - cpu) / elapsed))
    sock.close()


def _loaded(port: int, seconds: float, in_flight: int) -> float:
    """SETs a second of the server on ``port``, under a load generator in a process of its own."""
    results: multiprocessing.Queue[tuple[float, float]] = multiprocessing.Queue()
    load = multiprocessing.Process(target=_load, args=(port, in_flight, seconds, results))
    load.start()
    rate, _ = results.get()
    load.join()
    return rate


def whole_server(report: Report, seconds: float, rounds: int, in_flight: int = 64) -> None:
    """``statestore serve`` beside the stubs that only echo, in turns; medians."""
    rates: dict[str, list[float]] = {"serve": [], "streams stub": [], "codec stub": []}
    for _ in range(rounds):
        with served() as url:
            rates["serve"].append(_loaded(int(url.rsplit(":", 1)[1]), seconds, in_flight))
        with stub.streams_server() as server:
            rates["streams stub"].append(_loaded(server.port, seconds, in_flight))
        with stub.codec_server() as server:
            rates["codec stub"].append(_loaded(server.port, seconds, in_flight))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"SET, {in_flight} in flight, {name}: {rate:,.0f}/s; serve is {medians['serve'] / rate:.2f} of it")
    report.bar(f"statestore serve, raw SET {in_flight}", medians["serve"], 20_000, unit="/s")
    for name in ("streams stub", "codec stub"):
        ratio = statistics.median(a / b for a, b in zip(rates["serve"], rates[name], strict=True))
        report.bar(f"statestore serve, raw SET {in_flight} / {name}", ratio, 0.5)


def _observe(port: int, load: multiprocessing.Process) -> int:
    """How many notifications of the key that the load generator writes reach one connection, all acknowledged."""
    client_id = f"watch-{os.getpid():06d}"
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(1.0)
        sock.sendall(_hello(client_id) + _request(client_id, 1, _MARK, KeyNotify(b"bench-01").encode()))
        time.sleep(0.3)
        sock.recv(65536)
        sock.sendall(encode(Puback(1)))  # the reply to KEYNOTIFY
        size = received = seen = 0
        while load.is_alive():
            try:
                data = sock.recv(262_144)
            except TimeoutError:
                continue
            size = size or data[1] + (data[2] - 1 << 7) + 3  # all have the size of the first: 128 bytes and more
            new, received = divmod(received + len(data), size)
            sock.sendall(b"".join([b"\x40\x02" + ((seen + i + 1) % 65_535 + 1).to_bytes(2, "big") for i in range(new)]))
            seen += new
    return seen


def notifications(report: Report, seconds: float, rounds: int, in_flight: int = 64) -> None:
    """One connection observes the key that another one writes: each event is a SET, its reply and a notification."""
    rates = []
    for _ in range(rounds):
        results: multiprocessing.Queue[tuple[float, float]] = multiprocessing.Queue()
        with served() as url:
            port = int(url.rsplit(":", 1)[1])
            load = multiprocessing.Process(target=_load, args=(port, in_flight, seconds, results, 0.5))
            load.start()
            seen = _observe(port, load)
            rate, _ = results.get()
            rates.append(min(seen / seconds, rate))
    report.bar("statestore serve, notifications to one connection", statistics.median(rates), 20_000, unit="/s")


class _Echo:
    """The cheapest possible application: the reply is the request's payload."""

    topics = (COMMAND_TOPIC,)
    prefixes = ()

    def handle(self, client_id: str, message: Publish, now: Instant) -> tuple[Route, ...]:
        properties = message.properties
        reply = PublishProperties(message_expiry=10, correlation_data=properties.correlation_data)
        return (Route(Publish(properties.response_topic or "", message.payload, 1, properties=reply)),)

    def client_disconnected(self, client_id: str, now: Instant) -> None: ...

    def tick(self, now: Instant) -> tuple[Route, ...]:
        return ()

    def next_deadline(self) -> float | None:
        return None


def broker_only(rounds: int = 50_000) -> None:
    """Decoded packets in, encoded bytes out, no socket; includes encoding and the application above."""
    now = Instant(1.0, 1)
    broker = Broker(random=random.Random(1), applications=(_Echo(),))
    connection = broker.connection_opened(now)
    broker.receive(connection, PacketDecoder(version=None, max_packet_size=9999).feed(_hello("bench")), now)
    decoder = PacketDecoder(version=5, max_packet_size=9999)
    requests = decoder.feed(b"".join(_request("bench", 1, _MARK, b"x" * 60) for _ in range(64)))
    started = time.perf_counter()
    for first in range(0, rounds, 64):
        broker.receive(connection, requests, now)
        broker.receive(connection, [Puback((first + i) % 65_535 + 1) for i in range(64)], now)
        broker.take_dirty()
        connection.take()
    print(f"broker only: {(time.perf_counter() - started) / rounds * 1e6:.2f} µs per request")


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    broker_only()
    whole_server(report, 0.5 if options.quick else 2.0, options.rounds)
    notifications(report, 0.5 if options.quick else 2.0, options.rounds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
