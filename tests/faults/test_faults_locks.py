"""Locks while links, processes and clocks fail, with both shells."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.proxy import Proxy
from support.shells import Shell

from statestore_client import AsyncStateStoreClient, LeaseLostError, RequestTimeoutError
from statestore_client.clocks import now
from statestore_client.server import EmbeddedServer
from statestore_client.wire.instant import Instant


async def in_flight(store: Any, requests: int) -> None:
    """Wait until this many requests are without an answer."""
    engine = getattr(store, "target", store)._engine
    while engine._machine.request_table.in_flight < requests:  # noqa: ASYNC110 - a counter announces nothing
        await asyncio.sleep(0.002)


async def until_lost(lease: Any) -> None:
    while not lease.ended.is_set():  # noqa: ASYNC110 - an event of threads in one shell, of tasks in the other
        await asyncio.sleep(0.001)


# -- links -------------------------------------------------------------------------------------------------------------


async def test_a_release_does_not_wait_for_a_renewal(shell: Shell, server: EmbeddedServer) -> None:
    """In a black hole a release ends after its own time and does not wait for a renewal that is on its way."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url, request_timeout=0.5) as store:
        lock = store.lock("job", lease=12.0)
        await lock.acquire()
        proxy.hold("up", "down")
        await in_flight(store, 1)  # for up to four seconds
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            await lock.release()
        assert time.monotonic() - began < 3.5
        proxy.flow("up", "down")  # what was held back arrives, in its order: the renewal, then the release
        async with AsyncStateStoreClient(server.url) as other, other.lock("job").observe() as states:
            while (state := await states.get(timeout=5)) is not None and not state.free:
                pass
            assert state is not None


async def test_a_claim_given_up_in_a_black_hole_is_taken_back(shell: Shell, server: EmbeddedServer) -> None:
    """After a claim and its release were both under way in a black hole, the lock is free when the link is back."""
    async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
        proxy.hold("up")
        with pytest.raises(RequestTimeoutError, match="whether it is free is not known") as caught:
            await store.lock("job", lease=60.0).acquire(timeout=0.3)
        assert caught.value.may_have_been_applied
        proxy.flow("up")
        lease = await store.lock("job").acquire(timeout=5)
        assert await lease.release()


async def test_a_late_write_of_a_lost_lease_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """A guarded write that hangs until another holder has written is refused when it arrives, and its caller is told of
    the loss before."""
    async with (
        AsyncStateStoreClient(server.url) as other,
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
    ):
        lock = store.lock("job", lease=1.0)
        lease = await lock.acquire()
        guarded = store.guarded(lease)
        await guarded.set("state", b"before")
        contender = asyncio.ensure_future(other.lock("job").acquire(timeout=10))
        proxy.hold("up", "down")
        with pytest.raises(LeaseLostError) as caught:
            await guarded.set("state", b"late", timeout=30)
        assert caught.value.may_have_been_applied
        assert not contender.done()
        taken = await contender
        await other.set("state", b"theirs", fencing_token=taken.fencing_token)
        proxy.flow("up", "down")  # not cut: what was written to the socket arrives now
        with pytest.raises(LeaseLostError):
            await guarded.set("state", b"later")
        await store.get("state")  # it is answered after all that was sent before
        assert (await other.get("state")).value == b"theirs"
        assert not await lock.release()


async def test_a_loss_is_told_before_another_holds_the_lock(shell: Shell, server: EmbeddedServer) -> None:
    """The callback for a loss runs while the contender still waits."""
    async with AsyncStateStoreClient(server.url) as other:
        for _ in range(3):
            async with Proxy(server.port) as proxy, shell.client(proxy.url) as store:
                told: list[float] = []
                lease = await store.lock("job", lease=0.6).acquire(timeout=10)
                lease.on_lost(lambda _error: told.append(time.monotonic()))  # noqa: B023 - this round's list
                contender = other.lock("job", lease=0.5, renew=False)
                waiting = asyncio.ensure_future(contender.acquire(timeout=10))
                proxy.hold("up", "down")
                await waiting
                granted = time.monotonic()
                assert told
                assert told[0] < granted
                assert lease.valid_until < granted
                proxy.cut()
                proxy.flow("up", "down")
                await contender.release()


