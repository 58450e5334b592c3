"""Counters, semaphores and groups of both shells, over a server."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from support.waiting import eventually

from statestore_client import (
    AsyncStateStoreClient,
    ClosedError,
    FencingTokenRequiredError,
    InvalidArgumentError,
    LockNotAcquiredError,
    PickleRefusedError,
    RequestTimeoutError,
    StateStoreClient,
)
from statestore_client.recipes import (
    AsyncBarrier,
    AsyncCounter,
    AsyncMembers,
    AsyncPartitioner,
    AsyncSemaphore,
    Barrier,
    Counter,
    Members,
    Partitioner,
    Roster,
    Semaphore,
)
from statestore_client.server import EmbeddedServer

# -- counter -----------------------------------------------------------------------------------------------------------


def test_many_programs_add_to_a_counter(server: EmbeddedServer) -> None:
    """What each of them has added is in the sum; each sum is given once."""

    def add(_: int) -> list[int]:
        with StateStoreClient(server.url) as store:
            counter = Counter(store, "parts")
            return [counter.add() for _ in range(5)]

    with ThreadPoolExecutor(4) as pool, StateStoreClient(server.url) as store:
        sums = [each for some in pool.map(add, range(4)) for each in some]
        assert sorted(sums) == list(range(1, 21))
        counter = Counter(store, "parts")
        assert counter.get() == 20
        assert counter.add(-25, timeout=20) == -5
        assert store.get("parts").value == b"-5"
        with pytest.raises(FencingTokenRequiredError):
            store.set("parts", "0")


def test_threads_share_a_counter(server: EmbeddedServer) -> None:
    """One addition follows the other."""
    with StateStoreClient(server.url) as store, ThreadPoolExecutor(3) as pool:
        counter = Counter(store, "parts", lock="its lock")
        assert sorted(pool.map(counter.add, [1] * 9)) == list(range(1, 10))
        assert store.lock("its lock").holder() is None


def test_what_is_no_counter_stays_as_it_is(server: EmbeddedServer) -> None:
    """A mistake of the caller changes nothing, and leaves no lock behind."""
    wrong: Any
    with StateStoreClient(server.url) as store:
        store.set("text", "seven")
        counter = Counter(store, "text")
        for call in (counter.get, counter.add):
            with pytest.raises(InvalidArgumentError, match="holds b'seven', which is no whole number"):
                call()
        for wrong in (1.5, "1", True, None):
            with pytest.raises(InvalidArgumentError, match="amount must be a whole number"):
                counter.add(wrong)
        assert store.get("text").value == b"seven"
        assert store.lock("text/lock").holder() is None
        with pytest.raises(InvalidArgumentError, match="must not be the key of the lock"):
            Counter(store, "k", lock="k").add()


def test_a_counter_that_another_one_holds_is_waited_for(server: EmbeddedServer) -> None:
    """As long as its caller wants to, and no longer."""
    with StateStoreClient(server.url) as store, store.lock("parts/lock").acquire():
        with pytest.raises(LockNotAcquiredError):
            Counter(store, "parts").add(timeout=0)
        assert Counter(store, "parts").get() == 0


# -- semaphore ---------------------------------------------------------------------------------------------------------


def test_a_semaphore_has_so_many_holders(server: EmbeddedServer) -> None:
    """The next one waits until a permit is given back; each has a token and a name of its own."""
    with StateStoreClient(server.url) as store, StateStoreClient(server.url) as other, ExitStack() as held:
        semaphore, others = Semaphore(store, "presses", 2), Semaphore(other, "presses", 2)
        first = held.enter_context(semaphore.acquire(timeout=20))
        second = held.enter_context(others.acquire(timeout=20))
        assert {first.name, second.name} == {"presses/0", "presses/1"}
        assert others.holders() == {int(each.name[-1]): each.holder for each in (first, second)}
        assert semaphore.try_acquire() is None
        with pytest.raises(LockNotAcquiredError, match="no permit of presses was free"):
            others.acquire(timeout=0.05)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(others.acquire, 20)
            first.release()
            third = held.enter_context(waiting.result(20))
        assert third.name == first.name
        assert third.fencing_token > first.fencing_token


def test_a_semaphore_is_never_held_by_more(server: EmbeddedServer) -> None:
    """Whoever comes, and whenever; all have their turn."""
    inside: list[int] = []
    most = 0
    guard = threading.Lock()

    def work(number: int) -> None:
        nonlocal most
        with Semaphore(store, "presses", 2).acquire(timeout=30):
            with guard:
                inside.append(number)
                most = max(most, len(inside))
            with guard:
                inside.remove(number)

    with StateStoreClient(server.url) as store, ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(10)))
    assert 1 <= most <= 2


def test_without_an_answer_it_is_not_known_whether_a_permit_is_free(server: EmbeddedServer) -> None:
    """The error says so, and not that all are taken."""
    with StateStoreClient(server.url, request_timeout=0.2) as store:
        semaphore = Semaphore(store, "presses", 2)
        server.stop()
        with pytest.raises(RequestTimeoutError):
            semaphore.acquire(timeout=0.3)


# -- members -----------------------------------------------------------------------------------------------------------


def test_members_see_each_other_come_and_go(server: EmbeddedServer) -> None:
    """Who joins is seen, who leaves is, and who has died is when its lease has ended."""
    with StateStoreClient(server.url) as store, StateStoreClient(server.url) as other:
        group = Members(store, "line1")
        assert group.present() == Roster({})
        one = group.join("one", timeout=20)
        with group.watch(rescan=0.05) as rosters:
            assert rosters.get(20) == Roster({"one": one.holder})
            two = Members(other, "line1", lease=60).join("two")
            assert next(rosters).names == ("one", "two")
            assert group.present() == Roster({"one": one.holder, "two": two.holder})
            one.release()
            assert next(rosters).names == ("two",)
            assert rosters.get(0.01) is None
            other.close()  # no word of the lease
            server.clock.advance(61, keep_alive=False)
            assert next(rosters).names == ()
        assert list(rosters) == []


def test_a_name_is_one_members(server: EmbeddedServer) -> None:
    """Without a name each has its own."""
    with StateStoreClient(server.url) as store:
        group = Members(store, "line*")
        with group.join("one"), group.join() as other, group.join(timeout=20):
            with pytest.raises(LockNotAcquiredError):
                group.join("one", timeout=0)
            assert len(group.present().names) == 3
            assert other.name.startswith("line*/")
            assert Members(store, "line").present().names == ()
            store.set("line*/deep/er", "no member")
            assert len(group.present().names) == 3


def test_members_know_that_they_may_be_out_of_date(server: EmbeddedServer) -> None:
    """While the connection is away the roster says so."""
    with StateStoreClient(server.url) as store:
        group = Members(store, "line1")
        with group.join("one"), group.watch() as rosters:
            assert next(rosters).is_current
            server.restart(keep_state=True)
            assert next(rosters) == Roster({"one": group.present().members["one"]}, is_current=False)
            assert next(rosters).is_current


# -- partitioner -------------------------------------------------------------------------------------------------------


def settled(*several: Partitioner) -> dict[str, list[str]]:
    """Who has what, when each item is somebody's and all have their share. At no time has an item two owners."""
    everything: list[str] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        shares = {each.member: sorted(each.update(0.01)) for each in several}
        names = {each.member: sorted(item for item, lease in each.update().items() if lease.valid) for each in several}
        everything = sorted(item for share in names.values() for item in share)
        assert len(everything) == len(set(everything))
        if everything == ITEMS and shares == names and max(map(len, names.values())) <= -(-len(ITEMS) // len(several)):
            return names
    raise AssertionError(f"not shared within 20 s: {everything}")


ITEMS = ["a", "b", "c", "d", "e"]


def test_work_is_shared_and_handed_over(server: EmbeddedServer) -> None:
    """Who comes gets its share when the others have given it up; who goes leaves it to them, and who dies does."""
    with StateStoreClient(server.url) as store, StateStoreClient(server.url) as other:
        first = Partitioner(store, "work", ITEMS, member="first", rescan=0.05)
        second = Partitioner(other, "work", reversed(ITEMS), member="second", rescan=0.05, lease=60)
        with first:
            assert settled(first) == {"first": ITEMS}
            token = first.update()["b"].fencing_token
            with second:
                assert settled(first, second) == {"first": ["a", "c", "e"], "second": ["b", "d"]}
                assert second.update()["b"].fencing_token > token
                assert set(first.update()) == {"a", "c", "e"}
            assert settled(first) == {"first": ITEMS}
        assert list(store.scan("work/*")) == []


def test_the_items_of_a_member_that_has_died_are_free_when_its_leases_have_ended(server: EmbeddedServer) -> None:
    """Not before: it might be at work."""
    with StateStoreClient(server.url) as store, StateStoreClient(server.url) as other:
        dead = Partitioner(other, "work", ITEMS, member="dead", rescan=0.05, lease=60)
        dead.__enter__()
        assert settled(dead) == {"dead": ITEMS}
        with Partitioner(store, "work", ITEMS, rescan=0.05, lease=600) as left:
            other.close()
            assert left.update() == {}
            server.clock.advance(61, keep_alive=False)
            assert list(settled(left).values()) == [ITEMS]


def test_a_member_that_was_away_for_too_long_begins_anew(server: EmbeddedServer) -> None:
    """What it had is not its any more; it joins again, and gets a share."""
    with StateStoreClient(server.url) as store:
        with Partitioner(store, "work", ITEMS, rescan=0.05, member="one", lease=1.5) as work:
            before = dict(settled(work)) and work.update()
            server.clear()
            eventually(lambda: not any(lease.valid for lease in before.values()))
            eventually(lambda: sorted(work.update(0.1)) == ITEMS)
        with pytest.raises(ClosedError, match="while its block runs"):
            work.update()


# -- barrier -----------------------------------------------------------------------------------------------------------


def test_a_barrier_lets_through_those_that_wait(server: EmbeddedServer) -> None:
    """When it is taken away, or was never there."""
    with StateStoreClient(server.url) as store, ThreadPoolExecutor(3) as pool:
        barrier = Barrier(store, "gate")
        assert barrier.wait(0)
        assert barrier.create()
        assert not barrier.create()
        assert not barrier.wait(0.01)
        waiting = [pool.submit(barrier.wait, 20) for _ in range(3)]
        assert barrier.remove()
        assert not barrier.remove()
        assert all(each.result(20) for each in waiting)
        barrier.create(expiry=30)
        through = pool.submit(barrier.wait, 20)
        server.clock.advance(31, keep_alive=False)
        assert through.result(20)


def test_a_barrier_that_is_taken_away_while_the_connection_is_away(server: EmbeddedServer) -> None:
    """Nobody can tell of it then; who waits is let through when the connection is back."""
    with StateStoreClient(server.url) as store, ThreadPoolExecutor(1) as pool:
        barrier = Barrier(store, "gate")
        barrier.create()
        waiting = pool.submit(barrier.wait, 20)
        eventually(lambda: any(b"KEYNOTIFY" in message.payload for message in server.messages))
        server.restart(keep_state=False)  # it has forgotten all
        assert waiting.result(20)


# -- with asyncio, and what both have ----------------------------------------------------------------------------------


async def test_the_same_with_asyncio(server: EmbeddedServer) -> None:
    """What waits is entered, awaited or iterated."""
    async with AsyncStateStoreClient(server.url) as store:
        counter = AsyncCounter(store, "parts")
        assert sorted(await asyncio.gather(*(counter.add() for _ in range(3)))) == [1, 2, 3]
        assert await counter.get() == 3
        semaphore = AsyncSemaphore(store, "presses", 1)
        async with semaphore.acquire(timeout=20) as permit:
            assert await semaphore.try_acquire() is None
            assert await semaphore.holders() == {0: permit.holder}
        group = AsyncMembers(store, "line1")
        async with group.watch(rescan=0.05) as rosters:
            assert (await anext(rosters)).names == ()
            async with group.join("one"):
                assert (await anext(rosters)).names == (await group.present()).names == ("one",)
            assert (await anext(rosters)).names == ()
        assert [roster async for roster in rosters] == []
        barrier = AsyncBarrier(store, "gate")
        await barrier.create()
        waiting = asyncio.ensure_future(barrier.wait(20))
        assert await barrier.remove()
        assert await waiting
        async with AsyncPartitioner(store, "work", ["a"]) as work:
            assert list(await work.update(20)) == ["a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda store: Counter(store, "n"),
        lambda store: Semaphore(store, "n", 2),
        lambda store: Members(store, "n"),
        lambda store: Members(store, "n").watch(),
        lambda store: Partitioner(store, "n", ["a"]),
        lambda store: Barrier(store, "n"),
    ],
)
def test_none_of_them_is_pickled(make: Callable[[StateStoreClient], Any]) -> None:
    """They need a client; their repr says what they are."""
    made = make(StateStoreClient("mqtt://127.0.0.1:1"))
    with pytest.raises(PickleRefusedError):
        pickle.dumps(made)
    assert repr(made).startswith("<")
