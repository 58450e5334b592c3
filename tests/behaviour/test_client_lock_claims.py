"""The holder of a lock as others see it, and what becomes of claims that have no answer."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from typing import Any

import pytest
from support.server_clients import Gate
from support.shells import Shell

from statestore_client import (
    AsyncStateStoreClient,
    ClosedError,
    RequestTimeoutError,
    StateStoreClient,
)
from statestore_client.server import EmbeddedServer

# -- who holds it ------------------------------------------------------------------------------------------------------


async def test_everybody_can_see_who_holds_a_lock(shell: Shell, server: EmbeddedServer) -> None:
    """An observer sees the present holder, then each change of the holder once, without the renewals in between."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        mine, theirs = store.lock("job", holder="one", lease=1.5), other.lock("job", holder="two")
        assert await mine.holder() is None
        async with mine.observe() as states:
            first = await states.get(timeout=5)
            assert first.free
            lease = await mine.acquire()
            held = await states.get(timeout=5)
            assert (held.holder, held.version) == (b"one", lease.fencing_token)
            assert await theirs.holder() == b"one"
            assert await states.get(timeout=1.1) is None  # two renewals
            await mine.release()
            assert (await states.get(timeout=5)).free
            await theirs.acquire()
            assert (await states.get(timeout=5)).holder == b"two"
        async with mine.observe() as states:
            assert (await anext(states)).holder == b"two"


async def test_closing_an_observation_ends_its_iteration(shell: Shell, server: EmbeddedServer) -> None:
    """Closing an observation, or its client, ends an iteration in another thread or task."""
    async with shell.client(server.url) as store:
        one, two = await store.lock("job").observe().start(), await store.lock("job").observe().start()

        async def states(observation: Any) -> list[Any]:
            return [state.holder async for state in observation]

        iterations = [asyncio.ensure_future(states(observation)) for observation in (one, two)]
        await asyncio.wait(iterations, timeout=0.1)
        await one.close()
        assert await asyncio.wait_for(iterations[0], 5) == [None]
        with pytest.raises(ClosedError):
            await one.get(timeout=1)
    assert await asyncio.wait_for(iterations[1], 5) == [None]


# -- claims without an answer ------------------------------------------------------------------------------------------


async def lock_is_free(store: Any) -> None:
    """Wait until nobody holds the lock; a lease of a minute would take longer than the test may."""
    async with store.lock("job").observe() as states:
        while (state := await states.get(timeout=5)) is not None and not state.free:
            pass
        assert state is not None


@pytest.mark.parametrize("method", ["acquire", "try_acquire"])
async def test_a_claim_that_timed_out_is_taken_back(shell: Shell, method: str) -> None:
    """A claim that a slow server grants after its time-out is taken back."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url, request_timeout=0.2) as store, shell.client(server.url) as other:
            lock = store.lock("job", lease=60.0)
            with pytest.raises(RequestTimeoutError):
                await (lock.acquire(timeout=0.2) if method == "acquire" else lock.try_acquire())
            gate.open()
            await lock_is_free(other)


async def test_a_claim_that_was_cancelled_is_taken_back() -> None:
    """A claim whose task was cancelled is taken back."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with AsyncStateStoreClient(server.url) as store, AsyncStateStoreClient(server.url) as other:
            task = asyncio.ensure_future(store.lock("job", lease=60.0).acquire())
            await asyncio.to_thread(gate.reached.wait, 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gate.open()
            await lock_is_free(other)


def test_a_claim_that_was_interrupted_is_taken_back() -> None:
    """A claim that Ctrl-C interrupted is taken back."""
    gate = Gate()

    def is_waiting(thread: int) -> bool:
        return any(f.filename.endswith("waiters.py") for f in traceback.extract_stack(sys._current_frames()[thread]))

    def interrupt(main: int) -> None:
        gate.reached.wait(10)
        while not is_waiting(main):
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        gate.open()

    with EmbeddedServer(authorize=gate) as server, StateStoreClient(server.url) as store:
        interrupter = threading.Thread(target=interrupt, args=(threading.get_ident(),))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            store.lock("job", lease=60.0).acquire()
        interrupter.join()
        assert store.lock("job").acquire(timeout=5).valid
