"""Writing under a lock: edits, and a guarded store, with both shells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import (
    InvalidArgumentError,
    LeaseLostError,
    LockNotAcquiredError,
    SetItem,
)
from statestore_client.server import EmbeddedServer

# -- edits -------------------------------------------------------------------------------------------------------------


def add_one(value: bytes | None) -> str:
    return str(int(value or b"0") + 1)


async def test_edits_lose_nothing(shell: Shell, server: EmbeddedServer) -> None:
    """Eight contenders with five edits each count to 40, and each sees what it wrote."""

    async def contender(store: Any) -> None:
        for _ in range(5):
            item = await store.lock("lock", lease=30.0).edit("count", add_one, timeout=30)
            assert int(item.value) > 0

    async with shell.client(server.url) as one, shell.client(server.url) as two:
        await asyncio.gather(*(contender(store) for store in (one, two) for _ in range(4)))
        assert (await one.get("count")).value == b"40"
        assert await one.lock("lock").holder() is None


async def test_the_key_of_the_lock_is_not_edited(shell: Shell, server: EmbeddedServer) -> None:
    """What is there is the name of a holder: an edit would wait for it for ever."""
    async with shell.client(server.url) as store:
        await store.set("count", "5")
        with pytest.raises(InvalidArgumentError, match="key must not be the key of the lock, count"):
            await store.lock("count").edit("count", add_one)


async def test_edits_by_one_object_follow_one_another(shell: Shell, server: EmbeddedServer) -> None:
    """Edits by one object take turns and never share a lease, whether it holds the lock already or not."""
    async with shell.client(server.url) as store:
        lock = store.lock("lock")
        await asyncio.gather(*(lock.edit("count", add_one) for _ in range(10)))
        async with lock:
            await asyncio.gather(*(lock.edit("count", add_one) for _ in range(10)))
        assert (await store.get("count")).value == b"20"


async def test_an_edit_keeps_deletes_and_expires(shell: Shell, server: EmbeddedServer) -> None:
    """An edit writes nothing for KEEP, deletes for None, and ends when it deletes a missing key."""
    async with shell.client(server.url) as store:
        lock = store.lock("lock")
        assert await lock.edit("key", lambda _value: None) is None
        made = await lock.edit("key", lambda _value: "1", expiry=60)
        kept = await lock.edit("key", lambda _value: lock.KEEP)
        assert kept == made
        async with store.watch("key") as events:
            server.clock.advance(60)
            assert (await events.get(timeout=5)).kind == "delete"
        await lock.edit("key", add_one)
        with pytest.raises(ValueError, match="not the right one"):
            await lock.edit("key", _fail)
        assert await lock.edit("key", lambda _value: None) is None
        assert await store.get("key") is None
        assert await lock.holder() is None


def _fail(value: bytes | None) -> bytes:
    raise ValueError("not the right one")


async def test_an_edit_under_a_held_lock_keeps_it(shell: Shell, server: EmbeddedServer) -> None:
    """An edit under a held lock uses and keeps its lease, also after newer tokens of it were used."""
    async with shell.client(server.url) as store:
        lock = store.lock("lock")
        async with lock as lease:
            await store.set("key", b"1", fencing_token=await lease.next_token())
            assert (await lock.edit("key", add_one)).value == b"2"
            assert lease.valid
        with pytest.raises(LockNotAcquiredError):
            async with store.lock("lock"):
                await store.lock("lock").edit("key", add_one, timeout=1)


async def test_an_edit_begins_anew_when_the_lock_is_lost(shell: Shell, server: EmbeddedServer) -> None:
    """An edit whose lock is lost writes nothing with the lost lease, and is made again from the new value."""
    async with shell.client(server.url) as store, shell.client(server.url) as thief:
        lock = store.lock("lock", lease=0.3, renew=False)
        calls = []

        def change(value: bytes | None) -> str:
            calls.append(value)
            if len(calls) == 1:
                time.sleep(0.35)  # the process stops, longer than the lease lasts
            return add_one(value)

        await thief.set("key", b"41")
        assert (await lock.edit("key", change, timeout=10)).value == b"42"
        assert calls == [b"41", b"41"]


# -- a guarded store ---------------------------------------------------------------------------------------------------


async def test_a_guarded_store_puts_the_token_on_every_write(shell: Shell, server: EmbeddedServer) -> None:
    """A guarded store puts the token on every write: after one of them a write without it is refused."""
    async with shell.client(server.url) as store, store.lock("job") as lease:
        with pytest.raises(InvalidArgumentError, match="a store is guarded by a Lease, not str"):
            store.guarded("job")
        guarded = store.guarded(lease)
        assert (await guarded.set("a", b"1")).applied
        assert (await guarded.set("a", b"2", condition="NX")).applied is False
        assert (await guarded.get("a")).value == b"1"
        await guarded.set_many({"b": b"1"})
        await guarded.set_many([("c", b"1"), SetItem("d", b"1", expiry=60)])
        for key in "abcd":
            with pytest.raises(Exception, match="a fencing token is required"):
                await store.set(key, b"x")
        assert (await guarded.vdelete("a", b"1")).count == 1
        assert [d.count for d in await guarded.delete_many(["b"])] == [1]
        assert [d.count for d in await guarded.vdelete_many({"c": b"1"})] == [1]
        assert (await guarded.delete("d")).count == 1
        assert await guarded.get_many(["a", "b", "c", "d"]) == [None] * 4
        with pytest.raises(InvalidArgumentError, match="not its own"):
            await guarded.set_many([SetItem("a", b"1", fencing_token=lease.fencing_token)])
        with pytest.raises(InvalidArgumentError, match="a batch must be an iterable"):
            await guarded.get_many("abc")


async def test_a_guarded_store_closes_with_the_lease(shell: Shell, server: EmbeddedServer) -> None:
    """A guarded store sends nothing after the lease is lost, and a batch ends at that point."""
    async with shell.client(server.url) as store:
        lock = store.lock("job")
        lease = await lock.acquire()
        guarded = store.guarded(lease)

        def pairs() -> Any:
            yield ("a", b"1")
            lease.ended.set()
            yield ("b", b"1")

        with pytest.raises(LeaseLostError):
            await guarded.set_many(pairs())
        sent = store.stats.requests
        for call in (
            lambda: guarded.set("k", b""),
            lambda: guarded.get("k"),
            lambda: guarded.delete("k"),
            lambda: guarded.vdelete("k", b""),
            lambda: guarded.set_many([("k", b"")]),
            lambda: guarded.get_many(["k"]),
            lambda: guarded.delete_many(["k"]),
            lambda: guarded.vdelete_many([("k", b"")]),
        ):
            with pytest.raises(LeaseLostError):
                await call()
        assert store.stats.requests == sent
        await lock.release()
