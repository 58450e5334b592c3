"""Operations of the asyncio client, each run again and again: something happens at its first suspension, then at its
second, until it ends without reaching the next. After each run the same client answers right, nobody is kept from the
lock, and no task or socket is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import attrs
from await_points import Act, at_point
from support.proxy import Proxy
from support.waiting import until

from statestore_client import AsyncStateStoreClient, StateStoreError
from statestore_client.server import EmbeddedServer

__all__ = ["EVENTS", "LOCKING", "LONG_LEASE", "OPERATIONS", "QUICK", "SHORT_LEASE", "run_at_every_point"]

#: So long (seconds) that only a lock that was given back is free again in a test.
LONG_LEASE = 120.0
#: The lease where the link is cut: nobody may be kept from the lock for longer.
SHORT_LEASE = 1.5
#: More suspensions than any operation has.
MOST_POINTS = 400


@attrs.define
class World:
    """What an operation works on. Whatever it leaves in ``locks`` was acquired and not released."""

    store: AsyncStateStoreClient
    other: AsyncStateStoreClient
    proxy: Proxy
    lease: float
    url: str
    driver: str
    locks: list[Any] = attrs.Factory(list)
    clients: list[AsyncStateStoreClient] = attrs.Factory(list)

    def lock(self, **options: Any) -> Any:
        return self.store.lock("lock", lease=self.lease, **options)

    def new_client(self) -> AsyncStateStoreClient:
        client = AsyncStateStoreClient(self.url, driver=self.driver, retry_first_connect=True, **QUICK)
        self.clients.append(client)
        return client


#: Settings of a client that is connected again at once.
QUICK: dict[str, Any] = {"reconnect_delay": 0.01, "max_reconnect_delay": 0.02, "request_timeout": 20.0}
PAIRS = [(f"many{i}", b"%d" % i) for i in range(8)]
Operation: TypeAlias = Callable[[World], Awaitable[Any]]

# -- the operations ----------------------------------------------------------------------------------------------------


async def scan(w: World) -> None:
    assert {key async for key in w.store.scan("probe*")} == {f"probe{i}".encode() for i in range(len(PROBES))}


async def acquire(w: World) -> None:
    lock = w.lock()
    await lock.acquire()
    w.locks.append(lock)


async def try_acquire(w: World) -> None:
    lock = w.lock()
    if await lock.try_acquire() is not None:
        w.locks.append(lock)


async def acquire_held(w: World) -> None:
    """Somebody else has it, and gives it back a little later."""
    lock = w.lock()
    await lock.acquire()
    w.locks.append(lock)


async def hold_for_a_while(other: AsyncStateStoreClient) -> asyncio.Task[None]:
    """Somebody else has the lock."""
    held = other.lock("lock", lease=SHORT_LEASE)
    await held.acquire()

    async def give_back() -> None:
        await asyncio.sleep(0.03)  # so that the others wait for it
        await held.release()

    return asyncio.create_task(give_back())


async def release(w: World) -> None:
    lock = w.lock()
    await lock.acquire()
    w.locks.append(lock)
    await lock.release()
    w.locks.remove(lock)


async def hold(w: World) -> None:
    async with w.lock() as lease:
        await w.store.set("guarded", b"1", fencing_token=lease.fencing_token)


async def renew(w: World) -> None:
    async with w.store.lock("lock", lease=0.3):  # renewed after a third
        for _ in range(3):
            await asyncio.sleep(0.08)


async def release_while_renewed(w: World) -> None:
    lock = w.store.lock("lock", lease=0.3)
    await lock.acquire()
    w.locks.append(lock)
    await asyncio.sleep(0.1)  # then it is renewed
    await lock.release()
    w.locks.remove(lock)


async def next_token(w: World) -> None:
    async with w.lock() as lease:
        assert await lease.next_token() > lease.fencing_token


async def guarded(w: World) -> None:
    async with w.lock() as lease:
        store = w.store.guarded(lease)
        await store.set("guarded", b"1")
        await store.set_many(PAIRS)
        await store.get_many([key for key, _ in PAIRS])
        await store.delete("guarded")


async def edit(w: World) -> None:
    await w.lock().edit("edited", lambda value: (value or b"") + b"1")


async def campaign(w: World) -> None:
    election = w.store.election("lock", term=w.lease)
    await election.campaign()
    w.locks.append(election._lock)
    await election.resign()
    w.locks.remove(election._lock)


async def lead(w: World) -> None:
    election = w.store.election("lock", term=w.lease)
    async with election.campaign():
        assert await election.leader() == election.candidate


async def watch(w: World) -> None:
    async with w.store.watch("watched", initial=True) as events:
        await w.other.set("watched", b"1")
        assert await events.get(timeout=20) is not None
        await events.close()


async def watch_prefix(w: World) -> None:
    await w.other.set("watched/1", b"1")
    async with w.store.watch_prefix("watched/", initial=True) as events:
        await w.other.set("watched/1", b"2")
        assert await events.get(timeout=20) is not None


async def watch_with_callback(w: World) -> None:
    seen = asyncio.Event()

    async def see(_event: object) -> None:
        await w.store.get("watched")
        seen.set()

    async with w.store.watch("watched", callback=see):
        await w.other.set("watched", b"1")
        await seen.wait()


async def iterate(w: World) -> None:
    async with w.store.watch("watched") as events:
        await w.other.set("watched", b"1")
        async for _event in events:
            break


async def observe(w: World) -> None:
    async with w.lock(), w.store.lock("lock").observe() as states:
        state = await states.get(timeout=20)
        assert state is not None


async def open_client(w: World) -> None:
    await w.new_client().open()


async def enter_client(w: World) -> None:
    async with w.new_client() as client:
        await client.get("probe0")


async def close_client(w: World) -> None:
    client = w.new_client()
    await client.open()
    lock = client.lock(f"of {client.client_id}")
    await lock.acquire()  # which close() does not release
    await client.close()


OPERATIONS: dict[str, Operation] = {
    "set": lambda w: w.store.set("key", b"1"),
    "set large": lambda w: w.store.set("large", bytes(8_000_000)),  # more than sockets take at once
    "get": lambda w: w.store.get("probe0"),
    "delete": lambda w: w.store.delete("key"),
    "vdelete": lambda w: w.store.vdelete("key", b"1"),
    "set_many": lambda w: w.store.set_many(PAIRS),
    "get_many": lambda w: w.store.get_many([key for key, _ in PAIRS]),
    "delete_many": lambda w: w.store.delete_many([key for key, _ in PAIRS]),
    "vdelete_many": lambda w: w.store.vdelete_many(PAIRS),
    "holder": lambda w: w.lock().holder(),
    **{
        function.__name__: function
        for function in (
            scan,
            acquire,
            try_acquire,
            acquire_held,
            release,
            hold,
            renew,
            release_while_renewed,
            next_token,
            guarded,
            edit,
            campaign,
            lead,
            watch,
            watch_prefix,
            watch_with_callback,
            iterate,
            observe,
            open_client,
            enter_client,
            close_client,
        )
    },
}
LOCKING = (
    "acquire",
    "try_acquire",
    "acquire_held",
    "release",
    "release_while_renewed",
    "hold",
    "edit",
    "lead",
    "guarded",
)

# -- what happens ------------------------------------------------------------------------------------------------------


def now(do: Callable[[asyncio.Task[Any]], object]) -> Act:
    """As soon as it is suspended."""
    return lambda task, _waits_for: do(task)


def late(do: Callable[[asyncio.Task[Any]], object]) -> Act:
    """When it has what it waited for, and before it runs again."""

    def act(task: asyncio.Task[Any], waits_for: asyncio.Future[Any] | None) -> None:
        if waits_for is None:
            do(task)
        else:
            waits_for.add_done_callback(lambda _: do(task))

    return act


def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def stall(proxy: Proxy, direction: str) -> None:
    """Nothing goes in this direction for longer than anybody waits in passing."""
    proxy.hold(direction)
    asyncio.get_running_loop().call_later(0.1, proxy.flow, direction)


#: What the proxy does, and what happens at the point.
EVENTS: dict[str, Callable[[Proxy], Act]] = {
    "cancel": lambda _: now(cancel),
    "cancel late": lambda _: late(cancel),
    "cut": lambda proxy: now(lambda _: proxy.cut()),
    "cut late": lambda proxy: late(lambda _: proxy.cut()),
    "cut and cancel": lambda proxy: now(lambda task: (proxy.cut(), cancel(task))),
    "stall and cancel": lambda proxy: now(lambda task: (stall(proxy, "down"), cancel(task))),
    "block and cancel": lambda proxy: now(lambda task: (stall(proxy, "up"), cancel(task))),
}

# -- what holds afterwards ---------------------------------------------------------------------------------------------

PROBES = [b"value %d" % i for i in range(6)]


async def check_answers(store: AsyncStateStoreClient) -> None:
    """Each request gets its own answer."""
    answers = await asyncio.gather(*(store.get(f"probe{i}") for i in range(len(PROBES))))
    assert [answer.value for answer in answers if answer is not None] == PROBES
    versions = [(await store.set("key", b"%d" % i)).version for i in range(3)]
    assert sorted(filter(None, versions)) == versions
    answer = await store.get("key")
    assert answer is not None
    assert (answer.value, answer.version) == (b"2", versions[-1])


async def check_lock(world: World, *, cut: bool) -> None:
    """A client that believes that it holds the lock does hold it; once released or given up, it is free for others."""
    for lock in world.locks:
        lease = lock._lease
        if lease is not None and lease.valid:
            holder = await world.other.lock("lock").holder()
            assert holder == lease.holder or not lease.valid  # a short one may end while the answer is on its way
        with contextlib.suppress(StateStoreError):
            await lock.release()
    patience = 10 * SHORT_LEASE if cut else 10.0
    mine = world.other.lock("lock", lease=SHORT_LEASE)
    await mine.acquire(timeout=patience)
    await mine.release()


def own_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of this loop, but for those of the test's proxy, among them what the loop accepts a connection with."""
    theirs = ("Proxy.", "._accept_connection")
    return {t for t in asyncio.all_tasks() if not any(name in repr(t.get_coro()) for name in theirs)}


