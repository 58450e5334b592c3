"""Standbys: what they absorb batch by batch is what a restart reads, and what the server that wrote it had.

Random programs of clients that publish, subscribe, ask the state store and go; at any moment the active server is
killed, and one of two standbys, on machines with other clocks, goes on in its place. One has followed from the
beginning; the other came later, and got the rows of a snapshot after batches that are newer.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from durable_driver import BOOT, DAY
from durable_program import NAMES, STEPS, UNEVEN_S, Program, broker_state, is_calm, left
from followers import Follower
from hypothesis import given, settings
from hypothesis import strategies as st
from served_world import ServedWorld, answers_of

from statestore_client.server.broker import Broker
from statestore_client.server.broker.session.awaited import GRACE_S
from statestore_client.server.journal import (
    Changes,
    DamagedRecordError,
    Journal,
    Stream,
    Subject,
    Timeline,
    WriteBatch,
    seal,
)
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.service.service import StateStoreService
from statestore_client.server.store import KEEP_ALL, Persistence
from statestore_client.server.store.records import KeyRecord
from statestore_client.wire.commands import Command, Condition, Del, Get, KeyNotify, Set, VDel
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant

_KEYS = (b"a", b"b")
_TOKENS = (None, *(HlcTimestamp(1, counter, "a") for counter in (6, 7, 9)))
_MODES = (KEEP_ALL, Persistence.of("asked"), Persistence.of("none"))

_name, _key, _token = st.sampled_from(NAMES), st.sampled_from(_KEYS), st.sampled_from(_TOKENS)
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
_steps = st.lists(
    st.one_of(
        *STEPS,
        st.tuples(st.just("work"), _name, st.lists(st.tuples(_commands, _token), min_size=2, max_size=9)),
        st.tuples(st.just("work"), _name, st.lists(st.tuples(_commands, st.none()), min_size=2, max_size=9)),
        st.tuples(st.just("repeat")),
        st.tuples(st.just("sleep"), st.just(400.0)),
        st.tuples(st.just("join")),
        st.tuples(st.just("follow")),
        st.tuples(
            st.just("fail_over"),
            st.integers(0, 1),
            st.sampled_from((0.0, 25.0)),
            st.sampled_from((-3_600_000, 0, 100)),
            st.booleans(),
        ),
    ),
    min_size=8,
    max_size=40,
)


class _FailoverProgram(Program):
    world: ServedWorld

    def __init__(self, persistence: Persistence, max_answers: int) -> None:
        super().__init__(ServedWorld(persistence=persistence, answers=ResponseCacheLimits(max_answers)))
        self.asked: list[tuple[str, Command, HlcTimestamp, bytes, str]] = []
        self.late = Follower(self.world, 0.25)
        self.followers = [Follower(self.world, -900.5), self.late]

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

    def _join(self) -> None:
        """A standby begins anew, and is to get a snapshot of now."""
        self.world.work()
        self.followers[1] = Follower(self.world, self.followers[1].ahead_s + 1000)

    def _follow(self) -> None:
        for follower in self.followers:
            follower.follow()

    def _fail_over(self, chosen: int, away_s: float, step_ms: int, come_back: bool) -> None:
        """All of these come to the same: one that starts from the disk, and those that followed the server that wrote
        all this. When clients are not awaited any more, so does that server, if it lives on and they leave it then.
        """
        world = self.world
        world.sleep(UNEVEN_S)
        world.work()
        written, before = world.storage.copy(), world.broker
        self._follow()
        for name in NAMES:
            world.service.client_disconnected(name, world.now)  # whoever watched hears of nothing meanwhile
        is_exact = not away_s and is_calm(world.broker, world.now)
        world.sleep(away_s)
        taken_over_at, journal = world.now, Journal(BOOT)
        world.storage = written
        journal.resume(written, world.now)
        fresh_service, fresh_broker = world.machines(journal)
        fresh_service.restore(written, journal.timeline)
        fresh_broker.restore(written, world.now)
        expected = _state(fresh_service, fresh_broker, journal, world.now)
        own_times = []
        for follower in self.followers:
            ahead_s = follower.take_over(journal.timeline)
            now = Instant(follower.now.monotonic + ahead_s, follower.now.wall_ms)
            own_times.append(now)
            assert _state(follower.service, follower.broker, follower.journal, now) == expected
            assert follower.broker.audit() == ()

        if not come_back:
            world.sleep(GRACE_S)
            self.all_leave()
            living = _visible(world.service, world.broker, world.now, is_exact=is_exact)
        follower = self.followers[chosen]
        world.service, world.broker, world.journal = follower.service, follower.broker, follower.journal
        world.monotonic = own_times[chosen].monotonic
        world.wall_ahead_ms += step_ms + int((taken_over_at.monotonic - world.monotonic) * 1000)
        if come_back:
            self.all_return(before)
        else:
            world.sleep(GRACE_S)
            if world.persistence is KEEP_ALL:
                assert _visible(world.service, world.broker, world.now, is_exact=is_exact) == living
        assert world.broker.audit() == ()
        world.work()
        self.followers = [Follower(world, -900.5), Follower(world, 77.0)]
        self.followers[0].fill()


def _visible(service: StateStoreService, broker: Broker, now: Instant, *, is_exact: bool) -> dict[str, Any]:
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


def _state(service: StateStoreService, broker: Broker, journal: Journal, now: Instant) -> dict[str, Any]:
    """All of it, except whose clock it is told by."""
    store, responses = service._store, service._responses
    heap = store._expiries
    due = [item for item in (*heap._heap, *heap._old_heap) if store._expires_then(item)]
    local_ahead_ms = store._local_clock.ahead_ms - journal.timeline.ahead_ms
    return _visible(service, broker, now, is_exact=True) | {
        "kept": {key: entry.kept for key in _KEYS if (entry := store._keyspace.get(key))},
        "marks": {key: (mark.fence, left(mark.expires_at, now)) for key, mark in store._survival.marks.items()},
        "awaited": (sorted(s.client_id for s in broker._state.awaited.sessions), broker._state.awaited.wills),
        "clock": (store._clock.last, left(local_ahead_ms, Instant(0.0, 0))),
        "due": {key: left(when, now) for when, key in due},
        "order": [(share.client_id, list(share.responses)) for share in responses._shares.values()],
        "used": (len(responses), responses._used_bytes, {s.client_id: s.level for s in responses._shares.values()}),
        "numbers": {stream: journal[stream].next_number for stream in Stream},
        "written": sorted((s.value, str(subject)) for s in Stream for subject in journal[s]._changes),
    }


@given(st.sampled_from(_MODES), st.sampled_from((3, 65_536)), _steps, st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_what_standbys_absorb_is_what_a_restart_reads(
    persistence: Persistence, max_answers: int, steps: list[tuple[Any, ...]], chosen: int
) -> None:
    """Whatever clients do, a standby that absorbed all batches, one that began with a snapshot, a restart from the same
    batches, and the server that wrote them have the same keys, answers, sessions and messages."""
    program = _FailoverProgram(persistence, max_answers)
    program.begin()
    for name in NAMES:
        program.run(("subscribe_to_answers", name))
    fail_overs = ("fail_over", chosen, 0.0, 0, False), ("fail_over", 1 - chosen, 25.0, 0, False)
    for step in (*steps, fail_overs[0], *steps[-5:], fail_overs[1]):
        program.run(step)


_FENCES = (HlcTimestamp(1, 6, "a"), HlcTimestamp(1, 7, "b"))
_RECORDS = (
    None,
    KeyRecord(b"v", HlcTimestamp(2, 0, "s"), None, None),
    KeyRecord(b"value", HlcTimestamp(3, 0, "s"), _FENCES[0], 1_100.0),
    KeyRecord(b"v", HlcTimestamp(4, 0, "s"), _FENCES[1], 1_200.0),
    KeyRecord(None, HlcTimestamp(5, 0, "s"), _FENCES[1], 1_100.0),
    KeyRecord(None, HlcTimestamp(6, 0, "s"), _FENCES[0], None),
    KeyRecord(None, HlcTimestamp(6, 0, "s"), _FENCES[0], 200_000.0),
)


def _key_batch(record: KeyRecord | None, timeline: Timeline) -> WriteBatch:
    if record is None:
        return WriteBatch((Changes(Stream.KEYS, (), (b"a",)),))
    return WriteBatch((Changes(Stream.KEYS, ((b"a", seal(Stream.KEYS, b"a", record.fields(timeline))),), ()),))


@pytest.mark.parametrize("records", [*itertools.product(_RECORDS, repeat=3)], ids=str)
def test_whatever_a_key_was_it_is_its_last_record(records: tuple[KeyRecord | None, ...]) -> None:
    """Value, fencing mark, or nothing: after any three records of a key a standby has what a restart reads."""
    world = ServedWorld()
    world.work()
    world.commit()
    follower = Follower(world, 0.0)
    for record in records:
        world.storage.append(_key_batch(record, follower.journal.timeline), lambda _error: None)
    follower.fill()
    follower.follow()
    follower.standby.take_over(follower.journal.timeline, follower.now)
    world.crash()
    expected = _state(world.service, world.broker, world.journal, world.now)
    assert _state(follower.service, follower.broker, follower.journal, follower.now) == expected
    assert len(expected["due"]) == (expected["keys"] != {} or expected["marks"] != {}) - (records[-1] == _RECORDS[1])
    assert follower.service._store._expiries.stale == len(follower.service._store._expiries) - len(expected["due"])


@pytest.mark.parametrize(
    ("stream", "subject", "fields"),
    [
        (Stream.KEYS, b"k", (b"v",)),
        (Stream.KEYS, b"k", (None, (1, 2, "a"), None, None)),
        (Stream.CLOCK, b"", (1,)),
        (Stream.RESPONSES, b"\xc1", (1, b"", None, 1)),
        (Stream.RETAINED, "t", (1,)),
        (Stream.SESSIONS, "c", (1,)),
        (Stream.SESSIONS, "c", ("1", 60, None, None, None, None)),
        (Stream.SESSIONS, "c", (1, 60, None, "soon", None, None)),
        (Stream.SESSIONS, "c", (1, 60, None, None, (1,), None)),
        (Stream.SUBSCRIPTIONS, "1 t", (1,)),
        (Stream.SUBSCRIPTIONS, "t", (1, False, False, ())),
        (Stream.WILLS, "c", (None, 1)),
    ],
)
def test_a_batch_that_is_none_is_refused(stream: Stream, subject: Subject, fields: tuple[object, ...]) -> None:
    """What a standby cannot read stops it: it would not be what it follows."""
    standby = Follower(ServedWorld(), 0.0).standby
    sealed = seal(stream, subject, fields)
    with pytest.raises(DamagedRecordError):
        standby.absorb(WriteBatch((Changes(stream, ((subject, sealed),), ()),)))
    with pytest.raises(DamagedRecordError, match="checksum"):
        standby.absorb(WriteBatch((Changes(stream, ((subject, b"\0" + sealed[1:]),), ()),)))


def test_what_is_no_longer_retained_is_gone() -> None:
    """A standby has the retained messages of now: the latest of each topic, and none that was removed."""
    world = ServedWorld()
    follower = Follower(world, 0.0)
    client = world.client("c")
    for topic, payload in (("t/1", b"1"), ("t/2", b"2"), ("t/1", b""), ("t/2", b"3")):
        client.publish(topic, payload, 1, retain=True)
        client.received()
    follower.follow()
    retained = follower.broker._state.retained
    assert [message.payload for message in retained.match("t/#", follower.now)] == [b"3"]
    assert not list(retained.violations())
    assert not follower.journal


def test_a_removal_without_a_name_is_refused() -> None:
    """The subject of a removed answer is not the name of one."""
    standby = Follower(ServedWorld(), 0.0).standby
    with pytest.raises(DamagedRecordError):
        standby.absorb(WriteBatch((Changes(Stream.RESPONSES, (), (b"\xc1",)),)))
