"""Random programs of clients of a broker with the state store inside, and all that is in such a server."""

from __future__ import annotations

from typing import Any

from durable_driver import DAY
from durable_program import NAMES, Program, broker_state, left
from hypothesis import strategies as st
from served_world import ServedWorld, answers_of

from statestore_client.server.broker import Broker
from statestore_client.server.journal import Journal, Stream
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import Persistence
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant

__all__ = ["KEYS", "WORK_STEPS", "ServedProgram", "server_state", "visible_state"]

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
        "awaited": (sorted(s.client_id for s in broker._state.awaited.sessions), broker._state.awaited.wills),
        "clock": (store._clock.last, left(local_ahead_ms, Instant(0.0, 0))),
        "due": {key: left(when, now) for when, key in due},
        "order": [(share.client_id, list(share.responses)) for share in responses._shares.values()],
        "used": (len(responses), responses._used_bytes, {s.client_id: s.level for s in responses._shares.values()}),
        "numbers": {stream: journal[stream].next_number for stream in Stream},
        "written": sorted((s.value, str(subject)) for s in Stream for subject in journal[s]._changes),
    }