def descriptors() -> int:
    """How many files and sockets this process has open; 0 where nobody can tell."""
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


async def run_at_every_point(
    server: EmbeddedServer, driver: str, operation: Operation, event: str, *, chunk: int | None = None, load: int = 0
) -> int:
    """Returns how many points there were."""
    cut = "cut" in event
    async with AsyncStateStoreClient(server.url) as other:
        await other.set_many((f"probe{i}", value) for i, value in enumerate(PROBES))
        for number in range(1, MOST_POINTS):
            tasks, open_before = own_tasks(), descriptors()
            async with Proxy(server.port, chunk=chunk) as proxy:
                store = AsyncStateStoreClient(proxy.url, driver=driver, max_in_flight=2, **QUICK)
                await store.open()
                lease = SHORT_LEASE if cut else LONG_LEASE
                world = World(store, other, proxy, lease, proxy.url, driver)
                stop = asyncio.Event()
                loads = [asyncio.ensure_future(keep_busy(store, stop)) for _ in range(load)]
                holder = await hold_for_a_while(other) if operation is acquire_held else None
                reached, task = await at_point(work(operation, world), number, EVENTS[event](proxy))
                if holder is not None:
                    await holder
                if not task.cancelled() and (error := task.exception()) is not None:
                    assert cut, error
                    assert isinstance(error, StateStoreError), error
                if not reached and not task.cancelled():
                    task.result()
                await check_lock(world, cut=cut)
                stop.set()
                await asyncio.gather(*loads)
                await check_answers(store)
                assert not store._engine._machine.watching
                for client in (store, *world.clients):
                    await client.close()
                assert own_tasks() - tasks == set()
            await until(lambda limit=open_before: descriptors() <= limit, "every socket is closed")
            if not reached:
                return number - 1
    raise AssertionError("it never ends")


async def work(operation: Operation, world: World) -> None:
    await operation(world)


async def keep_busy(store: AsyncStateStoreClient, stop: asyncio.Event) -> None:
    """Requests of other tasks, which fill the window."""
    while not stop.is_set():
        with contextlib.suppress(StateStoreError):
            await store.get("probe0")
