"""Watches and observations of locks: what they tell, how they start and end, and who may read, with both shells."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    BusyError,
    ClosedError,
    InvalidArgumentError,
    Item,
    NotAuthorizedError,
    RequestTimeoutError,
    StateStoreClient,
    WatchEvent,
    WatchOverflowError,
)
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


async def test_a_slow_reader_gets_the_latest_or_an_error(shell: Shell, server: EmbeddedServer) -> None:
    """A reader that is behind gets the latest events, the first of them marked; or those queued first, then an error
    each time."""
    async with (
        shell.client(server.url) as store,
        store.watch("barrier") as barrier,
        store.watch("key", max_queued=3) as latest,
        store.watch("key", max_queued=3, overflow="error") as strict,
    ):
        await store.set_many(("key", b"%d" % i) for i in range(10))
        await store.set("barrier", b"")
        await barrier.get(timeout=5)
        seen = [await latest.get(timeout=5) for _ in range(3)]
        assert [(e.value, e.missed) for e in seen] == [(b"7", True), (b"8", False), (b"9", False)]
        assert await latest.get(timeout=0.05) is None
        assert [(await strict.get(timeout=5)).value for _ in range(3)] == [b"0", b"1", b"2"]
        for _ in range(2):
            with pytest.raises(WatchOverflowError, match="more than 3 events behind"):
                await strict.get(timeout=5)


async def test_an_impossible_time_to_wait_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """Watches and observations refuse an impossible time-out, and 0 is a look without waiting."""
    async with (
        shell.client(server.url) as store,
        store.watch("key") as events,
        store.lock("lock", lease=5).observe() as states,
    ):
        for get in (events.get, states.get):  # the present state comes first, whatever it is that is asked
            for timeout in (-1, math.nan, "1", True):
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


# -- starts that fail, are given up, or are asked for by several -------------------------------------------------------


async def test_a_watch_that_timed_out_can_be_started_again(shell: Shell) -> None:
    """After a start that timed out nothing is handed out; a second start watches, and every later change comes once."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            events = store.watch("key", initial=True, timeout=0.2)
            with pytest.raises(RequestTimeoutError, match="could not be started within"):
                await events.start()
            with pytest.raises(BusyError, match="was not started"):
                await asyncio.wait_for(events.get(), 5)
            gate.open()
            await store.set("key", b"1", timeout=10)
            await events.start()
            await store.set("key", b"2")
            assert [(await events.get(timeout=5)).value for _ in range(2)] == [b"1", b"2"]
            assert await events.get(timeout=0.05) is None
            await events.close()


async def test_a_callback_is_called_after_a_second_start(shell: Shell) -> None:
    """After a second start the callback is called, by the worker of that start."""
    gate = Gate()
    seen: list[bytes] = []
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            events = store.watch("key", timeout=0.2, callback=lambda event: seen.append(event.value))
            with pytest.raises(RequestTimeoutError):
                await events.start()
            gate.open()
            async with events:
                await store.set("key", b"1", timeout=10)
                await until(lambda: seen == [b"1"])


async def test_an_observation_that_timed_out_tells_who_holds_the_lock_when_started_again(shell: Shell) -> None:
    """An observation that timed out and is started again never reports a lock free that another client holds."""
    gate = Gate()
    gate.open()
    with EmbeddedServer(authorize=lambda *call: gate(*call)) as server:
        async with (
            shell.client(server.url) as holder,
            shell.client(server.url, request_timeout=0.2) as store,
            holder.lock("lock", holder=b"somebody", lease=60),
        ):
            gate = Gate()
            observation = store.lock("lock").observe()
            with pytest.raises(RequestTimeoutError):
                await observation.start()
            with pytest.raises(BusyError, match="was not started"):
                await asyncio.wait_for(observation.get(), 5)
            gate.open()
            await holder.get("key", timeout=10)  # the server has gone on
            await observation.start()
            assert (await observation.get(timeout=5)).holder == b"somebody"
            await observation.close()


async def test_a_cancelled_start_can_be_repeated(server: EmbeddedServer) -> None:
    """A watch and an observation whose start was cancelled begin when they are started again."""
    async with AsyncStateStoreClient(server.url) as store, store.lock("lock", holder=b"me"):
        events, observation = store.watch("key"), store.lock("lock").observe()
        for thing in (events, observation):
            task = asyncio.ensure_future(thing.start())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await thing.start()
        assert (await observation.get(timeout=5)).holder == b"me"
        await store.set("key", b"1")
        assert (await events.get(timeout=5)).value == b"1"


def test_an_interrupted_start_can_be_repeated() -> None:
    """A watch whose start Ctrl-C interrupted is not started, and begins when it is started again."""
    gate = Gate()

    def interrupt() -> None:
        gate.reached.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    with EmbeddedServer(authorize=gate) as server, StateStoreClient(server.url) as store:
        interrupter = threading.Thread(target=interrupt)
        interrupter.start()
        events = store.watch("key", timeout=None)
        with pytest.raises(KeyboardInterrupt):
            events.start()
        interrupter.join()
        gate.open()
        with events:
            store.set("key", b"1", timeout=10)
            event = events.get(timeout=5)
            assert event is not None
            assert event.value == b"1"


