"""Rows for snapshots, one rule after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from support.broker_driver import Client
from support.durable_broker import DAY
from support.durable_store import Follower, ServedWorld

from statestore_client.mqtt.packets import Publish, Will
from statestore_client.server.journal import Stream, StreamTables, Subject, WriteBatch, unseal
from statestore_client.server.runtime.storage.rows import StateRows
from statestore_client.server.store import Persistence
from statestore_client.wire.commands import Del, Set
from statestore_client.wire.hlc import HlcTimestamp

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


@pytest.mark.parametrize("mode", ["all", "asked", "none"])
def test_rows_are_what_was_written(mode: str) -> None:
    """The rows of a standby are the records that the active server has written, of each stream."""
    world, follower, _ = _some_of_each(Persistence.of(mode))
    follower.fill()
    follower.follow()
    written = _fields(world.storage)
    assert {name for name, rows in written.items() if rows} >= {
        "sessions",
        "wills",
        "deliveries",
        "retained",
        "responses",
    }
    assert _tables(follower.standby.rows.in_turn()) == written


@pytest.mark.parametrize("mode", ["all", "asked", "none"])
def test_rows_of_an_active_server_are_what_it_has_written(mode: str) -> None:
    """The same while it is active."""
    world, _, _ = _some_of_each(Persistence.of(mode))
    rows = StateRows(world.journal, world.service, world.broker)
    for batch in world.storage.batches:
        rows.tables.absorb(batch)
    assert _tables(rows.in_turn()) == _fields(world.storage)


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
