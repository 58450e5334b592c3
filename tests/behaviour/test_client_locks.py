"""Locks beyond the basics (those stand in test_client_fencing), with both shells."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    FencingTokenTooOldError,
    LeaseLostError,
)
from statestore_client.core.actions import Notify
from statestore_client.server import EmbeddedServer


async def lost(lease: Any) -> None:
    """Until the lease has ended; in the blocking shell that is a thread's event."""
    event = lease.ended
    if isinstance(event, asyncio.Event):
        await asyncio.wait_for(event.wait(), 5)
    else:
        assert await asyncio.to_thread(event.wait, 5)


# -- the lease ---------------------------------------------------------------------------------------------------------


async def test_a_lease_tells_how_long_it_can_be_relied_upon(shell: Shell, server: EmbeddedServer) -> None:
    """A lease's remaining time counts from before its request, less a margin, on time.monotonic()'s clock."""
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=10.0, holder="me")
        before = time.monotonic()
        lease = await lock.acquire()
        after = time.monotonic()
        assert before + 9.79 <= lease.valid_until <= after + 9.8
        assert 9.0 < lease.remaining <= 9.8
        assert (lock.name, lease.name, lease.holder) == ("job", "job", b"me")
        await lock.release()
        assert lease.remaining == 0.0


async def test_a_loss_is_told(shell: Shell, server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    """A loss sets the event and calls each callback once, also one added later, and whatever another one raises."""
    told: list[LeaseLostError] = []

    def fail(error: LeaseLostError) -> None:
        raise RuntimeError("a callback's own mistake")

    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=3.0)
        lease = await lock.acquire()
        lease.on_lost(fail)
        lease.on_lost(told.append)
        await store.set("job", b"thief")
        await lost(lease)
        await until(lambda: bool(told))
        lease.on_lost(told.append)
        assert [str(error) for error in told] == ["somebody else holds the lock"] * 2
        assert "a callback for the loss of the lease on job failed" in caplog.text
        assert not await lock.release()
        assert len(told) == 2


@pytest.mark.parametrize("renew", [True, False])
async def test_who_looks_first_does_not_keep_it_from_others(shell: Shell, server: EmbeddedServer, renew: bool) -> None:
    """Looking at an ended lease marks it as lost, and the callbacks are still called once."""
    told: list[LeaseLostError] = []
    async with shell.client(server.url) as store:
        before = keepers()
        lease = await store.lock("job", lease=0.2, renew=renew).acquire()
        lease.on_lost(told.append)
        getattr(lease, "target", lease)._state.valid_until -= 100.0  # the machine slept
        assert not lease.valid
        await until(lambda: bool(told))
        await lost(lease)
        await until(lambda: keepers() <= before)
    assert len(told) == 1


async def test_an_answer_that_comes_after_the_end_is_given_back(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal whose answer comes after the end, as when the machine slept, is given back."""
    slept = [0.0]
    for module in (f"{shell.name}.lease", f"{shell.name}.steps"):
        monkeypatch.setattr(f"statestore_client.{module}.elapsed", lambda: time.monotonic() + slept[0])
    with EmbeddedServer(faults=True) as server:
        async with shell.client(server.url) as store:
            lease = await store.lock("job", lease=0.9).acquire()
            server.faults.delay("PUBLISH", 0.2, by="server")
            await until(lambda: store.stats.requests == 2)
            slept[0] = 100.0
            assert not lease.valid
            await until(lambda: store.stats.requests == 3)
            assert await store.get("job") is None


async def test_a_release_is_no_loss(shell: Shell, server: EmbeddedServer) -> None:
    """A release sets the event, so that work that waits for it ends, and calls no callback for a loss."""
    told: list[LeaseLostError] = []
    async with shell.client(server.url) as store:
        async with store.lock("job") as lease:
            lease.on_lost(told.append)
        await lost(lease)
        lease.on_lost(told.append)
        with pytest.raises(LeaseLostError, match="released"):
            lease.check()
    assert told == []


async def test_newer_tokens_grow_and_stay_below_the_next_holders(shell: Shell, server: EmbeddedServer) -> None:
    """Newer tokens grow while the lock is held and renewed, and stay below the next holder's; the lease's own stays as
    it was."""
    async with shell.client(server.url) as store:
        async with store.lock("job", lease=3.0) as lease:
            first, ends = lease.fencing_token, lease.valid_until
            tokens = [await lease.next_token() for _ in range(10)]
            await until(lambda: lease.valid_until > ends)  # the keeper has renewed it, too
            tokens += [await lease.next_token() for _ in range(10)]
            assert lease.fencing_token == first
            await store.set("batch", b"1", fencing_token=tokens[-1])
            with pytest.raises(FencingTokenTooOldError):
                await store.set("batch", b"2", fencing_token=tokens[-2])
        assert [first, *tokens] == sorted({first, *tokens})
        async with store.lock("job") as following:
            assert following.fencing_token > tokens[-1]
        with pytest.raises(LeaseLostError, match="released"):
            await lease.next_token()


async def test_a_refused_token_is_a_lost_lease(shell: Shell, server: EmbeddedServer) -> None:
    """A lease whose newer token is refused, because somebody else holds the lock, is lost at once."""
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=60.0).acquire()
        await store.set("job", b"thief")
        with pytest.raises(LeaseLostError, match="somebody else"):
            await lease.next_token()
        assert lease.ended.is_set()


def keepers() -> set[object]:
    """The threads and tasks that renew leases, or watch the clock for them."""
    threads = {thread for thread in threading.enumerate() if thread.name == "statestore lease"}
    return threads | {task for task in asyncio.all_tasks() if task.get_name() == "statestore lease"}


async def test_nobody_renews_after_the_end(shell: Shell, server: EmbeddedServer) -> None:
    """After a release or a loss no thread, task, request or work for the processor is left of the lease."""
    async with shell.client(server.url) as store:
        before = keepers()
        async with store.lock("released", lease=0.3):
            assert len(keepers() - before) == 2  # one renews, one watches the clock
        stolen = await store.lock("stolen", lease=0.3).acquire()
        await store.set("stolen", b"thief")
        await lost(stolen)
        async with store.watch("released") as events:
            await until(lambda: keepers() <= before)
            sent, spent = store.stats.requests, time.process_time()
            assert await events.get(timeout=0.5) is None
            assert store.stats.requests == sent
            assert time.process_time() - spent < 0.2


async def test_holding_and_waiting_keep_no_processor_busy(shell: Shell, server: EmbeddedServer) -> None:
    """Half a second of holding and waiting, with renewals, costs a small part of that in processor time, server
    included."""
    async with shell.client(server.url) as store, store.lock("job", lease=0.4):
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=30))
        await until(lambda: store.stats.requests >= 4)
        spent = time.process_time()
        await asyncio.wait([waiting], timeout=0.5)
        assert time.process_time() - spent < 0.2
        waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_closing_the_client_ends_its_leases(shell: Shell, server: EmbeddedServer) -> None:
    """close() ends the client's leases at once and calls their callbacks, and leaves no thread or task."""
    told: list[LeaseLostError] = []
    before = keepers()
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=3600.0).acquire()
        lease.on_lost(told.append)
    assert lease.ended.is_set()
    assert [str(error) for error in told] == ["the client was closed"]
    await until(lambda: keepers() <= before)


