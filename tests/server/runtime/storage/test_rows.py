"""Rows for snapshots: what is given out a few at a time while all goes on, and the log after the beginning, are the
whole state. By a standby, and by an active server that has changes which are not in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broker_driver import Client
from support.broker_invariants import audit
from support.durable_broker import DAY, NAMES, STEPS, MemoryStorage
from support.durable_store import WORK_STEPS, Follower, ServedProgram, ServedWorld, server_state

from statestore_client.mqtt.packets import Publish, Will
from statestore_client.server.cluster.entries import Part, pack_batch
from statestore_client.server.cluster.snapshots import SnapshotReader
from statestore_client.server.journal import Done, Stream, StreamTables, Subject, WriteBatch, unseal
from statestore_client.server.runtime.storage import standby
from statestore_client.server.runtime.storage.standby import StateRows
from statestore_client.server.store import KEEP_ALL, Persistence
from statestore_client.wire.commands import Del, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.instant import Instant


class _Reader:
    """Begins with the rows of a snapshot, and the log after its index."""

    def __init__(self, world: ServedWorld) -> None:
        self.follower = Follower(world, 12.5, has_rows=False)
        self._rows = SnapshotReader(1)

    def read(self) -> None:
        """What is in the log."""
        batches = self.follower.world.storage.batches
        for batch in batches[self.follower.position :]:
            self._rows.touch(batch)
        self.follower.follow()

    def receive(self, batch: WriteBatch, *, is_end: bool = False) -> None:
        """A part of the snapshot, after what is in the log by now."""
        self.read()
        kept = self._rows.receive(1, Part(1, pack_batch(batch), is_end=is_end))
        if kept is not None:
            self.follower.standby.absorb(kept)


class _SlowLog(MemoryStorage):
    """A batch is in the log when the next one comes, or at :meth:`land`."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: StateRows | None = None  # of the active server
        self._in_flight: WriteBatch | None = None

    def append(self, batch: WriteBatch, done: Done) -> None:
        self.land()
        self._in_flight = batch
        if self.rows is not None:
            self.rows.appended(batch)
        done(None)

    def land(self) -> None:
        batch, self._in_flight = self._in_flight, None
        if batch is not None:
            self.batches.append(batch)
            self.absorb(batch)
            if self.rows is not None:
                self.rows.written()


class _Program(ServedProgram):
    """A snapshot is written by a standby or by the active server, while clients go on."""

    def __init__(self, persistence: Persistence, *, by_standby: bool) -> None:
        super().__init__(persistence, 65_536)
        world = self.world
        world.storage = self._log = _SlowLog()
        self.standby = Follower(world, -900.5)
        self.by_standby = by_standby
        self.rows = self.standby.standby.rows
        if not by_standby:
            self.rows = self._log.rows = StateRows(world.journal, world.service, world.broker)

    def begin_snapshot(self) -> None:
        self.settle()
        self.reader = _Reader(self.world)
        self._slices = self.rows.in_turn()

    def settle(self) -> None:
        """All is in the log."""
        self.world.work()
        self._log.land()
        self.standby.follow()

    def _land(self) -> None:
        self._log.land()

    def _follow(self) -> None:
        self.standby.follow()

    def _slice(self, count: int) -> None:
        """The writer may be ahead of what the reader has read, but not of the log."""
        for _ in range(count):
            self.reader.receive(next(self._slices, WriteBatch(())))

    def _ask(self, name: str, command: Set | Del) -> None:
        """What it changes is not in the log."""
        client = self.client(name)
        if client is not None:
            self.world.monotonic += 0.002  # answers of the same millisecond have no order
            self.world.request(client, name, command)

    def end(self) -> None:
        """The rest of the rows. They end soon after all is in the log."""
        for _ in range(1_000):
            batch = next(self._slices, None)
            if batch is None:
                break
            self.reader.receive(batch)
            self.world.commit()
            self._log.land()
        else:
            pytest.fail("the snapshot does not end")
        self.reader.receive(WriteBatch(()), is_end=True)
        self.reader.follower.standby.settle()


_asks = st.sampled_from((Set(b"a", b"asked"), Set(b"b", b"asked", None, 700), Del(b"a"), Del(b"b")))
_steps = st.lists(
    st.one_of(
        *STEPS,
        *WORK_STEPS,
        st.tuples(st.just("ask"), st.sampled_from(NAMES), _asks),
        st.tuples(st.just("land")),
        st.tuples(st.just("follow")),
        st.tuples(st.just("slice"), st.integers(1, 6)),
        st.tuples(st.just("slice"), st.integers(1, 6)),
    ),
    max_size=25,
)


