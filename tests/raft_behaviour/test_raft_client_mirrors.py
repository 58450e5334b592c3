"""Mirrors of keys of both clients, which follow real peers through failovers, compactions and a slow program."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from raft_shells import RaftShell
from support.waiting import until

from raft_client import (
    BusyError,
    ClientClosedError,
    ForkedClientError,
    Freshness,
    InvalidArgumentError,
    KeyValueCodec,
    MirrorEvent,
    NoLeaderError,
    PickleRefusedError,
    RaftClient,
)
from raft_client.core import key_value_calls
from raft_client.server import AsyncEmbeddedCluster, EmbeddedCluster, StorageLimits
from raft_client.server.machines.watch_server import WatchServerLimits
from raft_client.server.runtime import machine_runner
from raft_client.server.runtime.peer import RequestHorizon

Limits = Callable[..., None]


@pytest.fixture
def watch_limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Peers that serve watches within these limits."""
    return lambda **limits: monkeypatch.setattr(
        machine_runner, "WatchServerLimits", partial(WatchServerLimits, **limits)
    )


def shown(mirror: Any) -> Any:
    """The mapping itself, whichever shell it is of."""
    return getattr(mirror, "target", mirror)


def told(known: dict[bytes, bytes], events: list[MirrorEvent]) -> dict[bytes, bytes]:
    """What a reader knows that has known this, and was told these."""
    for event in events:
        for change in event.changes:
            assert change.previous is not None
            assert change.previous.value == known.get(change.key)
            if change.value is None:
                del known[change.key]
            else:
                known[change.key] = change.value
    return known


async def rest_of(changes: Any) -> list[MirrorEvent]:
    """What waits."""
    events = []
    while (event := await changes.get(0)) is not None:
        events.append(event)
    return events


