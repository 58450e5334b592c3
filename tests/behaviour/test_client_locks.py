"""Fencing tokens, locks, their leases, and elections, with both shells."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import pytest
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    ClosedError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
)
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
    for module in ("leases", "steps"):
        monkeypatch.setattr(f"statestore_client.{shell.name}.{module}.elapsed", lambda: time.monotonic() + slept[0])
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
    async with shell.client(server.url) as store:
        async with store.lock("job", lease=0.4):
            waiting = asyncio.ensure_future(store.lock("job").acquire(timeout=30))
            await until(lambda: store.stats.requests >= 4)
            spent = time.process_time()
            await asyncio.wait([waiting], timeout=0.5)
            assert time.process_time() - spent < 0.2
        await (await waiting).release()


async def test_closing_the_client_ends_its_leases(shell: Shell, server: EmbeddedServer) -> None:
    """close() ends the client's leases at once and calls their callbacks, and leaves no thread or task."""
    told: list[LeaseLostError] = []
    before = keepers()
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=3600.0).acquire()
        lease.on_lost(told.append)
    assert lease.ended.is_set()
    with pytest.raises(LeaseLostError, match="the client was closed"):
        lease.check()
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


# -- fencing, and what a lock excludes ---------------------------------------------------------------------------------


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


async def test_a_lock_excludes_others_until_it_is_released(shell: Shell, server: EmbeddedServer) -> None:
    """Another lock object, also of the same client, waits until a lock is released, and gets a newer token."""
    async with shell.client(server.url) as one, shell.client(server.url) as two:
        async with one.lock("job", lease=30.0) as lease:
            assert lease.valid
            lease.check()
            assert (await one.get("job")).value == lease.holder
            for other in (one, two):
                assert await other.lock("job", lease=30.0).try_acquire() is None
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


async def test_a_lock_object_is_not_reentrant_and_can_be_used_again(shell: Shell, server: EmbeddedServer) -> None:
    """Asking for a held lock again, in any way, is an error; after the release its object may acquire it again."""
    async with shell.client(server.url) as store:
        lock, election = store.lock("job"), store.election("leader")
        assert not await lock.release()
        first = await lock.acquire()
        async with election.campaign(timeout=5):
            for call in (lock.acquire, lock.try_acquire, lock.__aenter__, election.campaign, election.try_campaign):
                with pytest.raises(BusyError, match="holds the lock already; it is not reentrant"):
                    await call()
        assert await lock.release()
        assert not await lock.release()
        second = await lock.try_acquire()
        assert second.fencing_token > first.fencing_token
        assert await lock.release()
        assert await store.get("job") is None


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


async def test_a_key_that_was_deleted_is_taken_again(shell: Shell, server: EmbeddedServer) -> None:
    """The next renewal takes a deleted key again, and the lease stays valid."""
    async with shell.client(server.url) as store, shell.client(server.url) as thief:
        lease = await store.lock("job", lease=3.0).acquire()
        async with thief.watch("job") as events:
            await thief.delete("job")
            assert [(await events.get(timeout=20)).kind for _ in range(2)] == ["delete", "set"]
        assert lease.valid


async def test_waiting_for_a_lock_ends_with_the_client(shell: Shell, server: EmbeddedServer) -> None:
    """close() wakes callers that wait for a lock."""
    async with shell.client(server.url) as holder:
        held = await holder.lock("job").acquire()
        async with shell.client(server.url) as store:
            waiting = asyncio.ensure_future(store.lock("job").acquire())
            async with holder.watch("other", initial=True):
                await asyncio.wait([waiting], timeout=0.1)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 5)
        assert held.valid


# -- elections ---------------------------------------------------------------------------------------------------------


async def test_one_candidate_leads_until_it_resigns(shell: Shell, server: EmbeddedServer) -> None:
    """One candidate leads until it resigns; then the other one leads, with a newer token."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        one = store.election("leader", candidate="one", term=30.0)
        two = other.election("leader", candidate="two", term=30.0)
        assert (one.name, one.candidate) == ("leader", b"one")
        assert await one.leader() is None
        assert not await one.resign()
        first = await one.campaign()
        assert await two.leader() == b"one"
        assert await two.try_campaign() is None
        with pytest.raises(LockNotAcquiredError, match=r"the election leader was not won within 1 s"):
            await two.campaign(timeout=1)
        waiting = asyncio.ensure_future(two.campaign(timeout=20))
        assert await one.resign()
        second = await waiting
        assert second.fencing_token > first.fencing_token
        assert await one.leader() == b"two"
        async with one.observe() as states:
            assert (await states.get(timeout=5)).holder == b"two"
        with pytest.raises(LeaseLostError):
            first.check()


async def test_leading_is_a_context(shell: Shell, server: EmbeddedServer) -> None:
    """Entering a campaign's context leads and leaving resigns, also after an exception; a guarded store takes the
    leadership."""
    async with shell.client(server.url) as store:
        election, tokens = store.election("leader"), []
        assert store.election("leader").candidate != election.candidate

        async def work() -> None:
            async with election.campaign(timeout=5) as leadership:
                assert await election.leader() == election.candidate
                await store.guarded(leadership).set("state", b"1")
                tokens.append(leadership.fencing_token)
                raise RuntimeError("the work failed")

        for _ in range(2):
            with pytest.raises(RuntimeError, match="the work failed"):
                await work()
            assert await election.leader() is None
        assert tokens[0] < tokens[1]


async def test_mistakes_are_named(shell: Shell, server: EmbeddedServer) -> None:
    """Errors of an election use the words of an election."""
    async with shell.client(server.url) as store:
        for arguments, complaint in (
            ({"name": ""}, "election's name is empty"),
            ({"name": "x", "candidate": ""}, "candidate is empty"),
            ({"name": "x", "term": 0}, "term must be seconds"),
        ):
            with pytest.raises(InvalidArgumentError, match=complaint):
                store.election(**arguments)
