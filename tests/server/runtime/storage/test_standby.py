"""Standbys: what they absorb batch by batch is what a restart reads, and what the server that wrote it had.

Random programs of clients that publish, subscribe, ask the state store and go; at any moment the active server is
killed, and one of two standbys, on machines with other clocks, goes on in its place. One has followed from the
beginning; the other came later, and got the rows of a snapshot after batches that are newer.
"""

from __future__ import annotations

import itertools
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client
from support.broker_invariants import audit
from support.durable_broker import BOOT, DAY, NAMES, STEPS, UNEVEN_S, is_calm
from support.durable_store import (
    WORK_STEPS,
    Follower,
    ServedProgram,
    ServedWorld,
    batch_of,
    server_state,
    visible_state,
)

from statestore_client.mqtt.packets import Unsubscribe, Will
from statestore_client.server.broker.lifecycle import GRACE_S
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
from statestore_client.server.store import KEEP_ALL, Persistence
from statestore_client.server.store.durability import KeyRecord
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant

_MODES = (KEEP_ALL, Persistence.of("asked"), Persistence.of("none"))

_steps = st.lists(
    st.one_of(
        *STEPS,
        *WORK_STEPS,
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


class _FailoverProgram(ServedProgram):
    def __init__(self, persistence: Persistence, max_answers: int) -> None:
        super().__init__(persistence, max_answers)
        self.late = Follower(self.world, 0.25)
        self.followers = [Follower(self.world, -900.5), self.late]

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
        expected = server_state(fresh_service, fresh_broker, journal, world.now)
        own_times = []
        for follower in self.followers:
            ahead_s = follower.take_over(journal.timeline)
            now = Instant(follower.now.monotonic + ahead_s, follower.now.wall_ms)
            own_times.append(now)
            assert server_state(follower.service, follower.broker, follower.journal, now) == expected
            assert audit(follower.broker) == ()

        if not come_back:
            world.sleep(GRACE_S)
            self.all_leave()
            living = visible_state(world.service, world.broker, world.now, is_exact=is_exact)
        follower = self.followers[chosen]
        world.service, world.broker, world.journal = follower.service, follower.broker, follower.journal
        world.monotonic = own_times[chosen].monotonic
        world.wall_ahead_ms += step_ms + int((taken_over_at.monotonic - world.monotonic) * 1000)
        if come_back:
            self.all_return(before)
        else:
            world.sleep(GRACE_S)
            if world.persistence is KEEP_ALL:
                assert visible_state(world.service, world.broker, world.now, is_exact=is_exact) == living
        assert audit(world.broker) == ()
        world.work()
        self.followers = [Follower(world, -900.5), Follower(world, 77.0)]
        self.followers[0].fill()


@given(st.sampled_from(_MODES), st.sampled_from((3, 65_536)), _steps, st.integers(0, 1))
@settings(max_examples=60, deadline=None)
def test_what_standbys_absorb_is_what_a_restart_reads(
    persistence: Persistence, max_answers: int, steps: list[tuple[Any, ...]], chosen: int
) -> None:
    """Whatever clients do, a standby that absorbed all batches, one that began with a snapshot, a restart from the same
    batches, and the server that wrote them have the same keys, answers, sessions and messages."""
    program = _FailoverProgram(persistence, max_answers)
    program.begin()
    fail_overs = ("fail_over", chosen, 0.0, 0, False), ("fail_over", 1 - chosen, 25.0, 0, False)
    for step in (*steps, fail_overs[0], *steps[-5:], fail_overs[1]):
        program.run(step)


_FENCES = (HlcTimestamp(1, 6, "a"), HlcTimestamp(1, 7, "b"))
_RECORDS = (
    None,
    KeyRecord(b"v", HlcTimestamp(2, 0, "s"), None, None),
    KeyRecord(b"value", HlcTimestamp(3, 0, "s"), _FENCES[0], 1_100.0, "ann"),
    KeyRecord(b"v", HlcTimestamp(4, 0, "s"), _FENCES[1], 1_200.0, "ben"),
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
    expected = server_state(world.service, world.broker, world.journal, world.now)
    assert server_state(follower.service, follower.broker, follower.journal, follower.now) == expected
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


def test_a_removal_without_a_name_is_refused() -> None:
    """The subject of a removed answer is not the name of one."""
    standby = Follower(ServedWorld(), 0.0).standby
    with pytest.raises(DamagedRecordError):
        standby.absorb(WriteBatch((Changes(Stream.RESPONSES, (), (b"\xc1",)),)))


# -- sessions of a standby ---------------------------------------------------------------------------------------------


def _lasting(world: ServedWorld, name: str) -> Client:
    client = world.client(name, session_expiry=DAY, will=Will(f"will/{name}", b"w"))
    client.subscribe(f"t/{name}/#", f"{name}/r", "$share/g/t", qos=1)
    return client


def test_sessions_are_there_before_the_standby_takes_over() -> None:
    """A standby has the sessions of the active server, with their subscriptions, as they are now, and no others."""
    world = ServedWorld()
    follower = Follower(world, 0.0)
    clients = [_lasting(world, f"c{number}") for number in range(3)]
    follower.follow()
    assert follower.broker.sessions() == tuple(attrs.evolve(v, is_connected=False) for v in world.broker.sessions())
    clients[0].send(Unsubscribe(clients[0].next_id(), ("c0/r",)))
    world.client("c1", clean_start=True, session_expiry=60).subscribe("new", qos=1)
    world.client("c2", clean_start=True)
    world.work()
    follower.follow()
    filters = {view.client_id: [*view.subscriptions] for view in follower.broker.sessions()}
    assert filters == {"c0": ["t/c0/#", "$share/g/t"], "c1": ["new"]}
    usage, active = follower.broker.usage, world.broker.usage
    assert (usage.subscriptions, usage.subscription_bytes) == (active.subscriptions, active.subscription_bytes)
    follower.take_over(world.journal.timeline)
    assert audit(follower.broker) == ()


def test_sessions_whose_clients_are_away_make_room_first() -> None:
    """When room is short, a new active server ends the session of a client that was away, not of one that it awaits,
    though the record of that one is older."""
    world = ServedWorld(sessions=2)
    follower = Follower(world, 0.0)
    clients = [world.client(name, session_expiry=DAY) for name in ("awaited", "away")]
    clients[1].lose()
    world.sleep(1)
    world.work()
    follower.take_over(world.journal.timeline)
    world.broker = follower.broker
    world.client("new", session_expiry=DAY)
    assert [view.client_id for view in world.broker.sessions()] == ["awaited", "new"]


def test_taking_over_writes_nothing_of_sessions_that_are_idle() -> None:
    """However many sessions there are, the first batch of a new active server has none of them."""
    world = ServedWorld()
    follower = Follower(world, 0.0)
    for number in range(20):
        _lasting(world, f"c{number}")
    world.client("short", will=Will("will/short", b"w"))
    world.work()
    follower.take_over(world.journal.timeline)
    assert [changes.stream for changes in follower.journal.cut(follower.now).changes] == [Stream.CLOCK]


def test_two_sessions_of_one_number_are_refused() -> None:
    """A number stands for one session."""
    standby = Follower(ServedWorld(), 0.0).standby
    fields = (2, 60, None, None, None, None)
    with pytest.raises(DamagedRecordError, match="number 2"):
        standby.absorb(batch_of(Stream.SESSIONS, ("a", fields), ("b", fields)))


def test_a_subscription_whose_session_never_comes_is_refused() -> None:
    """It may come later than its subscription, but not later than the moment when it is needed."""
    follower = Follower(ServedWorld(), 0.0)
    follower.standby.absorb(batch_of(Stream.SUBSCRIPTIONS, ("1 t", (1, False, False, ()))))
    with pytest.raises(DamagedRecordError, match="not there"):
        follower.take_over(follower.journal.timeline)