async def test_a_lease_survives_reconnects(shell: Shell, server: EmbeddedServer) -> None:
    """A lease survives repeated cuts and a short outage with the same token. The pause before an attempt to connect is
    bounded here: fast cuts count as one trouble, and after a few the pause alone may take as long as the lease."""
    async with (
        Proxy(server.port) as proxy,
        shell.client(proxy.url, max_reconnect_delay=0.2) as store,
        store.lock("job", lease=6.0) as lease,
    ):
        told: list[LeaseLostError] = []
        lease.on_lost(told.append)
        for _ in range(3):
            until = lease.valid_until
            proxy.cut()
            await proxy.refuse()
            await asyncio.sleep(0.2)  # an outage has a length; nothing is waited for
            await proxy.accept()
            while lease.valid_until == until:
                assert lease.valid
                await asyncio.sleep(0.005)
        assert told == []
        await store.guarded(lease).set("state", b"1")


async def test_a_slow_link_shortens_the_lease_not_its_safety(shell: Shell, server: EmbeddedServer) -> None:
    """With a delay of 100 ms each way the lease counts from before its request, so it ends before the server's does."""
    async with (
        Proxy(server.port) as proxy,
        shell.client(proxy.url) as store,
        AsyncStateStoreClient(server.url) as other,
    ):
        proxy.delay_s = 0.1
        async with other.watch("job") as events:
            lock = store.lock("job", lease=1.0, renew=False)
            lease = await lock.acquire()
            assert lease.remaining < 0.8
            assert (await events.get(timeout=5)).kind == "set"
            await until_lost(lease)
            assert await events.get(timeout=0) is None  # the key is still there
            assert (await events.get(timeout=5)).kind == "delete"


async def test_another_server_means_another_lock(shell: Shell) -> None:
    """When an empty server replaces the old one, a waiter gets the lock with a newer token. The old holder is told at
    its next renewal, and its writes are refused where the new one has written."""
    with EmbeddedServer() as old, EmbeddedServer() as new:
        async with Proxy(old.port) as proxy, shell.client(proxy.url) as one, shell.client(proxy.url) as two:
            lease = await one.lock("job", lease=3.0).acquire()
            waiting = asyncio.ensure_future(two.lock("job", lease=3.0).acquire(timeout=20))
            await asyncio.wait([waiting], timeout=0.2)
            proxy.target_port = new.port
            proxy.cut()
            done, _ = await asyncio.wait([waiting], timeout=4)
            if not done:  # the holder was back first and took its own lock anew
                assert lease.valid
                waiting.cancel()
                return
            taken = waiting.result()
            assert taken.fencing_token > lease.fencing_token
            await two.guarded(taken).set("state", b"new")
            await asyncio.wait_for(until_lost(lease), 5)
            with pytest.raises(Exception, match="lower version"):
                await one.set("state", b"old", fencing_token=lease.fencing_token)


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump_s", [-86_400.0, -30.0, 20.0])
async def test_a_wall_clock_that_jumps_moves_no_lease(shell: Shell, server: EmbeddedServer, jump_s: float) -> None:
    """A lease is measured with the monotonic clock and ends in time after the wall clock was changed."""
    shift_ms = 0

    def clock() -> Instant:
        moment = now()
        return Instant(moment.monotonic, moment.wall_ms + shift_ms)

    async with shell.client(server.url, clock=clock) as store, store.lock("job", lease=3.0) as lease:
        until = lease.valid_until
        shift_ms = int(jump_s * 1000)
        while lease.valid_until == until:
            assert lease.valid
            await asyncio.sleep(0.005)
        assert lease.valid_until - until < 3.0
        await store.guarded(lease).set("state", b"1")


