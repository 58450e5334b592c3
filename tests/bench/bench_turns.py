"""How long the longest turn of the broker is when ten thousand subscribers are concerned. No sockets, no disk.

    python tests/bench/bench_turns.py [--quick] [--rounds 3]

A turn is what nobody else is served in: taking a packet, a slice of work, a cut of the journal. The median of the
longest turns of the rounds counts, in processor time. Python's garbage collector is off meanwhile: `statestore serve`
lets it run at set times.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

from measure import Options, Report

from statestore_client.mqtt.packets import Connect, ConnectProperties, Packet, Publish, Subscribe, Subscription
from statestore_client.server.broker import Broker, BrokerLimits, Connection
from statestore_client.server.journal import Journal
from statestore_client.wire.instant import Instant

_NOW: Final = Instant(1.0, 1)
_SUBSCRIBERS: Final = 10_000
_MOST_MS: Final = 2.0
_LIMITS: Final = BrokerLimits(connections=_SUBSCRIBERS + 10, sessions=_SUBSCRIBERS + 10)


class _World:
    """A broker whose clients are there and read all that comes."""

    def __init__(self, *, is_durable: bool) -> None:
        self._journal = Journal() if is_durable else None
        self._broker = Broker(random=random.Random(1), limits=_LIMITS, journal=self._journal)
        self.longest_s = 0.0
        self._connections: list[Connection] = []

    def connect(self, client_id: str) -> Connection:
        connection = self._broker.connection_opened(_NOW)
        self._connections.append(connection)
        self.send(connection, Connect(client_id, properties=ConnectProperties(session_expiry=100)))
        return connection

    def send(self, connection: Connection, *packets: Packet) -> None:
        """Let it be done, and all that follows from it; each step is a turn."""
        self._turn(lambda: self._broker.receive(connection, packets, _NOW))
        self._commit()
        while self._broker.has_work:
            self._turn(lambda: self._broker.work(_NOW))
            self._commit()

    def _turn(self, work: Callable[[], object]) -> None:
        started = time.thread_time()  # on a shared machine, others would be in it
        work()
        self.longest_s = max(self.longest_s, time.thread_time() - started)

    def _commit(self) -> None:
        if self._journal is not None:
            journal = self._journal
            self._turn(lambda: journal.cut(_NOW))
        for connection in self._broker.take_dirty():
            if isinstance(connection, Connection):
                connection.seal()
                connection.release()
            connection.take()

    def leave(self) -> None:
        """All of them, at once."""
        for connection in self._connections:
            self._turn(lambda connection=connection: self._broker.connection_lost(connection, _NOW))  # type: ignore[misc]
            self._commit()


def _crowd(count: int, *filters: str, is_durable: bool) -> _World:
    world = _World(is_durable=is_durable)
    subscriptions = tuple(Subscription(name, 1) for name in filters)
    for number in range(count):
        world.send(world.connect(f"c{number}"), Subscribe(1, subscriptions))
    return world


def longest_ms(count: int, *filters: str, is_durable: bool, is_away: bool = False) -> float:
    """Of three messages to so many subscribers."""
    world = _crowd(count, *filters, is_durable=is_durable)
    if is_away:
        world.leave()
    publisher = world.connect("publisher")
    gc.collect()
    gc.disable()
    try:
        world.longest_s = 0.0
        for number in (1, 2, 3):
            world.send(publisher, Publish("t", b"x" * 100, 1, packet_id=number))
        return world.longest_s * 1000
    finally:
        gc.enable()


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    count = options.scaled(_SUBSCRIBERS)
    works: dict[str, Callable[[], float]] = {
        "in memory": lambda: longest_ms(count, "t", is_durable=False),
        "durable": lambda: longest_ms(count, "t", is_durable=True),
        "durable, absent": lambda: longest_ms(count, "t", is_durable=True, is_away=True),
        "durable, overlapping": lambda: longest_ms(count, "t", "#", is_durable=True),
        "a share": lambda: longest_ms(count, "$share/g/t", is_durable=True),
        "a share, absent": lambda: longest_ms(count, "$share/g/t", is_durable=True, is_away=True),
    }
    for name, work in works.items():
        found = [work() for _ in range(options.rounds)]
        report.bar(f"{count:,} subscribers, {name}: longest turn, ms", statistics.median(found), _MOST_MS, at_most=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
