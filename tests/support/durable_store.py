"""A broker with the state store inside and a journal that may crash; random programs for it, and a standby that
follows it.
"""

from __future__ import annotations

import random
import threading
from typing import Any

from hypothesis import strategies as st

from statestore_client.mqtt.packets import Publish, PublishProperties
from statestore_client.server.broker import Broker, BrokerLimits
from statestore_client.server.journal import Changes, Journal, Stream, StreamTables, Subject, Timeline, WriteBatch, seal
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.scan_tokens import TOKEN_KEY_BYTES
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import KEEP_ALL, Persistence, StateStore
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.protocol import COMMAND_TOPIC, Dialect
from support.broker_driver import Client
from support.durable_broker import BOOT, DAY, NAMES, DurableWorld, Program, broker_state, left

# -- served world ------------------------------------------------------------------------------------------------------

# A broker with the state store inside, a journal, a disk that is a dictionary, and crashes.


class ServedWorld(DurableWorld):
    """A world whose broker answers requests. ``dialect`` and ``persistence`` are those of the next life, too."""

    def __init__(
        self,
        *,
        dialect: Dialect = Dialect.SERVICE,
        persistence: Persistence = KEEP_ALL,
        answers: ResponseCacheLimits | None = None,
        **limits: Any,
    ):
        super().__init__(**limits)
        self.dialect, self.persistence = dialect, persistence
        self.answers = answers or ResponseCacheLimits()
        self.correlations = 0
        self.start()

    def start(self) -> None:
        """Empty machines with a new journal."""
        self.journal = Journal(BOOT)
        self.service, self.broker = self.machines(self.journal)

    def machines(self, journal: Journal) -> tuple[StateStoreService, Broker]:
        """Empty ones."""
        clock = HybridLogicalClock("StateStore", guard=threading.Lock())
        keeps_all = self.persistence.keeps_all
        store = StateStore(clock=clock, dialect=self.dialect, journal=journal, persistence=self.persistence)
        service = StateStoreService(
            store,
            token_key=random.Random(id(journal)).randbytes(TOKEN_KEY_BYTES),
            dialect=self.dialect,
            journal=journal,
            keeps_all=keeps_all,
            cache_limits=self.answers,
        )
        limits = BrokerLimits(**{"keep_alive_s": 0, "flapping_hold_s": 0, **self.limits})
        return service, Broker(random=random.Random(7), applications=(service,), limits=limits, journal=journal)

    def crash(self, away_s: float = 0.0, *, boot: int = BOOT) -> None:
        self.monotonic += away_s
        self.journal = Journal(boot)
        self.journal.resume(self.storage, self.now)
        self.service, self.broker = self.machines(self.journal)
        self.service.restore(self.storage, self.journal.timeline)
        self.broker.restore(self.storage, self.now)

    def member(self, client_id: str, *, expiry_s: int = DAY, **connect: Any) -> Client:
        """A client that listens for its answers."""
        client = self.client(client_id, session_expiry=expiry_s, **connect)
        client.subscribe(answers_of(client_id), qos=1)
        return client

    def request(
        self,
        client: Client,
        client_id: str,
        command: Command,
        *,
        correlation: bytes | None = None,
        token: str = "",
        stamp: HlcTimestamp | None = None,
    ) -> None:
        """Send one, under new correlation data unless it is given, and of now unless it is from earlier."""
        self.correlations += 1
        stamp = stamp or HlcTimestamp(self.now.wall_ms, 0, client_id)
        properties = PublishProperties(
            response_topic=answers_of(client_id),
            correlation_data=correlation or self.correlations.to_bytes(16),
            user_properties=(("__ts", str(stamp)), *([("__ft", token)] if token else [])),
        )
        payload = command.encode()
        client.send(Publish(COMMAND_TOPIC, payload, 1, packet_id=client.next_id(), properties=properties))


def answers_of(client_id: str) -> str:
    return f"clients/{client_id}/r"


# -- served program ----------------------------------------------------------------------------------------------------

# Random programs of clients of a broker with the state store inside, and all that is in such a server.


KEYS = (b"a", b"b")
_TOKENS = (None, *(HlcTimestamp(1, counter, "a") for counter in (6, 7, 9)))

_name, _key, _token = st.sampled_from(NAMES), st.sampled_from(KEYS), st.sampled_from(_TOKENS)
_expiry_ms = st.sampled_from((None, None, 700, 20_000, 90_000))
_commands = st.one_of(
    st.builds(Set, _key, st.binary(max_size=2), st.none(), _expiry_ms, persist=st.booleans()),
    st.builds(Set, _key, st.binary(max_size=2), st.none(), _expiry_ms, persist=st.booleans()),
    st.builds(Set, _key, st.just(b"nx"), st.just(Condition.NX), _expiry_ms, persist=st.booleans()),
    st.builds(Del, _key),
    st.builds(VDel, _key, st.just(b"nx")),
    st.builds(KeyNotify, _key),
    st.builds(Get, _key),
)
#: What clients ask the state store for.
WORK_STEPS = (
    st.tuples(st.just("work"), _name, st.lists(st.tuples(_commands, _token), min_size=2, max_size=9)),
    st.tuples(st.just("work"), _name, st.lists(st.tuples(_commands, st.none()), min_size=2, max_size=9)),
    st.tuples(st.just("repeat")),
    st.tuples(st.just("sleep"), st.just(400.0)),
)


