"""Rows for snapshots: what is given out a few at a time while all goes on, and the log after the beginning, are the
whole state. By a standby, and by an active server that has changes which are not in the log.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.durable_broker import NAMES, STEPS, MemoryStorage
from support.durable_store import WORK_STEPS, Follower, ServedProgram, ServedWorld, server_state

from statestore_client.server.cluster.batches import pack_batch
from statestore_client.server.cluster.entries import Part
from statestore_client.server.cluster.snapshots import SnapshotReader
from statestore_client.server.journal import Done, WriteBatch
from statestore_client.server.runtime.storage import rows
from statestore_client.server.runtime.storage.rows import StateRows
from statestore_client.server.store import KEEP_ALL, Persistence
from statestore_client.wire.commands import Del, Set
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
        patch.setattr(rows, "_MOST_ROWS", 2)
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
        assert follower.broker.audit() == ()
    assert states[0] == states[1]