async def test_a_refused_watch_can_be_started_again_when_it_is_allowed(shell: Shell) -> None:
    """A refused watch can be started again once it is allowed, and the old refusal does not end it."""
    allowed = False

    def may(_client_id: str, _command: Any) -> bool:
        return allowed

    with EmbeddedServer(authorize=may) as server:
        async with shell.client(server.url) as store:
            events = store.watch("key")
            with pytest.raises(NotAuthorizedError):
                await events.start()
            allowed = True
            await events.start()
            await store.set("key", b"1")
            assert (await events.get(timeout=5)).value == b"1"
            assert events.error is None
            await events.close()


async def test_closing_a_watch_that_begins_ends_its_start(shell: Shell) -> None:
    """Closing a watch wakes the caller that waits in start(), and nothing is watched."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            events = store.watch("key", timeout=None)
            starting = asyncio.ensure_future(events.start())
            await until(gate.reached.is_set)
            await events.close()
            with pytest.raises(ClosedError, match="the watch is closed"):
                await asyncio.wait_for(starting, 5)
            with pytest.raises(ClosedError, match="the watch is closed"):
                await events.get(timeout=1)
            gate.open()
            await store.get("key", timeout=10)
            assert not getattr(store, "target", store)._engine._machine.watching


async def test_several_may_start_one_watch(shell: Shell) -> None:
    """Several callers may start one watch: each returns when it stands, and every change comes once."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url) as store:
            events = store.watch("key", timeout=None)
            starts = [asyncio.ensure_future(events.start()) for _ in range(3)]
            await until(gate.reached.is_set)
            assert not any(start.done() for start in starts)
            gate.open()
            await asyncio.wait_for(asyncio.gather(*starts), 10)
            await store.set("key", b"1")
            assert (await events.get(timeout=5)).value == b"1"
            assert await events.get(timeout=0.05) is None
            await events.close()


async def test_who_waits_for_a_start_that_is_given_up_begins_himself() -> None:
    """When the first of two tasks in start() is cancelled, the second one's start still watches."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with AsyncStateStoreClient(server.url) as store:
            events = store.watch("key", timeout=None)
            first, second = (asyncio.ensure_future(events.start()) for _ in range(2))
            await until(gate.reached.is_set)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gate.open()
            await asyncio.wait_for(second, 10)
            await store.set("key", b"1")
            assert (await events.get(timeout=5)).value == b"1"


# -- readers that only look --------------------------------------------------------------------------------------------


async def leaves_turns(take: Callable[[], Awaitable[Any]]) -> None:
    """A timer that is due runs although somebody polls without a pause."""
    rang = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, rang.set)
    polls = 0
    while not rang.is_set():
        await take()
        polls += 1
        assert polls < 200_000, "the timer that was due never ran"


async def test_a_task_that_only_looks_leaves_turns_to_others(server: EmbeddedServer) -> None:
    """A task that reads with a time-out of 0 lets other tasks run, with or without events to read."""
    async with AsyncStateStoreClient(server.url) as store:
        watch, observation = store.watch("key", max_queued=10_000), store.lock("lock").observe()
        async with watch, observation:
            assert await observation.get(timeout=0) is not None
            await leaves_turns(lambda: watch.get(timeout=0))
            await leaves_turns(lambda: observation.get(timeout=0))
            await store.set("key", b"1")
            await leaves_turns(lambda: watch.get(timeout=0))


@pytest.mark.parametrize("what", ["watch", "observation"])
async def test_a_reader_that_only_looks_hears_of_everything(shell: Shell, server: EmbeddedServer, what: str) -> None:
    """A reader with a time-out of 0 gets every event, although somebody else reads the socket."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        lock = store.lock("key")
        async with store.watch("key") if what == "watch" else lock.observe() as reader:
            if what == "observation":
                assert await reader.get(timeout=0) is not None
            await other.set("key", b"1")
            deadline = time.monotonic() + 20
            while (await reader.get(timeout=0)) is None:
                assert time.monotonic() < deadline


# -- one reader at a time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["watch", "observation"])
async def test_a_watch_has_one_reader(shell: Shell, server: EmbeddedServer, kind: str) -> None:
    """A second reader of a watch is refused at once and takes nothing; after the first has ended another may follow."""
    async with (
        shell.client(server.url) as store,
        store.watch("key") if kind == "watch" else store.lock("key").observe() as readable,
    ):
        if kind == "observation":
            assert (await readable.get(timeout=5)).free
        readers = {asyncio.ensure_future(readable.get(timeout=20)) for _ in range(3)}
        while len(readers) > 1:
            refused, readers = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            for reader in refused:
                with pytest.raises(BusyError, match=r"another (thread|task) reads here at this moment"):
                    await reader
        await store.set("key", b"1")
        assert await readers.pop() is not None
        await store.set("key", b"2")
        assert await anext(readable) is not None


async def test_a_reader_that_was_cancelled_leaves_its_place(server: EmbeddedServer) -> None:
    """After a reader is cancelled, the next one may read."""
    async with AsyncStateStoreClient(server.url) as store, store.watch("key") as events:
        for _ in range(2):
            reading = asyncio.ensure_future(events.get())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await store.set("key", b"1")
        assert (await events.get(timeout=5)) is not None


def test_a_reader_in_another_thread_may_follow() -> None:
    """A reader in another thread may follow when the first has got its event."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store, store.watch("key", initial=True) as events:
        store.set("key", b"1")
        for _ in range(3):
            thread = threading.Thread(target=events.get, kwargs={"timeout": 0.01})
            thread.start()
            thread.join(10)
        store.set("key", b"2")
        assert events.get(timeout=5) is not None
