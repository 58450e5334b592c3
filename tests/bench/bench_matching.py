"""What finding costs in the broker: subscribers of a message, retained messages of a filter. No sockets.

    python tests/bench/bench_matching.py [--quick] [--rounds 3]

Both should grow with the depth of the topic, and not with how many subscriptions and retained messages there are.
Half of the subscriptions have wildcards; one of them matches.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

from measure import Options, Report

from statestore_client.mqtt.packets import (
    Connect,
    ConnectProperties,
    Packet,
    Publish,
    Subscribe,
    Subscription,
)
from statestore_client.server.broker import Broker, BrokerLimits, Connection
from statestore_client.wire.instant import Instant

_COUNTS: Final = (10, 1_000, 100_000)
_DEPTHS: Final = (2, 8, 32)
_NOW: Final = Instant(1.0, 1)

#: Filters of one SUBSCRIBE, and subscriptions of one session.
_AT_ONCE: Final = 1_000

#: Messages between two looks at the outbox, which takes 64 KiB.
_BATCH: Final = 50

_LIMITS: Final = BrokerLimits(
    held_bytes=1 << 40, retained_messages=1_000_000, retained_bytes=1 << 40, subscription_bytes=1 << 40
)


class _Broker:
    """A broker with one watching client."""

    def __init__(self) -> None:
        self._broker = Broker(random=random.Random(1), limits=_LIMITS)
        self.watcher = self.connect("watcher")

    def connect(self, client_id: str) -> Connection:
        connection = self._broker.connection_opened(_NOW)
        self.send(connection, Connect(client_id, properties=ConnectProperties(session_expiry=100)))
        return connection

    def send(self, connection: Connection, *packets: Packet) -> None:
        self._broker.receive(connection, packets, _NOW)
        while self._broker.has_work:
            self._broker.work(_NOW)

    def subscribe(self, filters: list[str]) -> None:
        """Many filters, of clients that have nothing else to do."""
        for first in range(0, len(filters), _AT_ONCE):
            some = tuple(Subscription(name, 0) for name in filters[first : first + _AT_ONCE])
            self.send(self.connect(f"crowd-{first}"), Subscribe(1, some))

    def retain(self, topics: list[str]) -> None:
        self.send(self.connect("retaining"), *[Publish(topic, b"x", retain=True) for topic in topics])

    def deliver_us(self, topic: str, messages: int) -> float:
        """Microseconds from a decoded PUBLISH to the bytes for the watcher."""
        publisher = self.connect("publisher")
        packets = [Publish(topic, b"x")] * _BATCH
        self.watcher.take()
        size = 0
        started = time.perf_counter()
        for _ in range(messages // _BATCH):
            self.send(publisher, *packets)
            size += len(self.watcher.take())
        seconds = time.perf_counter() - started
        assert size >= messages // _BATCH * _BATCH * (len(topic) + 5)
        return seconds / messages * 1e6

    def look_up_us(self, topic_filter: str, times: int) -> float:
        """Microseconds from a decoded SUBSCRIBE to the bytes of SUBACK and the retained message."""
        packet = Subscribe(1, (Subscription(topic_filter, 0),))
        started = time.perf_counter()
        for _ in range(times):
            self.send(self.watcher, packet)
            assert len(self.watcher.take()) > 12
        return (time.perf_counter() - started) / times * 1e6


def _others(count: int, depth: int) -> list[str]:
    """Filters below the same first levels as the topic that is looked for; every other one has a wildcard."""
    stem = "/".join(["site"] * (depth - 1))
    return [f"{stem}/{number}" if number % 2 else f"{stem}/{number}/+" for number in range(count)]


def subscriptions(count: int, depth: int, messages: int) -> float:
    """A message that one of many subscriptions matches."""
    broker = _Broker()
    broker.subscribe(_others(count, depth))
    topic = "/".join(["site"] * (depth - 1) + ["here"])
    broker.send(broker.watcher, Subscribe(1, (Subscription(topic.replace("here", "+"), 0),)))
    return broker.deliver_us(topic, messages)


def retained(count: int, depth: int, topic_filter: str, times: int) -> float:
    """One of so many retained messages."""
    broker = _Broker()
    stem = "/".join(["site"] * (depth - 2))
    broker.retain([f"{stem}/{number}/here" for number in range(count)])
    return broker.look_up_us(topic_filter.format(stem=stem, number=count // 2), times)


def measured(work: Callable[[int], float], sizes: tuple[int, ...], rounds: int) -> dict[int, list[float]]:
    """Microseconds by size, one per round."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            times[size].append(work(size))
    return times


def _told(times: dict[int, list[float]]) -> str:
    return ", ".join(f"{size:,}: {statistics.median(own):.1f} µs" for size, own in times.items())


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    messages, times = options.scaled(5_000), options.scaled(2_000)
    counts = tuple(options.scaled(count) if count > _AT_ONCE else count for count in _COUNTS)
    works: dict[str, Callable[[int], float]] = {
        "message to one of n subscriptions": lambda count: subscriptions(count, 8, messages),
        "retained message, exact filter, of n": lambda count: retained(count, 8, "{stem}/{number}/here", times),
        "retained message, filter with +, of n": lambda count: retained(count, 8, "{stem}/{number}/+", times),
    }
    for name, work in works.items():
        found = measured(work, counts, options.rounds)
        print(f"{name}: {_told(found)}", flush=True)
        ratio = statistics.median(most / few for few, most in zip(found[counts[0]], found[counts[-1]], strict=True))
        report.bar(f"{name}: most / fewest", ratio, 2.0, at_most=True)
    by_depth = measured(lambda depth: subscriptions(counts[1], depth, messages), _DEPTHS, options.rounds)
    print(f"message by topic depth: {_told(by_depth)}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