async def test_a_machine_that_slept_has_no_lease(
    shell: Shell, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease is over after the machine slept: time.monotonic() stood still, and the server's clock did not."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("only Linux has a clock that tells sleep from work")
    real = time.clock_gettime
    slept = 0.0
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + slept)
    async with shell.client(server.url) as store:
        lock = store.lock("job", lease=30.0)
        lease = await lock.acquire()
        assert lease.valid
        slept = 3600.0
        assert not lease.valid
        assert lease.valid_until < time.monotonic()
        with pytest.raises(LeaseLostError, match="ended before it could be renewed"):
            await store.guarded(lease).set("state", b"1")
        await lock.release()


# -- processes ---------------------------------------------------------------------------------------------------------

#: Holds the lock and counts under it until it has lost it; then writes once more, as a program without a check would.
_HOLDER = """
import sys, time
from statestore_client import FencingTokenTooOldError, LeaseLostError, StateStoreClient, StateStoreError

with StateStoreClient(sys.argv[1]) as store:
    lease = store.lock("job", lease=float(sys.argv[2])).acquire()
    guarded = store.guarded(lease)
    print("holds", flush=True)
    count = 0
    try:
        while True:
            guarded.set("count", str(count))
            count += 1
            time.sleep(0.01)
    except (LeaseLostError, FencingTokenTooOldError):  # the latter when it was stopped in the middle of a write
        print("lost", flush=True)
    try:
        store.set("count", "stale", fencing_token=lease.fencing_token)
        print("stale write", flush=True)
    except StateStoreError as error:
        print(type(error).__name__, flush=True)
"""


@asynccontextmanager
async def holder(url: str, lease_s: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that holds the lock."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLDER, url, str(lease_s), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert await said(process) == "holds"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()


async def test_a_crashed_holder_is_succeeded_in_time(shell: Shell, server: EmbeddedServer) -> None:
    """After kill -9 of the holder nobody has the lock before its lease is over, and the next one within a second
    after."""
    lease_s = 60.0
    async with shell.client(server.url) as store, holder(server.url, lease_s) as process:
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=20))
        await asyncio.wait([waiting], timeout=0.05)
        process.kill()
        await process.wait()
        server.clock.advance(lease_s - 20)
        await asyncio.wait([waiting], timeout=0.05)
        assert not waiting.done()
        server.clock.advance(20)
        over = time.monotonic()
        await waiting
        assert time.monotonic() - over < 5


async def test_a_stopped_holder_harms_nothing_when_it_wakes(shell: Shell, server: EmbeddedServer) -> None:
    """A holder that was stopped for longer than its lease notices when it continues, and what it writes anyway is
    refused."""
    # Long enough that a busy machine does not make it lose the lease before it is stopped.
    async with shell.client(server.url) as store, holder(server.url, 4.0) as process:
        waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=20))
        await asyncio.wait([waiting], timeout=0.2)
        os.kill(process.pid, signal.SIGSTOP)
        lease = await waiting
        await store.guarded(lease).set("count", b"successor's")
        os.kill(process.pid, signal.SIGCONT)
        assert await said(process) == "lost"
        assert await said(process) == "FencingTokenTooOldError"
        assert (await store.get("count")).value == b"successor's"


async def test_hand_over_times(shell: Shell, server: EmbeddedServer, figures: Callable[[str], None]) -> None:
    """With four others waiting, the median time from release to grant is below 50 ms."""
    times: list[float] = []
    async with shell.client(server.url) as store:
        released = 0.0

        async def contender() -> None:
            nonlocal released
            for _ in range(20):
                lock = store.lock("job", lease=30.0)
                await lock.acquire()
                if released:
                    times.append(time.monotonic() - released)
                await asyncio.sleep(0.01)  # the work
                released = time.monotonic()
                await lock.release()

        await asyncio.gather(*(contender() for _ in range(5)))
    figures(f"release to grant: median {statistics.median(times) * 1000:.1f} ms of {len(times)}")
    assert statistics.median(times) < 0.05