@given(
    st.sampled_from((KEEP_ALL, Persistence.of("asked"))),
    st.booleans(),
    st.lists(st.one_of(*STEPS, *WORK_STEPS), max_size=15),
    _steps,
)
@settings(max_examples=60, deadline=None)
def test_rows_and_the_log_after_them_are_the_whole_state(
    persistence: Persistence, by_standby: bool, before: list[tuple[Any, ...]], steps: list[tuple[Any, ...]]
) -> None:
    """Whatever clients do meanwhile, a standby that began with a snapshot has what one has that read all of the log,
    also if the server that is active goes with changes that are not in the log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standby, "_MOST_ROWS", 2)
        program = _Program(persistence, by_standby=by_standby)
        program.begin()
        for step in before:
            program.run(step)
        program.begin_snapshot()
        for step in steps:
            program.run(step)
        program.end()
    world, states = program.world, []
    for follower in (program.standby, program.reader.follower):
        ahead_s = follower.take_over(world.journal.timeline)
        now = Instant(follower.now.monotonic + ahead_s, follower.now.wall_ms)
        states.append(server_state(follower.service, follower.broker, follower.journal, now))
        assert audit(follower.broker) == ()
    assert states[0] == states[1]


# -- rows for snapshots, one rule after the other ----------------------------------------------------------------------

_TOKEN = str(HlcTimestamp(1, 6, "a"))


class _Active:
    """A server, and a client that asks it. What is written lands when it is told to."""

    def __init__(self, **world: Persistence) -> None:
        self.world = ServedWorld(**world)
        self.rows = StateRows(self.world.journal, self.world.service, self.world.broker)
        self.client = self.world.member("c")
        self.write()

    def write(self) -> None:
        """All that there is is in the log."""
        self.cut()
        self.rows.written()

    def cut(self) -> None:
        """It is on its way."""
        batch = self.world.journal.cut(self.world.now)
        self.world.storage.append(batch, lambda _error: None)
        self.rows.appended(batch)

    def ask(self, command: Set | Del, token: str = "") -> None:
        """And nothing of it is in the log."""
        self.world.monotonic += 0.002
        self.world.request(self.client, "c", command, token=token)

    def take(self, slices: Iterator[WriteBatch]) -> list[bytes]:
        """The keys of all rows, until the iterator waits for the log, or ends."""
        found: list[bytes] = []
        for batch in slices:
            if not batch.changes:
                break
            found += _subjects((batch,), Stream.KEYS)
        return found


def _subjects(batches: Iterable[WriteBatch], stream: Stream) -> list[Subject]:
    changes = (each for batch in batches for each in batch.changes if each.stream is stream)
    return [subject for each in changes for subject, _ in each.puts]


def _tables(batches: Iterable[WriteBatch]) -> dict[str, dict[Subject, object]]:
    """The fields of all rows, each of which comes once."""
    batches = [*batches]
    for stream in Stream:
        assert len(_subjects(batches, stream)) == len({*_subjects(batches, stream)})
    tables = StreamTables()
    for batch in batches:
        assert not any(changes.removals for changes in batch.changes)
        tables.absorb(batch)
    return _fields(tables)


def _fields(tables: StreamTables) -> dict[str, dict[Subject, object]]:
    """Without the versions of fencing marks, which nobody looks at."""
    return {
        stream.value: {
            subject: _without_version(stream, unseal(stream, subject, data)) for subject, data in rows.items()
        }
        for stream, rows in tables.streams.items()
    }


def _without_version(stream: Stream, fields: Any) -> object:
    return (None, *fields[2:]) if stream is Stream.KEYS and fields[0] is None else fields


def _some_of_each(persistence: Persistence) -> tuple[ServedWorld, Follower, Client]:
    """Clients, messages, keys and marks in all states."""
    world = ServedWorld(persistence=persistence)
    follower = Follower(world, 0.0)
    clients = [world.member(name, will=Will("w", b"w")) for name in ("a", "b")]
    world.member("short", expiry_s=0, will=Will("w", b"w"))
    clients[0].subscribe("t/#", qos=2)
    for number in range(5):
        world.monotonic += 0.002
        for client, name in zip(clients, "ab", strict=True):
            asked = Set(b"k%d" % number, name.encode(), None, 50_000 if number == 1 else None, persist=number % 2 > 0)
            world.request(client, name, asked, token=_TOKEN if number > 1 else "")
        client.send(Publish(f"t/{number}", b"r", number % 3, retain=True, packet_id=99 + number if number % 3 else 0))
    world.work()
    clients[1].received()
    clients[0].lose()
    world.request(clients[1], "b", Set(b"k3", b"unmarked"), token=_TOKEN)
    world.request(clients[1], "b", Set(b"k4", b"unmarked", None, 100), token=_TOKEN)
    world.work()
    return world, follower, clients[1]


@pytest.mark.parametrize("is_active", [False, True], ids=["standby", "active"])
@pytest.mark.parametrize("mode", ["all", "asked", "none"])
def test_rows_are_what_was_written(mode: str, is_active: bool) -> None:
    """The rows of a standby, and of an active server, are the records that were written, of each stream."""
    world, follower, _ = _some_of_each(Persistence.of(mode))
    follower.fill()
    follower.follow()
    rows = follower.standby.rows
    if is_active:
        rows = StateRows(world.journal, world.service, world.broker)
        for batch in world.storage.batches:
            rows.tables.absorb(batch)
    written = _fields(world.storage)
    streams = {"sessions", "wills", "deliveries", "retained", "responses"}
    assert {name for name, records in written.items() if records} >= streams
    assert _tables(rows.in_turn()) == written


def test_a_row_that_waits_is_left_out_and_waited_for() -> None:
    """A value that is not in the log is in no row, and the rows do not end before its batch is in the log: a key could
    otherwise be missing in a snapshot whose server goes before that."""
    active = _Active()
    for key in (b"a", b"b"):
        active.ask(Set(key, b"1"))
    active.write()
    slices = active.rows.in_turn()
    active.ask(Set(b"a", b"2"))
    assert active.take(slices) == [b"b"]
    assert next(slices) == WriteBatch(())
    active.cut()
    assert next(slices) == WriteBatch(())
    active.rows.written()
    assert next(slices, None) is None


def test_a_batch_on_its_way_is_left_out_and_waited_for() -> None:
    """A value in a batch that is on its way is in no row either, and that batch is waited for, as is what waits behind
    it, but nothing that comes later."""
    active = _Active()
    active.ask(Set(b"a", b"1"))
    active.write()
    slices = active.rows.in_turn()
    active.ask(Set(b"a", b"2"))
    active.cut()
    active.ask(Set(b"b", b"1"))
    assert active.take(slices) == []
    active.rows.written()
    assert next(slices) == WriteBatch(())
    active.cut()
    active.ask(Set(b"c", b"1"))
    assert next(slices) == WriteBatch(())
    active.rows.written()
    assert next(slices, None) is None


def test_a_removal_that_is_not_in_the_log_is_waited_for() -> None:
    """A key whose removal waits has no row, and a reader would miss it if the removal never came."""
    active = _Active()
    active.ask(Set(b"a", b"1"))
    active.write()
    slices = active.rows.in_turn()
    active.ask(Del(b"a"))
    assert active.take(slices) == []
    assert next(slices) == WriteBatch(())
    active.write()
    assert next(slices, None) is None


def test_what_is_there_all_the_time_comes_while_all_else_comes_and_goes() -> None:
    """Of 700 keys, topics and answers, those that stay come once each, whatever is removed and added between slices."""
    active = _Active()
    for number in range(700):
        active.ask(Set(b"%04d" % number, b"x"))
        active.client.publish(f"{number:04}/t", b"x", retain=True)
    active.client.received()
    answers = {*active.world.storage.streams[Stream.RESPONSES]}
    slices, batches, touched = active.rows.in_turn(), [], set()
    for turn in range(100):
        batches += [batch for batch in (next(slices, None),) if batch is not None]
        for number in (turn * 7, 300 - turn, 699 - turn):
            key = b"%04d" % (number % 700)
            active.ask(Del(key))
            active.client.publish(f"{number % 700:04}/t", b"", retain=True)
            active.ask(Set(key + b"+", b"new"))
            touched |= {key, key + b"+"}
        active.client.received()
    assert next(slices, None) is None
    staying = {b"%04d" % number for number in range(700)} - touched
    for stream, subjects in ((Stream.KEYS, staying), (Stream.RETAINED, {f"{key.decode()}/t" for key in staying})):
        found = _subjects(batches, stream)
        assert {*found} >= subjects
        assert len(found) == len({*found})
    assert len(answers) == 700
    assert {*_subjects(batches, Stream.RESPONSES)} >= answers


def test_sessions_of_an_active_server_are_in_its_rows_when_they_are_in_the_log() -> None:
    """What an active server has written of sessions is in its rows as soon as it is written, and not before."""
    active = _Active()
    active.world.client("new", session_expiry=DAY)
    for batch in active.world.storage.batches:
        active.rows.appended(batch)
        before = _subjects([next(active.rows.in_turn())], Stream.SESSIONS)
        active.rows.written()
    assert before == ["c"]
    assert _subjects([next(active.rows.in_turn())], Stream.SESSIONS) == ["c", "new"]


def test_a_batch_that_was_not_appended_is_not_written() -> None:
    """A mistake of the caller is told."""
    with pytest.raises(RuntimeError, match="appended"):
        _Active().rows.written()
