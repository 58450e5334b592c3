"""Watches and observations whose start fails, is given up, or is asked for by several, with both shells."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    ClosedError,
    NotAuthorizedError,
    RequestTimeoutError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer


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
    from statestore_client import AsyncStateStoreClient

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
    from statestore_client import AsyncStateStoreClient

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