class ServedProgram(Program):
    """Clients ask, and send requests again."""

    world: ServedWorld

    def __init__(self, persistence: Persistence, max_answers: int) -> None:
        super().__init__(ServedWorld(persistence=persistence, answers=ResponseCacheLimits(max_answers)))
        self.asked: list[tuple[str, Command, HlcTimestamp, bytes, str]] = []

    def begin(self) -> None:
        super().begin()
        for name in NAMES:
            self._subscribe_to_answers(name)

    def _subscribe_to_answers(self, name: str) -> None:
        client = self.client(name)
        if client is not None:
            client.subscribe(answers_of(name), qos=1)

    def _work(self, name: str, asked: list[tuple[Command, HlcTimestamp | None]]) -> None:
        """Some requests, each of which is on the disk before the next."""
        if self.client(name) is None:
            self._connect(name, False, DAY, 50)
            self._subscribe_to_answers(name)
        for command, token in asked:
            self.world.monotonic += 0.002
            stamp = HlcTimestamp(self.world.now.wall_ms, 0, name)
            self.asked.append((name, command, stamp, b"%d" % len(self.asked), "" if token is None else str(token)))
            self._repeat()
            self.world.work()

    def _repeat(self) -> None:
        """Send the last request, perhaps once more."""
        if self.asked:
            name, command, stamp, correlation, token = self.asked[-1]
            client = self.client(name)
            if client is not None:
                self.world.request(client, name, command, correlation=correlation, token=token, stamp=stamp)


def visible_state(service: StateStoreService, broker: Broker, now: Instant, *, is_exact: bool) -> dict[str, Any]:
    """What clients may see; not how it is kept."""
    store = service._store
    entries = {key: store._keyspace.get(key) for key in store._keyspace.keys_from(b"", inclusive=True)}
    return broker_state(broker, now, is_exact=is_exact) | {
        "keys": {key: (e.value, e.version, e.fence, left(e.expires_at, now)) for key, e in entries.items() if e},
        "bytes": service.usage.bytes,
        "answers": {
            (share.client_id, name): (*response[:3], left(response[3], now))
            for share in service._responses._shares.values()
            for name, response in share.responses.items()
        },
    }


def server_state(service: StateStoreService, broker: Broker, journal: Journal, now: Instant) -> dict[str, Any]:
    """All of it, except whose clock it is told by."""
    store, responses = service._store, service._responses
    heap = store._expiries
    due = [item for item in (*heap._heap, *heap._old_heap) if store._expires_then(item)]
    local_ahead_ms = store._local_clock.ahead_ms - journal.timeline.ahead_ms
    return visible_state(service, broker, now, is_exact=True) | {
        "kept": {key: entry.kept for key in KEYS if (entry := store._keyspace.get(key))},
        "marks": {key: (mark.fence, left(mark.expires_at, now)) for key, mark in store._survival.marks.items()},
        "shares": [share._of for share in (*service.shares, broker.shares[1])],
        "awaited": (sorted(s.client_id for s in broker._state.awaited.sessions), broker._state.awaited.wills),
        "clock": (store._clock.last, left(local_ahead_ms, Instant(0.0, 0))),
        "due": {key: left(when, now) for when, key in due},
        "order": [(share.client_id, list(share.responses)) for share in responses._shares.values()],
        "used": (len(responses), responses._used_bytes, {s.client_id: s.level for s in responses._shares.values()}),
        "numbers": {stream: journal[stream].next_number for stream in Stream},
        "written": sorted((s.value, str(subject)) for s in Stream for subject in journal[s].changes),
    }


# -- followers ---------------------------------------------------------------------------------------------------------

# A standby beside a world, on a machine with another clock.


class Follower:
    """A standby on a machine whose monotonic clock is ahead of the active server's."""

    def __init__(self, world: ServedWorld, ahead_s: float, *, has_rows: bool = True) -> None:
        """``has_rows``: it is to get those of now, by :meth:`fill`."""
        self.world, self.ahead_s = world, ahead_s
        self.journal = Journal(BOOT)
        self.service, self.broker = world.machines(self.journal)
        self.standby = Standby(self.journal, self.service, self.broker, self.now)
        self.position = len(world.storage.batches)
        self._snapshot = world.storage.copy() if has_rows else StreamTables(())
        self._touched: set[tuple[Stream, Subject]] = set()

    @property
    def now(self) -> Instant:
        now = self.world.now
        return Instant(now.monotonic + self.ahead_s, now.wall_ms)

    def follow(self) -> None:
        """Absorb what there is."""
        batches = self.world.storage.batches
        for batch in batches[self.position :]:
            self.standby.absorb(batch)
            self._touched |= batch.subjects()
        self.position = len(batches)

    def fill(self) -> None:
        """Absorb the rows that were there at the beginning, without those that a batch has touched since: subscriptions
        before their sessions, for once."""
        for stream, rows in reversed(self._snapshot.streams.items()):
            for subject, data in rows.items():
                if (stream, subject) not in self._touched:
                    self.standby.absorb(WriteBatch((Changes(stream, ((subject, data),), ()),)))
            rows.clear()
        self.standby.settle()

    def take_over(self, timeline: Timeline) -> float:
        """With what has been written so far."""
        self.follow()
        self.fill()
        assert not self.journal  # whoever follows writes nothing
        return self.standby.take_over(Timeline(timeline.ahead_ms - self.ahead_s * 1000), self.now)


def batch_of(stream: Stream, *rows: tuple[Subject, tuple[object, ...]]) -> WriteBatch:
    """These records."""
    return WriteBatch((Changes(stream, tuple((s, seal(stream, s, fields)) for s, fields in rows), ()),))
