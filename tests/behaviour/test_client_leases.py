"""A lease as a context, its release, its end and its observers, and claims without an answer, with both shells."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import sys
import threading
import time
import traceback
from typing import Any

import pytest
from support.proxy import Proxy
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    ClosedError,
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
    RequestTimeoutError,
    StateStoreClient,
    StateStoreError,
)
from statestore_client.core import locks
from statestore_client.server import EmbeddedServer


async def test_a_lease_is_entered_and_given_back(shell: Shell, server: EmbeddedServer) -> None:
    """Leaving a lease's context releases the lock, also after an exception, and the next holder's token is newer."""
    tokens = []
    async with shell.client(server.url) as store, shell.client(server.url) as other:

        async def work(lock: Any) -> None:
            async with lock.acquire(timeout=5) as lease:
                assert await other.lock("job").holder() == lease.holder
                assert lease.valid
                tokens.append(lease.fencing_token)
                raise RuntimeError("the work failed")

        for lock in (store.lock("job", lease=60.0), other.lock("job", lease=60.0)):
            with pytest.raises(RuntimeError, match="the work failed"):
                await work(lock)
            assert await lock.holder() is None
        assert tokens[0] < tokens[1]


async def test_a_lease_that_was_awaited_may_be_entered_later(shell: Shell, server: EmbeddedServer) -> None:
    """A lease that was awaited, also from try_acquire(), may be entered later, but not after it was released."""
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=60.0)
        async with await lock.try_acquire():
            assert await lock.holder() is not None
        assert await lock.holder() is None
        lease = await lock.acquire()
        assert await lease.release()
        with pytest.raises(LeaseLostError, match="released"):
            await lease.__aenter__()


async def test_an_acquisition_is_a_coroutine_for_all_else(server: EmbeddedServer) -> None:
    """An acquisition can become a task, can have a time-out, and Python warns if nobody awaits it."""
    async with AsyncStateStoreClient(server.url) as store:
        lock = store.lock("job", lease=60.0)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(lock.acquire())
        assert await task.result().release()
        lease = await asyncio.wait_for(lock.acquire(), 5)
        waiting = asyncio.ensure_future(store.lock("job").acquire())
        await asyncio.wait([waiting], timeout=0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await lease.release()
        forgotten = lock.acquire()
        assert inspect.isawaitable(forgotten)
        with pytest.warns(RuntimeWarning, match="never awaited"):
            del forgotten
        lock.acquire().close()  # which is how to say that it is not forgotten


async def test_a_lease_is_released_once(shell: Shell, server: EmbeddedServer) -> None:
    """A lease is released once, by itself, its lock or the ``with`` statement; the other releases send nothing."""
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=60.0)
        for first in ("lease", "lock"):
            lease = await lock.acquire()
            assert await (lease if first == "lease" else lock).release(timeout=5)
            sent = store.stats.requests
            assert not await lease.release()
            assert not await lock.release()
            assert store.stats.requests == sent
        async with lock as lease:
            assert await lease.release()
        async with store.election("leader").campaign(timeout=5) as leadership:
            assert await leadership.release()


async def test_an_old_lease_releases_nothing_of_the_new_one(shell: Shell, server: EmbeddedServer) -> None:
    """Releasing an old lease does not release the new one of the same holder, which the server could not tell apart."""
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=60.0, holder="me")
        old = await lock.acquire()
        getattr(old, "target", old)._state.valid_until -= 100.0  # the machine slept
        new = await lock.acquire()
        assert not await old.release()
        await old.__aexit__(None, None, None)
        assert await lock.holder() == b"me"
        assert await new.release()


def test_a_new_claim_follows_a_release_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An acquisition waits until another thread has released a lost lease of the same lock: the release would free the
    new lease."""
    begun, go_on = threading.Event(), threading.Event()
    real = locks.release

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return real(*arguments)

    monkeypatch.setattr("statestore_client.sync.leases.release", slow)
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        lock = store.lock("job", lease=60.0, holder="me")
        old = lock.acquire()
        old._state.valid_until -= 100.0  # the machine slept
        threads = [threading.Thread(target=old.release), threading.Thread(target=lock.acquire)]
        threads[0].start()
        assert begun.wait(10)
        threads[1].start()
        threads[1].join(0.2)  # if it does not wait for the release, it has the lock by now
        go_on.set()
        for thread in threads:
            thread.join(10)
        assert lock.holder() == b"me"
        monkeypatch.undo()
        assert lock.release()


async def test_an_end_is_told_by_its_event_also_when_nothing_is_lost(shell: Shell, server: EmbeddedServer) -> None:
    """``ended`` is set at a release and at a loss, and ``lost`` at a loss only."""
    async with shell.client(server.url) as store:
        async with store.lock("job") as lease:
            assert not lease.ended.is_set()
        assert lease.ended.is_set()
        lease = await store.lock("job", lease=60.0).acquire()
        await store.set("job", b"thief")
        with pytest.raises(LeaseLostError, match="somebody else"):
            await lease.next_token()
        assert lease.ended.is_set()
        assert not hasattr(lease, "lost")


