"""Fencing tokens and locks, with both shells."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import (
    BusyError,
    ClosedError,
    FencingTokenClockSkewError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    HlcTimestamp,
    LeaseLostError,
    LockNotAcquiredError,
)
from statestore_client.server import EmbeddedServer


async def test_a_newer_token_shuts_out_an_older_one(shell: Shell, server: EmbeddedServer) -> None:
    """After a write with a token, every kind of write with an older token or with none is refused."""
    async with shell.client(server.url) as store:
        old = (await store.set("clock", b"1")).version
        new = (await store.set("clock", b"2")).version
        await store.set("guarded", b"new", fencing_token=new)
        for call in (
            lambda token: store.set("guarded", b"old", fencing_token=token),
            lambda token: store.delete("guarded", fencing_token=token),
            lambda token: store.vdelete("guarded", b"new", fencing_token=token),
        ):
            with pytest.raises(FencingTokenTooOldError) as caught:
                await call(old)
            assert not caught.value.may_have_been_applied
            with pytest.raises(FencingTokenRequiredError):
                await call(None)
        assert (await store.get("guarded")).value == b"new"
        await store.set("guarded", b"newer", fencing_token=str(new))
        assert (await store.delete("guarded", fencing_token=new)).count == 1


@pytest.mark.parametrize("dialect", ["service", "document"])
async def test_a_token_leaves_as_the_server_wrote_it(shell: Shell, dialect: str) -> None:
    """A token is sent as the server wrote it, padded or not, by a lease, a guarded store, an edit, and as text."""
    written = r"0\d{14}:\d{5}:\w+" if dialect == "service" else r"[1-9]\d*:(0|[1-9]\d*):\w+"
    with EmbeddedServer(dialect=dialect, record_messages=100) as server:
        async with shell.client(server.url) as store, store.lock("lock", lease=30.0) as lease:
            await store.set("a", b"1", fencing_token=lease.fencing_token)
            await store.set("b", b"1", fencing_token=str(lease.fencing_token))
            await store.guarded(lease).set_many([("c", b"1"), ("d", b"1")])
            await store.lock("other", lease=30.0).edit("e", lambda _: b"1")
        sent = [value for m in server.messages for name, value in m.user_properties if name == "__ft"]
    assert len(sent) == 5
    assert len(set(sent)) == 2
    assert all(re.fullmatch(written, text) for text in sent)


async def test_a_token_from_the_future_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """A token that is too far in the future is refused as a clock problem, since no lock of this server gave it out."""
    async with shell.client(server.url) as store:
        now = (await store.set("clock", b"1")).version
        future = HlcTimestamp(now.wall_ms + 120_000, 0, "somebody")
        with pytest.raises(FencingTokenClockSkewError):
            await store.set("guarded", b"1", fencing_token=future)


async def test_a_lock_excludes_others_until_it_is_released(shell: Shell, server: EmbeddedServer) -> None:
    """A second client waits until a lock is released, and gets a newer token."""
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        async with one.lock("job", lease=30.0) as lease:
            assert lease.valid
            lease.check()
            assert (await one.get("job")).value == lease.holder
            assert await two.lock("job", lease=30.0).try_acquire() is None
            waiting = asyncio.ensure_future(two.lock("job", lease=30.0).acquire(timeout=20))
            with pytest.raises(LockNotAcquiredError, match=r"not free within 1 s"):
                await two.lock("job", lease=30.0).acquire(timeout=1)
            assert not waiting.done()
            released = time.monotonic()
        second = await waiting
        assert time.monotonic() - released < 5
        assert second.fencing_token > lease.fencing_token
        assert lease.ended.is_set()
        with pytest.raises(LeaseLostError, match="released"):
            lease.check()


async def test_two_locks_of_one_client_exclude_each_other(shell: Shell, server: EmbeddedServer) -> None:
    """Two lock objects of one client exclude each other."""
    async with shell.client(server.url) as store, store.lock("job"):
        assert await store.lock("job").try_acquire() is None


async def test_a_lock_object_is_not_reentrant_and_can_be_used_again(shell: Shell, server: EmbeddedServer) -> None:
    """Acquiring a lock again while its object holds it is an error; after the release it may acquire again."""
    async with shell.client(server.url) as store:
        lock = store.lock("job")
        assert not await lock.release()
        first = await lock.acquire()
        with pytest.raises(BusyError, match="not reentrant"):
            await lock.acquire()
        assert await lock.release()
        assert not await lock.release()
        second = await lock.try_acquire()
        assert second.fencing_token > first.fencing_token
        assert await lock.release()
        assert await store.get("job") is None


async def test_counting_under_a_lock_loses_nothing(shell: Shell, server: EmbeddedServer) -> None:
    """Eight contenders that count under the lock, with its token, five times each, reach 40."""

    async def contender(store: Any) -> None:
        for _ in range(5):
            async with store.lock("lock", lease=30.0) as lease:
                item = await store.get("count")
                count = int(item.value) if item else 0
                await store.set("count", str(count + 1), fencing_token=lease.fencing_token)

    async with shell.client(server.url) as one, shell.client(server.url) as two:
        await asyncio.gather(*(contender(store) for store in (one, two) for _ in range(4)))
        assert (await one.get("count")).value == b"40"


async def test_a_lease_renews_itself(shell: Shell, server: EmbeddedServer) -> None:
    """A lease renews itself and lasts past its first end with the same token."""
    async with shell.client(server.url) as store, store.watch("job") as events:
        async with store.lock("job", lease=3.0) as lease:
            first_end = lease.valid_until
            for _ in range(4):  # the grant and three renewals
                assert (await events.get(timeout=20)).kind == "set"
            assert lease.valid_until > first_end
            assert lease.valid
        assert (await events.get(timeout=5)).kind == "delete"


async def test_a_lease_that_is_not_renewed_says_when_it_ends(shell: Shell, server: EmbeddedServer) -> None:
    """Without renewal, ``lost`` is set when the lease ends, and not later than the server frees the key."""
    async with shell.client(server.url) as store, store.watch("job") as events:
        lock = store.lock("job", lease=0.3, renew=False)
        lease = await lock.acquire()
        assert (await events.get(timeout=5)).kind == "set"
        assert (await events.get(timeout=5)).kind == "delete"
        assert not lease.valid
        assert lease.ended.is_set()
        with pytest.raises(LeaseLostError, match="was not to be renewed"):
            lease.check()
        again = await lock.acquire(timeout=5)
        assert again.fencing_token > lease.fencing_token


@pytest.mark.parametrize("theft", ["deleted", "stolen"])
async def test_a_lost_key_is_a_lost_lease(shell: Shell, server: EmbeddedServer, theft: str) -> None:
    """A holder learns at the next renewal that another has its key; a deleted key is taken again."""
    async with shell.client(server.url) as store, shell.client(server.url) as thief:
        lock = store.lock("job", lease=3.0)
        lease = await lock.acquire()
        if theft == "stolen":
            await thief.set("job", b"thief")
            await asyncio.wait_for(_wait(lease), 20)
            with pytest.raises(LeaseLostError, match="somebody else"):
                lease.check()
            with pytest.raises(LeaseLostError):
                lease.check()
            assert not await lock.release()
            assert (await store.get("job")).value == b"thief"
        else:
            async with thief.watch("job") as events:
                await thief.delete("job")
                assert [(await events.get(timeout=20)).kind for _ in range(2)] == ["delete", "set"]
            assert lease.valid


async def test_a_closed_client_loses_its_leases(shell: Shell, server: EmbeddedServer) -> None:
    """close() ends the client's leases at once, before their time."""
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=60).acquire()
    await asyncio.wait_for(_wait(lease), 20)
    assert not lease.valid
    with pytest.raises(LeaseLostError, match="closed"):
        lease.check()


async def test_waiting_for_a_lock_ends_with_the_client(shell: Shell, server: EmbeddedServer) -> None:
    """close() wakes callers that wait for a lock."""
    async with shell.client(server.url) as holder:
        await holder.lock("job").acquire()
        async with shell.client(server.url) as store:
            waiting = asyncio.ensure_future(store.lock("job").acquire())
            async with holder.watch("other", initial=True):
                await asyncio.wait([waiting], timeout=0.1)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 5)


async def _wait(lease: Any) -> None:
    """Until the lease has ended; in the blocking shell that is a thread's event."""
    ended = lease.ended
    waited = ended.wait() if isinstance(ended, asyncio.Event) else asyncio.to_thread(ended.wait, 5)
    await waited
