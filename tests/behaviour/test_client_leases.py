"""A lease as a context manager, its release, its end, and locks that are tried once, with both shells."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from typing import Any

import pytest
from support.server_clients import Gate
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
    RequestTimeoutError,
    StateStoreClient,
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

    monkeypatch.setattr("statestore_client.sync.lease.release", slow)
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
        with pytest.raises(LeaseLostError):
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


async def test_one_try_has_the_time_of_a_request(shell: Shell) -> None:
    """A single try waits as long as any request does; without an answer nothing is known, and the lock is not kept."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with shell.client(server.url, request_timeout=20) as store:
            trying = asyncio.ensure_future(store.lock("job").acquire(timeout=0))
            await asyncio.to_thread(gate.reached.wait, 10)
            await asyncio.wait([trying], timeout=0.1)
            gate.open()
            async with await trying as lease:
                assert lease.valid
        gate.shut()
        async with shell.client(server.url, request_timeout=0.2) as store:
            with pytest.raises(RequestTimeoutError, match="not acquired at once, and whether it is free is not known"):
                await store.lock("job", lease=60.0).acquire(timeout=0)
            gate.open()
            async with store.lock("job").acquire(timeout=20):  # the first claim was taken back
                pass


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), True, False, "1"])
async def test_what_is_no_time_to_wait_is_refused(shell: Shell, server: EmbeddedServer, timeout: Any) -> None:
    """Locks, elections and edits refuse an impossible time-out before anything is sent, and the message says what 0
    means."""
    async with shell.client(server.url) as store:
        for call in (
            lambda: store.lock("job").acquire(timeout=timeout),
            lambda: store.election("job").campaign(timeout=timeout),
            lambda: store.lock("job").edit("key", lambda _: b"1", timeout=timeout),
        ):
            with pytest.raises(InvalidArgumentError, match="a positive number of seconds, 0 to try once, or None"):
                await call()
        assert store.stats.requests == 0
