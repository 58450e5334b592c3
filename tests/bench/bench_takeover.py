"""How long a standby needs until it answers, when the other server is gone, and until all clients are back.

    python tests/bench/bench_takeover.py [--quick] [--rounds 3]

No sockets, no log: the machines only. The standby has followed a server with a million keys and ten thousand clients,
each with a lasting session, two subscriptions and a will; it takes over, and the first of them comes back and sets a
key. Then the others come back, or nobody does and their wills go out. In processor time, medians of the rounds; a turn
is what nobody else is served in. Python's garbage collector is off meanwhile: `statestore serve` lets it run at set
times.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from measure import Options, Report

from statestore_client.mqtt.packets import (
    Connect,
    ConnectProperties,
    Packet,
    Publish,
    PublishProperties,
    Subscribe,
    Subscription,
    Will,
)
from statestore_client.server.broker import Broker, BrokerLimits, Connection
from statestore_client.server.broker.records import GrantRecord, SessionRecord
from statestore_client.server.broker.subscriptions import GrantedSubscription
from statestore_client.server.journal import Changes, Journal, Record, Stream, Subject, WriteBatch, seal
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import KEEP_ALL, StateStore
from statestore_client.server.store.durability import KeyRecord
from statestore_client.wire.commands import Set
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC

_BEGIN: Final = Instant(1_000.0, 1_000_000)
_KEYS: Final = 1_000_000  # as many as there may be
_CLIENTS: Final = 10_000
_BATCH: Final = 10_000
_MOST_MS: Final = 100.0
_MOST_TURN_MS: Final = 10.0
_STORM_S: Final = 5.0
_DAY: Final = 86_400


class _World:
    """A standby that has followed."""

    def __init__(self, keys: int, clients: int) -> None:
        self._journal = Journal(1)
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        store = StateStore(clock=clock, journal=self._journal, persistence=KEEP_ALL)
        service = StateStoreService(store, token_key=bytes(TOKEN_KEY_BYTES), journal=self._journal, keeps_all=True)
        limits = BrokerLimits(connections=clients + 10, sessions=clients + 10)
        self._broker = Broker(random=random.Random(1), applications=(service,), limits=limits, journal=self._journal)
        self._standby = Standby(self._journal, service, self._broker, _BEGIN)
        self._clients = clients
        self.now = _BEGIN
        self.turns_s: list[float] = []
        for first in range(0, keys, _BATCH):
            self._absorb(Stream.KEYS, ((_key(n), _value(n)) for n in range(first, min(first + _BATCH, keys))))
        self._absorb(Stream.SESSIONS, ((_name(n), _session(n)) for n in range(clients)))
        grant = GrantRecord(GrantedSubscription(1, False, False, ()))
        filters = ((n, name) for n in range(clients) for name in (_answers(n), f"plant/{n}/#"))
        self._absorb(Stream.SUBSCRIPTIONS, ((f"{n + 1} {name}", grant) for n, name in filters))

    def _absorb(self, stream: Stream, rows: Iterable[tuple[Subject, Record]]) -> None:
        timeline = self._journal.timeline
        puts = tuple((subject, seal(stream, subject, record.fields(timeline))) for subject, record in rows)
        self._standby.absorb(WriteBatch((Changes(stream, puts, ()),)))

    def turn(self, work: Callable[[], object]) -> None:
        """Nobody else is served meanwhile."""
        started = time.thread_time()  # on a shared machine, others would be in it
        work()
        self.turns_s.append(time.thread_time() - started)

    def take_over(self) -> None:
        self.turn(lambda: self._standby.take_over(self._journal.timeline, self.now))
        self._commit()

    def set_first(self) -> None:
        """Of the first client that is back."""
        properties = PublishProperties(
            response_topic=_answers(0),
            correlation_data=b"1" * 16,
            user_properties=(("__ts", str(HlcTimestamp(self.now.wall_ms, 0, "c"))),),
        )
        request = Publish(COMMAND_TOPIC, Set(_key(0), b"1").encode(), 1, packet_id=1, properties=properties)
        subscribe = Subscribe(2, (Subscription(_answers(0), 1),))
        connection = self._connect(0, subscribe, request)
        assert b"OK" in connection.take(), "the first SET was not answered"

    def all_return(self) -> None:
        """The others."""
        for number in range(1, self._clients):
            self._connect(number).take()
        assert self._broker.usage.clients == self._clients

    def give_up(self) -> None:
        """Nobody else comes back: their wills go out."""
        self.now = Instant(self.now.monotonic + 10, self.now.wall_ms + 10_000)
        while (deadline := self._broker.next_deadline()) is not None and deadline <= self.now.monotonic:
            self.turn(lambda: self._broker.tick(self.now))
            self._commit()
        assert not any(view.has_will for view in self._broker.sessions()[1:]), "a will did not go out"

    def _connect(self, number: int, *packets: Packet) -> Connection:
        properties = ConnectProperties(session_expiry=_DAY)
        connect = Connect(_name(number), clean_start=False, will=_will(number), properties=properties)
        connection = self._broker.connection_opened(self.now)
        self.turn(lambda: self._broker.receive(connection, (connect, *packets), self.now))
        self._commit()
        while self._broker.has_work:
            self.turn(lambda: self._broker.work(self.now))
            self._commit()
        return connection

    def _commit(self) -> None:
        connections = [c for c in self._broker.take_dirty() if isinstance(c, Connection)]
        for connection in connections:
            connection.seal()
        self.turn(lambda: self._journal.cut(self.now))
        for connection in connections:
            connection.release()


def _key(number: int) -> bytes:
    return b"plant/line1/device/%08d" % number


def _value(number: int) -> KeyRecord:
    return KeyRecord(b"%060d" % number, HlcTimestamp(1_000_000, number % 65_536, "StateStore"), None, None)


def _name(number: int) -> str:
    return f"device-{number:06}"


def _answers(number: int) -> str:
    return f"clients/{_name(number)}/r"


def _will(number: int) -> Will:
    return Will(f"gone/{_name(number)}", b"gone", 1)


def _session(number: int) -> SessionRecord:
    return SessionRecord(number + 1, _DAY, None, None, _will(number), None)


def _figures(keys: int, clients: int, *, come_back: bool) -> dict[str, float]:
    """Milliseconds, for the storm seconds."""
    world = _World(keys, clients)
    gc.collect()
    gc.disable()
    try:
        world.take_over()
        took_over_s = sum(world.turns_s)
        world.set_first()
        figures = {"taken over": took_over_s * 1000, "first SET": sum(world.turns_s) * 1000}
        world.turns_s.clear()
        if come_back:
            world.all_return()
            figures["back"] = sum(world.turns_s)
        else:
            world.give_up()
        figures["longest return" if come_back else "longest will"] = max(world.turns_s) * 1000
        return figures
    finally:
        gc.enable()


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    keys, clients = options.scaled(_KEYS), options.scaled(_CLIENTS)
    rounds = [
        _figures(keys if number == 0 else 1, clients, come_back=come_back)
        for number in range(options.rounds)
        for come_back in (True, False)
    ]
    whole = f"{keys:,} keys, {clients:,} sessions"
    full = rounds[:2]
    report.bar(f"{whole}: taken over, ms", _median(full, "taken over"), _MOST_MS, at_most=True)
    report.bar(f"{whole}: first SET answered, ms", _median(full, "first SET"), _MOST_MS, at_most=True)
    report.bar(f"{clients:,} clients back, s", _median(rounds, "back"), _STORM_S, at_most=True)
    report.bar("longest turn of it, ms", _median(rounds, "longest return"), _MOST_TURN_MS, at_most=True)
    report.bar(f"{clients:,} wills: longest turn, ms", _median(rounds, "longest will"), _MOST_TURN_MS, at_most=True)
    return report.finish()


def _median(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(figures[name] for figures in rounds if name in figures)


if __name__ == "__main__":
    sys.exit(main())
