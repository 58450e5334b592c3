"""What the official Go SDK says and understands (state store facts), beside our clients, against our server."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator

import pytest
from go_sdk import GoClient, GoLock, GoSdkError, Notification
from support.shells import Shell

from statestore_client import FencingTokenTooOldError
from statestore_client.server import EmbeddedServer


@pytest.fixture
def go(server: EmbeddedServer) -> Iterator[GoClient]:
    with GoClient(server.port, "go-app") as client:
        yield client


def test_set_get_del_and_vdel(go: GoClient) -> None:
    """SET, GET, DEL and VDEL get the answers and versions that the SDK insists on, and a missing key has no version."""
    assert (go.invoke(b"GET", b"k").payload, go.invoke(b"GET", b"k").version) == (b"$-1\r\n", None)
    first = go.invoke(b"SET", b"k", b"1234")
    assert (first.payload, go.invoke(b"GET", b"k").version) == (b"+OK\r\n", first.version)
    assert go.invoke(b"GET", b"k").payload == b"$4\r\n1234\r\n"
    for value, condition, answer in (
        (b"1234", b"NX", b":-1\r\n"),
        (b"other", b"NEX", b":-1\r\n"),
        (b"1234", b"NEX", b"+OK\r\n"),
    ):
        conditional = go.invoke(b"SET", b"k", value, condition)
        assert (conditional.payload, conditional.version is None) == (answer, False)
    assert go.invoke(b"VDEL", b"k", b"other").payload == b":-1\r\n"
    assert go.invoke(b"VDEL", b"k", b"1234").payload == b":1\r\n"
    assert go.invoke(b"DEL", b"k").payload == b":0\r\n"
    assert go.invoke(b"SET", b"k", b"", b"PX", b"60000").payload == b"+OK\r\n"
    assert go.invoke(b"GET", b"k").payload == b"$0\r\n\r\n"
    assert go.invoke(b"DEL", b"k").payload == b":1\r\n"


def test_what_the_sdks_integration_tests_expect(go: GoClient) -> None:
    """The SDK's integration tests (facts 1.7) get what they expect: long values, an empty key, old and future tokens,
    renewals."""
    assert go.invoke(b"SET", b"k" * 6_500, b"v" * 65_000).payload == b"+OK\r\n"
    with pytest.raises(GoSdkError, match=r"^the key length is zero$"):
        go.invoke(b"GET", b"")
    lock = GoLock(go, b"lock")
    before = f"{time.time_ns() // 1_000_000:015}:00000:{go.client_id}"
    token, renewed = lock.acquire(10_000), lock.acquire(10_000)
    assert token is not None
    assert renewed is not None
    assert renewed > token
    assert go.invoke(b"SET", b"guarded", b"v", token=renewed).payload == b"+OK\r\n"
    lower = r"^the request fencing token is a lower version than the fencing token protecting the resource$"
    for words in ((b"SET", b"guarded", b"v"), (b"DEL", b"guarded"), (b"VDEL", b"guarded", b"v")):
        for old in (before, token):
            with pytest.raises(GoSdkError, match=lower):
                go.invoke(*words, token=old)
    with pytest.raises(GoSdkError, match=r"^a fencing token is required for this request$"):
        go.invoke(b"DEL", b"guarded")
    assert go.invoke(b"DEL", b"guarded", token=renewed).payload == b":1\r\n"
    with pytest.raises(GoSdkError, match=r"^the request fencing token timestamp is too far in the future; "):
        go.invoke(b"SET", b"other", b"v", token=f"{int(renewed[:15]) + 10 * 365 * 86_400_000:015}:00000:go")


def test_observing_without_a_subscription(go: GoClient, server: EmbeddedServer) -> None:
    """An observer gets every change once with its version, DELETE in the word that the lock waits for, and nothing
    after STOP."""
    assert go.invoke(b"KEYNOTIFY", b"k").payload == b"+OK\r\n"
    assert go.invoke(b"KEYNOTIFY", b"k").payload == b"+OK\r\n"
    with GoClient(server.port, "go-writer", seed=2) as writer:
        version = writer.invoke(b"SET", b"k", b"abc").version
        deleted = writer.invoke(b"DEL", b"k")
        assert go.notifications.get(timeout=10) == (b"k", Notification(b"SET", b"abc", version))
        key, event = go.notifications.get(timeout=10)
        assert (key, event.operation, deleted.payload) == (b"k", b"DELETE", b":1\r\n")
        assert event.version is not None
        writer.invoke(b"SET", b"k", b"gone soon", b"PX", b"20")
        assert go.notifications.get(timeout=10)[1].value == b"gone soon"
        assert go.notifications.get(timeout=10)[1].operation == b"DELETE"
        assert go.invoke(b"KEYNOTIFY", b"k", b"STOP").payload == b"+OK\r\n"
        assert go.invoke(b"KEYNOTIFY", b"k", b"STOP").payload == b":0\r\n"
        writer.invoke(b"SET", b"k", b"unseen")
    go.invoke(b"GET", b"k")
    with pytest.raises(queue.Empty):
        go.notifications.get_nowait()


async def test_a_lock_goes_from_go_to_python(shell: Shell, server: EmbeddedServer, go: GoClient) -> None:
    """Our waiter gets a lock from Go with a newer token, and a late write of the former holder is refused."""
    held = GoLock(go, b"job", session_id="one")
    token = await asyncio.to_thread(held.lock, 10_000)
    await asyncio.to_thread(go.invoke, b"SET", b"state", b"go's", token=token)
    async with shell.client(server.url) as store:
        lock = store.lock("job")
        assert await lock.holder() == b"go-app:one"
        assert await lock.try_acquire() is None
        waiting = asyncio.ensure_future(lock.acquire(timeout=10))
        await asyncio.wait([waiting], timeout=0.1)
        await asyncio.to_thread(held.unlock)
        lease = await waiting
        assert str(lease.fencing_token) > token
        await store.guarded(lease).set("state", b"python's")
        with pytest.raises(GoSdkError, match="lower version"):
            await asyncio.to_thread(go.invoke, b"SET", b"state", b"late", token=token)
        assert await asyncio.to_thread(held.holder) == lease.holder


async def test_a_lock_goes_from_python_to_go(shell: Shell, server: EmbeddedServer, go: GoClient) -> None:
    """A Go waiter gets a lock that Python releases; our late write is refused then, and our lease knows why."""
    async with shell.client(server.url) as store:
        lock = store.lock("job")
        lease = await lock.acquire()
        await store.guarded(lease).set("state", b"python's")
        waiting = asyncio.ensure_future(asyncio.to_thread(GoLock(go, b"job").lock, 10_000))
        await asyncio.wait([waiting], timeout=0.1)
        assert await lock.release()
        token = await waiting
        assert token > str(lease.fencing_token)
        assert await lock.holder() == b"go-app"
        await asyncio.to_thread(go.invoke, b"SET", b"state", b"go's", token=token)
        with pytest.raises(FencingTokenTooOldError):
            await store.set("state", b"late", fencing_token=lease.fencing_token)


async def test_go_succeeds_a_python_holder_that_is_gone(shell: Shell, server: EmbeddedServer, go: GoClient) -> None:
    """When a Python holder is gone, its lease runs out and the server says DELETE, by which the SDK's waiter hears of
    it."""
    async with shell.client(server.url) as store:
        lease = await store.lock("job", lease=0.5).acquire()
    assert lease.ended.is_set()
    assert await asyncio.to_thread(GoLock(go, b"job").lock, 10_000) > str(lease.fencing_token)
