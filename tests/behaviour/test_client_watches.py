"""Watches, with both shells."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import BusyError, ClosedError, InvalidArgumentError, Item, WatchEvent, WatchOverflowError
from statestore_client.server import EmbeddedServer


async def test_a_watcher_sees_every_change_in_order(shell: Shell, server: EmbeddedServer) -> None:
    """A watch sees sets and deletions in order with their versions, by any client, and those of no other key."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        await store.set("key", b"before")
        async with store.watch("key") as events:
            assert events.key == b"key"
            versions = []
            for i in range(50):
                versions.append((await other.set("key", b"%d" % i)).version)
                await other.set("key2", b"")
            gone = await other.delete("key")
            seen = [await events.get(timeout=5) for _ in range(51)]
            assert seen[:50] == [WatchEvent("set", b"key", b"%d" % i, versions[i]) for i in range(50)]
            assert (seen[50].kind, seen[50].value) == ("delete", None)
            assert seen[50].version >= gone.version
            assert await events.get(timeout=0.05) is None


async def test_initial_delivers_the_present_value_first(shell: Shell, server: EmbeddedServer) -> None:
    """With ``initial`` the present value comes first, and a missing key has none."""
    async with shell.client(server.url) as store:
        version = (await store.set("key", b"1")).version
        async with store.watch("key", initial=True) as events, store.watch("nothing", initial=True) as silent:
            assert await events.get(timeout=5) == WatchEvent("set", b"key", b"1", version)
            await store.set("key", b"2")
            assert (await events.get(timeout=5)).value == b"2"
            assert await silent.get(timeout=0.05) is None


async def test_initial_leaves_no_gap(shell: Shell, server: EmbeddedServer) -> None:
    """With ``initial`` a watch that begins during writes sees a run of values without a hole."""
    async with shell.client(server.url) as store, shell.client(server.url) as writer:
        stop = asyncio.Event()

        async def write() -> int:
            i = 0
            while not stop.is_set():
                i += 1
                await writer.set("key", b"%d" % i)
            return i

        writing = asyncio.ensure_future(write())
        for _ in range(10):
            async with store.watch("key", initial=True) as events:
                values = [int((await events.get(timeout=5)).value) for _ in range(5)]
                assert values == list(range(values[0], values[0] + 5))
        stop.set()
        assert await writing > 0


async def test_watches_of_one_key_share_and_end_separately(shell: Shell, server: EmbeddedServer) -> None:
    """Two watches of one key see the same; closing one leaves the other, and the last one sends STOP."""
    async with shell.client(server.url) as store:
        async with store.watch("key") as one:
            await store.set("key", b"1")
            async with store.watch("key", initial=True) as two:
                assert (await two.get(timeout=5)).value == b"1"
                await store.set("key", b"2")
                assert [(await one.get(timeout=5)).value for _ in range(2)] == [b"1", b"2"]
                assert (await two.get(timeout=5)).value == b"2"
            await store.set("key", b"3")
            assert (await one.get(timeout=5)).value == b"3"
        before = store.stats.late_or_unknown_replies
        await store.set("key", b"4")
        await store.get("key")
        assert store.stats.late_or_unknown_replies == before


async def test_many_watches_begin_at_once(shell: Shell, server: EmbeddedServer) -> None:
    """100 watches on as many keys, started together, cost one KEYNOTIFY each."""
    async with shell.client(server.url) as store:
        watches = await asyncio.gather(*(store.watch(f"k{i}", timeout=10).start() for i in range(100)))
        assert store.stats.requests == 100
        await store.set_many((f"k{i}", b"%d" % i) for i in range(100))
        assert [(await w.get(timeout=5)).value for w in watches] == [b"%d" % i for i in range(100)]
        for watch in watches:
            await watch.close()


async def test_watching_again_at_once_misses_nothing(shell: Shell, server: EmbeddedServer) -> None:
    """A watch that ends and begins again and again misses nothing after each start."""
    async with shell.client(server.url) as store:
        for i in range(50):
            async with store.watch("key") as events:
                await store.set("key", b"%d" % i)
                assert (await events.get(timeout=5)).value == b"%d" % i


async def test_closing_a_watch_ends_its_iteration(shell: Shell, server: EmbeddedServer) -> None:
    """Closing the watch or the client ends an iteration in another thread or task."""
    async with shell.client(server.url) as store:
        one, two = await store.watch("key").start(), await store.watch("key").start()

        async def values(watch: object) -> list[bytes]:
            return [event.value async for event in watch]

        iterations = [asyncio.ensure_future(values(w)) for w in (one, two)]
        await store.set("key", b"1")
        await store.set("key", b"2")
        async with store.watch("key", initial=True) as events:
            await events.get(timeout=5)
        await asyncio.wait(iterations, timeout=0.1)
        assert not any(task.done() for task in iterations)
        await one.close()
        assert (await asyncio.wait_for(iterations[0], 5)) in ([b"1", b"2"], [b"1"], [])
        await one.close()
        with pytest.raises(ClosedError):
            await one.get(timeout=1)
        with pytest.raises(ClosedError):
            await one.start()
    assert await asyncio.wait_for(iterations[1], 5) == [b"1", b"2"]