# -- one object, one contender -----------------------------------------------------------------------------------------


async def test_one_object_acquires_once_at_a_time(shell: Shell, server: EmbeddedServer) -> None:
    """One lock object refuses a second acquisition at the same time, which the server would grant to the same
    holder."""
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        async with one.lock("job") as lease:
            lock = two.lock("job")
            waiting = asyncio.ensure_future(lock.acquire(timeout=20))
            await until(lambda: two.stats.requests >= 2)
            for call in (lock.acquire, lock.try_acquire):
                with pytest.raises(BusyError, match=r"another (thread|task) acquires"):
                    await call()
        assert (await waiting).fencing_token > lease.fencing_token


async def test_after_a_loss_the_same_object_may_acquire_again(shell: Shell, server: EmbeddedServer) -> None:
    """After a loss the same object may acquire without a release; the old lease stays lost and does not disturb the new
    one."""
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=0.3, holder="me")
        old = await lock.acquire()
        await store.set("job", b"thief")
        await lost(old)
        await store.delete("job")
        new = await lock.acquire(timeout=5)
        first_end = new.valid_until
        await until(lambda: new.valid_until > first_end)
        assert new.valid
        assert not old.valid
        assert new.fencing_token > old.fencing_token
        assert await lock.release()


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_lost_notification_is_made_up_for(shell: Shell, server: EmbeddedServer) -> None:
    """A waiter whose watch brings nothing looks again within a second."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        holder = other.lock("job", lease=30.0)
        await holder.acquire()
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=20))
        await until(lambda: store.stats.requests >= 3)
        engine = getattr(store, "target", store)._engine
        engine._link.actions._handlers[Notify] = lambda _action: None  # the notification is lost
        await holder.release()
        released = time.monotonic()
        assert (await waiting).valid
        assert time.monotonic() - released < 1.5


async def test_hand_over_is_quick(shell: Shell, server: EmbeddedServer) -> None:
    """A hand-over takes no longer than a notification and a request, also on a busy machine."""
    times = []
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        held, free = one.lock("job", lease=30.0), two.lock("job", lease=30.0)
        await held.acquire()
        for _ in range(15):
            waiting = asyncio.ensure_future(free.acquire(timeout=20))
            async with free.observe():  # by now it watches, too
                await asyncio.wait([waiting], timeout=0.02)
            began = time.monotonic()
            await held.release()
            await waiting
            times.append(time.monotonic() - began)
            held, free = free, held
    assert sorted(times)[len(times) // 2] < 0.25


async def test_a_herd_asks_once_each_at_most(server: EmbeddedServer, executor: Any) -> None:
    """A hand-over among 200 waiters of four clients costs fewer requests than waiters, and each wins in the end. (The
    blocking shell has the same steps; 200 threads in this test's process would measure Python's scheduler.)"""
    shell = Shell("aio", "native", executor)
    waiters, rounds = 200, 6
    won: asyncio.Queue[Any] = asyncio.Queue()
    async with (
        shell.client(server.url) as a,
        shell.client(server.url) as b,
        shell.client(server.url) as c,
        shell.client(server.url) as d,
    ):
        stores = (a, b, c, d)

        async def wait(store: Any) -> None:
            lock = store.lock("job", lease=60.0)
            await lock.acquire()
            won.put_nowait(lock)

        holder = a.lock("job", lease=60.0)
        await holder.acquire()
        tasks = [asyncio.ensure_future(wait(stores[i % 4])) for i in range(waiters)]
        await until(lambda: sum(store.stats.replies for store in stores) >= 2 * waiters)  # each tried twice
        counts = []
        for _ in range(rounds):
            before = sum(store.stats.requests for store in stores)
            await holder.release()
            holder = await won.get()
            await asyncio.sleep(0.1)  # what the losers still send belongs to this hand-over
            counts.append(sum(store.stats.requests for store in stores) - before)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # Each waiter may look again by itself once in the 0.1 s; the release and the end of the winner's watch are two.
    assert all(count <= 1.5 * waiters + 2 for count in counts), counts