async def test_a_mirror_is_complete_and_follows(raft: RaftShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a mapping of all keys with the prefix, and tells what changes in it, and at which position."""
    monkeypatch.setattr(key_value_calls, "PAGE_KEYS", 2)
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        await client.kv.transaction(then={f"pumps/{n}": "on" for n in range(5)} | {"valves/1": "open"})
        async with client.kv.mirror("pumps/") as mirror:
            pumps, changes = shown(mirror), mirror.changes()
            assert pumps == {b"pumps/%d" % n: b"on" for n in range(5)}
            assert (len(pumps), b"pumps/4" in pumps, "pumps/9" in pumps, 5 in pumps) == (5, True, False, False)
            assert pumps.get("pumps/1") == pumps["pumps/1"] == b"on"
            assert (pumps.get("valves/1"), pumps.get(b"x", b"none")) == (None, b"none")
            with pytest.raises(KeyError):
                _ = pumps["valves/1"]
            put = await client.kv.put("pumps/1", "off")
            deleted = await client.kv.delete("pumps/2", "valves/1")
            assert await mirror.wait(deleted.position)
            assert pumps.position.index >= deleted.position.index
            assert sorted(pumps) == sorted(pumps.keys()) == [b"pumps/%d" % n for n in (0, 1, 3, 4)]
            assert sorted(pumps.values()) == [b"off", b"on", b"on", b"on"]
            assert dict(pumps.items()) == pumps.snapshot() == pumps
            first, second = await anext(changes), await changes.get(5)
            assert [first.index, second.index] == [put.position.index, deleted.position.index]
            assert [(c.key, c.value, c.previous.value) for e in (first, second) for c in e.changes] == [
                (b"pumps/1", b"off", b"on"),
                (b"pumps/2", None, b"on"),
            ]
            assert not first.is_difference
            await until(lambda: pumps.state.freshness is Freshness.FRESH)
            elsewhere = await client.kv.put("valves/2", "open")  # none of its keys
            assert await mirror.wait(elsewhere.position.index)
            assert not await mirror.wait(elsewhere.position.index + 10_000, timeout=0)
            assert not await mirror.wait(elsewhere.position.index + 10_000, timeout=0.01)
            assert await changes.get(0) is None
            assert "4 keys at " in repr(pumps)
            assert ", following>" in repr(pumps)
        assert isinstance(pumps.error, ClientClosedError)
        assert pumps["pumps/0"] == b"on"  # as it was
        assert pumps.state.freshness is Freshness.SILENT
        with pytest.raises(ClientClosedError):
            await mirror.wait(10**6)
        with pytest.raises(ClientClosedError):
            await changes.get()
        with pytest.raises(ClientClosedError):
            await mirror.start()


async def test_the_first_event_has_all_keys_if_that_is_wanted(raft: RaftShell) -> None:
    """The first event comes without keys, too; the events after it lead to what the mirror shows."""
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client, client.kv.mirror() as mirror:
        changes = mirror.changes(initial=True)
        assert await changes.get(0) == MirrorEvent(shown(mirror).position, (), is_difference=True)
        last = (await client.kv.transaction(then={"b": "2", "a": "1"})).position
        assert await mirror.wait(last, timeout=20)
        first, *rest = await rest_of(mirror.changes(initial=True))
        assert (rest, first.index, [change.key for change in first.changes]) == ([], last.index, [b"a", b"b"])
        assert told({}, [first]) == told({}, await rest_of(changes)) == shown(mirror)


async def test_a_callback_is_told(raft: RaftShell, caplog: pytest.LogCaptureFixture) -> None:
    """By a worker of its own: it may use the client and the mirror, and one that fails is called again."""
    seen: list[int] = []
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client:
        pumps: Any = None

        def note(event: MirrorEvent) -> None:
            assert pumps.position.index >= event.index
            seen.append(event.index)
            raise ValueError("the callback's own")

        mirror = client.kv.mirror("pumps/", callback=note)
        pumps = shown(mirror)
        async with mirror:
            await asyncio.sleep(0)  # its workers begin to wait
            gc.collect()  # and none of them is collected
            for number in range(3):
                await client.kv.put("pumps/1", str(number))
            await until(lambda: len(seen) == 3)
    await until(lambda: caplog.text.count("the callback's own") >= 3)
    assert sorted(seen) == seen


async def test_it_goes_on_at_the_next_leader(raft: RaftShell) -> None:
    """While leaders are killed it never shows an older state, and every change is told once."""
    async with AsyncEmbeddedCluster(3) as cluster, raft.client(cluster.url) as client, client.kv.mirror() as mirror:
        pumps, changes = shown(mirror), mirror.changes()
        known = pumps.snapshot()
        for number in range(2):
            for key in range(5):
                await client.kv.transaction(then={f"{key}": f"{number}", f"{key - 1}": None})
            leader = await cluster.leader()
            await cluster.kill(leader)
            done = await client.kv.compare_and_set("4", f"{number}", "after")
            assert done.done
            assert await mirror.wait(done.position, timeout=20)
            await cluster.restart(leader)
        events = await rest_of(changes)
        assert [e.index for e in events] == sorted({e.index for e in events})
        assert told(known, events) == pumps.snapshot() == {b"4": b"after"}


@pytest.mark.ci
async def test_it_reads_again_what_a_leader_and_its_log_have_forgotten(
    raft: RaftShell, watch_limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that stood still, while the log was compacted and the leader was killed, is told what differs."""
    monkeypatch.setattr(RequestHorizon, "due", lambda _self, _now, wall_s, _newest_s: wall_s + 60.0)
    monkeypatch.setattr(key_value_calls, "PAGE_KEYS", 3)
    watch_limits(history_bytes=2_000, window_messages=4)
    with (
        EmbeddedCluster(3, compact_bytes=3_000, limits=StorageLimits(segment_entries=50)) as cluster,
        RaftClient(cluster.url) as writer,
    ):
        async with raft.client(cluster.url) as client, client.kv.mirror("p") as mirror:
            pumps = shown(mirror)
            last = await client.kv.transaction(then={f"p{n}": "first" for n in range(8)})
            assert await mirror.wait(last.position, timeout=20)
            changes, known, before = mirror.changes(), pumps.snapshot(), pumps.position
            # Its worker stands still: a thread that waits for this one, or a task of this loop, which is not left.
            with nullcontext() if raft.is_aio else pumps._whole:
                number = 0
                while min(writer.log_info(peer.url).first_index for peer in cluster.peers) <= before.index + 10:
                    writer.append_many([KeyValueCodec.set(f"p{n}", f"{number}") for n in range(1, 9)] * 10)
                    number += 1
                    assert number < 1_000
                writer.kv.delete("p1")
                assert pumps.snapshot() == known
                cluster.kill(cluster.leader())
                last = writer.kv.compare_and_set("p2", str(number - 1), "last")
            assert last.done
            assert await mirror.wait(last.position, timeout=20)
            assert (b"p1" in pumps, pumps["p0"], pumps["p2"]) == (False, b"first", b"last")
            assert pumps == dict(writer.kv.range("p"))
            events = await rest_of(changes)
            assert any(event.is_difference for event in events)
            assert told(known, events) == pumps
            last = writer.kv.put("p0", "again")
            assert await mirror.wait(last.position, timeout=20)
            assert (await anext(changes)).index == last.position.index


async def test_a_leader_without_room_for_watches(raft: RaftShell, watch_limits: Limits) -> None:
    """Then the log is read. It does not say what a transaction with comparisons did: the keys are read again."""
    watch_limits(watches=0)
    async with AsyncEmbeddedCluster(1) as cluster, raft.client(cluster.url) as client, client.kv.mirror() as mirror:
        pumps, changes = shown(mirror), mirror.changes()
        for number in range(3):
            await client.kv.put("a", str(number))
            assert not (await client.kv.compare_and_set("a", "other", "broken")).done
            done = await client.kv.compare_and_set("b", None if not number else str(number - 1), str(number))
            assert await mirror.wait(done.position, timeout=20)
            assert pumps == {b"a": b"%d" % number, b"b": b"%d" % number}
        assert told({}, await rest_of(changes)) == pumps


async def test_a_slow_reader_is_told_what_differs(raft: RaftShell) -> None:
    """What waits for a reader is bounded: more than that becomes one event."""
    async with (
        AsyncEmbeddedCluster(1) as cluster,
        raft.client(cluster.url) as client,
        client.kv.mirror(queue_bytes=65_536) as mirror,
    ):
        changes = mirror.changes()
        for number in range(3):
            last = await client.kv.put("a", b"%d" % number + bytes(40_000))
        assert await mirror.wait(last.position, timeout=20)
        (event,) = await rest_of(changes)
        assert (event.index, event.is_difference, len(event.changes)) == (last.position.index, True, 1)
        assert event.changes[0].previous.value is None


async def test_readers_end_with_their_mirror_and_by_themselves(raft: RaftShell) -> None:
    """A reader that waits ends when it, the mirror or the client is closed; there is one reader at a time."""
    async with AsyncEmbeddedCluster(1) as cluster:
        async with raft.client(cluster.url) as client, client.kv.mirror() as mirror:
            for close in (lambda: changes.close(), lambda: mirror.close()):
                async with mirror.changes() as changes:
                    with shown(changes)._one_reader, pytest.raises(BusyError, match="reads here"):
                        await changes.get(0)
                    reading = asyncio.ensure_future(all_of(changes))
                    await close()
                    assert await reading == []
        async with raft.client(cluster.url) as client:
            async with client.kv.mirror() as mirror, mirror.changes() as changes:
                await client.close()
                with pytest.raises(ClientClosedError):
                    await changes.get()
                await until(lambda: shown(mirror).error is not None)
            with pytest.raises(ClientClosedError):
                await client.kv.mirror().start()


async def all_of(changes: Any) -> list[Any]:
    return [event async for event in changes]


async def test_what_a_mirror_refuses(raft: RaftShell) -> None:
    """Before it is entered it shows nothing; it is not pickled, and takes no arguments that cannot be."""
    client = raft.client("tcp://127.0.0.1:9")
    mirror = shown(client.kv.mirror("a"))
    for look in (lambda: len(mirror), lambda: mirror["a"], lambda: mirror.position, mirror.snapshot, mirror.changes):
        with pytest.raises(BusyError, match="not entered"):
            look()
    assert "reading" in repr(mirror)
    with pytest.raises(PickleRefusedError):
        copy.copy(mirror)
    for wrong in ({"prefix": 5}, {"callback": 5}, {"queue_bytes": 0}, {"timeout": -1}):
        with pytest.raises(InvalidArgumentError):
            client.kv.mirror(**wrong)
    await client.open(wait=False)
    try:
        with pytest.raises(NoLeaderError):
            await client.kv.mirror(timeout=0.05).start()
    finally:
        await client.close()


def test_a_fork_has_no_mirror() -> None:
    """Nobody would keep it up to date there."""
    with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as client, client.kv.mirror() as mirror:
        mirror._engine._pid += 1  # as in a child
        try:
            with pytest.raises(ForkedClientError):
                mirror.get("a")
        finally:
            mirror._engine._pid = os.getpid()