async def test_a_slow_reader_gets_the_latest_and_hears_of_the_loss(shell: Shell, server: EmbeddedServer) -> None:
    """With overflow "latest" the oldest events are dropped, and the event after the gap is marked as missed."""
    async with (
        shell.client(server.url) as store,
        store.watch("barrier") as barrier,
        store.watch("key", max_queued=3) as events,
    ):
        for i in range(10):
            await store.set("key", b"%d" % i)
        await store.set("barrier", b"")
        await barrier.get(timeout=5)
        seen = [await events.get(timeout=5) for _ in range(3)]
        assert [(e.value, e.missed) for e in seen] == [(b"7", True), (b"8", False), (b"9", False)]
        assert await events.get(timeout=0.05) is None


async def test_a_slow_reader_can_ask_for_an_error(shell: Shell, server: EmbeddedServer) -> None:
    """With overflow "error" the queued events come out, then WatchOverflowError each time."""
    async with (
        shell.client(server.url) as store,
        store.watch("barrier") as barrier,
        store.watch("key", max_queued=3, overflow="error") as events,
    ):
        for i in range(10):
            await store.set("key", b"%d" % i)
        await store.set("barrier", b"")
        await barrier.get(timeout=5)
        assert [(await events.get(timeout=5)).value for _ in range(3)] == [b"0", b"1", b"2"]
        for _ in range(2):
            with pytest.raises(WatchOverflowError, match="more than 3 events behind"):
                await events.get(timeout=5)


async def test_a_watch_has_to_be_started(shell: Shell, server: EmbeddedServer) -> None:
    """Reading a watch that was never started is an error, because it would wait for ever."""
    async with shell.client(server.url) as store:
        with pytest.raises(BusyError, match="not started"):
            await store.watch("key").get(timeout=1)


async def test_an_expired_key_is_a_delete(shell: Shell, server: EmbeddedServer) -> None:
    """A watch sees the expiry of a key as a deletion."""
    async with shell.client(server.url) as store, store.watch("key") as events:
        done = await store.set("key", b"1", expiry=60)
        await events.get(timeout=5)
        server.clock.advance(60)
        gone = await events.get(timeout=5)
        assert gone.kind == "delete"
        assert gone.version > done.version


async def test_waiting_for_ever_and_a_day_is_no_error(shell: Shell, server: EmbeddedServer) -> None:
    """A time-out beyond what the operating system can wait is waited for as long as it can."""
    async with shell.client(server.url) as store, store.watch("key") as events:
        waiting = asyncio.ensure_future(events.get(timeout=1e300))
        await asyncio.wait([waiting], timeout=0.05)
        await store.set("key", b"1")
        assert (await asyncio.wait_for(waiting, 5)).value == b"1"


@pytest.mark.parametrize("timeout", [-1, -0.1, math.nan, "1", True])
async def test_an_impossible_time_to_wait_is_refused(shell: Shell, server: EmbeddedServer, timeout: Any) -> None:
    """Watches and observations refuse an impossible time-out, and 0 is a look without waiting."""
    async with (
        shell.client(server.url) as store,
        store.watch("key") as events,
        store.lock("lock", lease=5).observe() as states,
    ):
        for get in (events.get, states.get):  # the present state comes first, whatever it is that is asked
            with pytest.raises(InvalidArgumentError, match="timeout must be"):
                await asyncio.wait_for(get(timeout), 5)
        assert await states.get(0) is not None
        assert await states.get(0) is None
        assert await events.get(0) is None


async def test_a_callback_gets_every_event_and_may_use_the_client(shell: Shell, server: EmbeddedServer) -> None:
    """A watch's own worker calls its callback in order, goes on after an exception, and holds up no other watch."""
    seen: list[bytes] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async with shell.client(server.url) as store:
        client = getattr(store, "target", store)

        def took(event: WatchEvent, answer: Item) -> None:
            seen.append(event.value)
            assert answer.version >= event.version
            if event.value == b"3":
                loop.call_soon_threadsafe(done.set)
            if event.value == b"1":
                raise RuntimeError("this event is too much")

        async def on_change(event: WatchEvent) -> None:
            took(event, await client.get("key"))

        def on_change_blocking(event: WatchEvent) -> None:
            took(event, client.get("key"))

        callback = on_change if shell.is_aio else on_change_blocking
        async with store.watch("key", callback=callback) as events, store.watch("key") as other:
            for n in (1, 2, 3):
                await store.set("key", b"%d" % n)
            assert [(await other.get(timeout=5)).value for _ in range(3)] == [b"1", b"2", b"3"]
            await asyncio.wait_for(done.wait(), 5)
            with pytest.raises(BusyError, match="callback"):
                await events.get(timeout=1)
            assert events.error is None
    assert seen == [b"1", b"2", b"3"]
    assert isinstance(events.error, ClosedError) or events.error is None


async def test_a_blocking_watch_loses_nothing(shell: Shell, server: EmbeddedServer) -> None:
    """With overflow "block" the reader gets everything in order, and the client acknowledges nothing meanwhile."""
    async with shell.client(server.url) as store, shell.client(server.url) as writer:
        async with store.watch("key", max_queued=3, overflow="block") as events:
            await writer.set_many(("key", b"%d" % i) for i in range(200))
            seen = [await events.get(timeout=5) for _ in range(200)]
            assert [(e.value, e.missed) for e in seen] == [(b"%d" % i, False) for i in range(200)]
        assert (await store.get("key")).value == b"199"