async def test_a_release_without_an_answer_fails_no_work(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """A release without an answer is logged when a context is left, and raised by release(); the lock frees itself."""
    gate = Gate()
    gate.open()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url, request_timeout=0.2) as store:
            with caplog.at_level(logging.WARNING):
                async with store.lock("job", lease=60.0).acquire(timeout=5):
                    gate.shut()
            assert "the lock job was not released: no answer within" in caplog.text
            gate.open()
            lease = await store.lock("another", lease=60.0).acquire(timeout=5)
            gate.shut()
            with pytest.raises(RequestTimeoutError):
                await lease.release()
            gate.open()


async def test_a_lost_lease_holds_up_nobody_who_leaves_its_block(shell: Shell) -> None:
    """The error of guarded work, that the lease is lost, is not held up by a server that gives no answer."""
    gate = Gate()
    gate.open()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url, request_timeout=20.0) as store:
            left: list[float] = []

            async def work() -> None:
                async with store.lock("job", lease=1.0).acquire(timeout=5) as lease:
                    gate.shut()
                    await until(lambda: not lease.valid)
                    left.append(time.monotonic())
                    lease.check()

            with pytest.raises(LeaseLostError):
                await work()
            assert time.monotonic() - left[0] < 5.0, "it waited for an answer, as long as for any other"
            gate.open()


# -- tried once --------------------------------------------------------------------------------------------------------


async def test_a_time_out_of_zero_tries_once(shell: Shell, server: EmbeddedServer) -> None:
    """A time-out of zero sends one request, for locks, elections and edits."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        lock, election = store.lock("job", lease=60.0), store.election("leader", term=60.0)
        async with lock.acquire(timeout=0), election.campaign(timeout=0.0):
            assert store.stats.requests == 2
            with pytest.raises(LockNotAcquiredError, match="the lock job was not free at once"):
                await other.lock("job").acquire(timeout=0)
            with pytest.raises(LockNotAcquiredError, match="the election leader was not won at once: another one"):
                await other.election("leader").campaign(timeout=0)
            with pytest.raises(LockNotAcquiredError, match="the lock job was not free at once"):
                await other.lock("job").edit("key", lambda _: b"1", timeout=0)
            assert other.stats.requests == 3
        assert (await other.lock("job").edit("key", lambda _: b"1", timeout=0)).value == b"1"


async def test_what_is_no_time_to_wait_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """Locks, elections and edits refuse an impossible time-out before anything is sent, and the message says what 0
    means."""
    async with shell.client(server.url) as store:
        for timeout in (-1, -0.001, float("nan"), True, False, "1"):
            for call in (
                lambda timeout=timeout: store.lock("job").acquire(timeout=timeout),
                lambda timeout=timeout: store.election("job").campaign(timeout=timeout),
                lambda timeout=timeout: store.lock("job").edit("key", lambda _: b"1", timeout=timeout),
            ):
                with pytest.raises(InvalidArgumentError, match="a positive number of seconds, 0 to try once, or None"):
                    await call()
        assert store.stats.requests == 0


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


async def test_observing_a_free_lock_begins_at_once(shell: Shell, server: EmbeddedServer) -> None:
    """That a lock is free is known when the observation is entered: nobody waits for a holder."""
    took: list[float] = []
    async with shell.client(server.url) as store:
        for number in range(3):
            began = time.monotonic()
            async with store.lock(f"free/{number}").observe() as states:
                took.append(time.monotonic() - began)
                assert (await states.get(timeout=0)).holder is None
    assert min(took) < 0.5


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


# -- claims and releases without an answer -----------------------------------------------------------------------------


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
        return any(f.filename.endswith("primitives.py") for f in traceback.extract_stack(sys._current_frames()[thread]))

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
        with store.lock("job").acquire(timeout=5) as lease:
            assert lease.valid


async def test_a_claim_that_was_given_up_is_taken_back_however_late(shell: Shell, server: EmbeddedServer) -> None:
    """A claim that was given up without an answer is taken back, however many other requests are in front of that."""
    async with (
        Proxy(server.port) as proxy,
        shell.client(server.url) as other,
        shell.client(proxy.url, max_in_flight=2, request_timeout=20) as store,
    ):
        proxy.hold("down")
        acquiring = asyncio.ensure_future(store.lock("lock", lease=120).acquire(timeout=0.3))
        await until(lambda: store.stats.requests == 1)
        others = [asyncio.ensure_future(store.get("key")) for _ in range(5)]
        with pytest.raises(StateStoreError):
            await acquiring
        proxy.flow("down")
        await asyncio.gather(*others)
        async with other.lock("lock").acquire(timeout=20):  # long before the lease would have ended
            pass


async def test_a_release_that_was_cancelled_still_releases(server: EmbeddedServer) -> None:
    """A release whose task is cancelled while it waits for room in the window is sent all the same."""
    async with (
        Proxy(server.port) as proxy,
        AsyncStateStoreClient(server.url) as other,
        AsyncStateStoreClient(proxy.url, max_in_flight=2, request_timeout=20) as store,
    ):
        lock = store.lock("lock", lease=120)
        await lock.acquire()
        proxy.hold("down")
        before = store.stats.requests
        others = [asyncio.ensure_future(store.get("key")) for _ in range(5)]
        releasing = asyncio.ensure_future(lock.release())
        await until(lambda: store.stats.requests == before + 6)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        proxy.flow("down")
        await asyncio.gather(*others)
        async with other.lock("lock").acquire(timeout=20):  # long before the lease would have ended
            pass
