"""What a program drops without closing it: a ResourceWarning, as of files and sockets, and what can be ended is."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
import weakref
from functools import partial
from typing import Any

import pytest
from support.dropped import unclosed
from support.shells import Shell
from support.waiting import eventually, until

from statestore_client import AsyncStateStoreClient, StateStoreClient
from statestore_client.server import EmbeddedServer


async def end(engine: Any) -> None:
    """As closing its client does."""
    engine.stop()
    await engine.end()


def is_renewed(lease: Any, before: float) -> bool:
    return bool(lease.valid_until > before)


async def test_a_dropped_client_ends(shell: Shell, server: EmbeddedServer) -> None:
    """A client that was dropped says goodbye; its thread, socket and tasks end."""
    others, tasks = {*threading.enumerate()}, asyncio.all_tasks()
    store = shell.client(server.url, client_id="dropped")
    await store.open()
    await store.set("k", "v")
    with unclosed("state store client 'dropped' at "):
        del store
    await until(lambda: "dropped" not in server.sessions, "it says goodbye: the session is gone")
    ended = {thread for thread in threading.enumerate() if thread.name.startswith("statestore dropped")}
    await until(lambda: not any(thread.is_alive() for thread in ended - others))
    await until(lambda: asyncio.all_tasks() <= tasks)


async def test_a_client_that_never_opened_is_no_loss(shell: Shell, server: EmbeddedServer) -> None:
    """Nobody has to close a client that was never opened, or one that is closed."""
    with unclosed():
        store = shell.client(server.url)
        del store
        async with shell.client(server.url) as store:
            watch = await store.watch("k").start()
            lease = await store.lock("lock").acquire()
        del store, watch, lease


async def test_a_dropped_lease_is_given_back(server: EmbeddedServer) -> None:
    """A lease that was dropped is renewed no longer, and the lock is free at once."""
    async with AsyncStateStoreClient(server.url) as store:
        with unclosed("lease on lock"):
            await store.lock("lock", lease=60).acquire()
        async with store.lock("lock").acquire(timeout=5):
            pass


def test_a_dropped_lease_of_a_blocking_client_is_given_back(server: EmbeddedServer) -> None:
    """The same, and the threads that renewed it and watched the clock end."""
    with StateStoreClient(server.url) as store:
        with unclosed("lease on lock"):
            store.lock("lock", lease=60).acquire()
        with store.lock("lock").acquire(timeout=5):
            pass
        eventually(lambda: not [each for each in threading.enumerate() if each.name == "statestore lease"])


async def test_a_dropped_watch_is_ended(server: EmbeddedServer) -> None:
    """The server no longer notifies a watch that was dropped."""
    async with AsyncStateStoreClient(server.url) as store:
        with unclosed("watch on b'k'"):
            await store.watch("k").start()
        await until(lambda: any(b"KEYNOTIFY" in m.payload and b"STOP" in m.payload for m in server.messages))


def test_a_dropped_watch_of_a_blocking_client_is_ended(server: EmbeddedServer) -> None:
    """The same."""
    with StateStoreClient(server.url) as store:
        with unclosed("watch on b'k'"):
            store.watch("k").start()
        eventually(lambda: any(b"KEYNOTIFY" in m.payload and b"STOP" in m.payload for m in server.messages))


@pytest.mark.ci
async def test_what_is_in_use_keeps_its_client(server: EmbeddedServer) -> None:
    """A lease or a watch that is in use keeps its client, and a watch with a callback keeps itself."""
    seen: list[Any] = []
    with unclosed():
        lease = await (await AsyncStateStoreClient(server.url).open()).lock("lock", lease=6).acquire()
        watch = await (await AsyncStateStoreClient(server.url).open()).watch("k").start()
        caller = await AsyncStateStoreClient(server.url).open()
        engine = weakref.ref(caller._engine)
        await caller.watch("k", callback=seen.append).start()
        del caller
        gc.collect()
        async with AsyncStateStoreClient(server.url) as store:
            await store.set("k", "v")
            await until(lambda: seen)
            event = await watch.get(timeout=5)
            assert event is not None
            before = lease.valid_until
            await until(partial(is_renewed, lease, before))
        del store
    with unclosed("watch on b'k'", "state store client") as count:
        del watch
        await until(lambda: count() >= 2)
    with unclosed("lease on lock", "state store client") as count:
        del lease
        await until(lambda: count() >= 2)
    with unclosed():
        await end(engine())


@pytest.mark.ci
def test_what_is_in_use_keeps_its_blocking_client(server: EmbeddedServer) -> None:
    """The same."""
    seen: list[Any] = []
    with unclosed():
        lease = StateStoreClient(server.url).open().lock("lock", lease=6).acquire()
        watch = StateStoreClient(server.url).open().watch("k").start()
        caller = StateStoreClient(server.url).open()
        engine = weakref.ref(caller._engine)
        caller.watch("k", callback=seen.append).start()
        del caller
        gc.collect()
        with StateStoreClient(server.url) as store:
            store.set("k", "v")
            eventually(lambda: seen)
            assert watch.get(timeout=5) is not None
            before = lease.valid_until
            eventually(partial(is_renewed, lease, before))
        del store
    with unclosed("watch on b'k'", "state store client"):
        del watch
    with unclosed("lease on lock", "state store client"):
        del lease
        eventually(lambda: not [each for each in threading.enumerate() if each.name == "statestore lease"])
    with unclosed():
        kept = engine()
        assert kept is not None
        kept.stop()
        kept.end()
        del kept


@pytest.mark.machine
@pytest.mark.skipif(sys.version_info < (3, 12), reason="tracemalloc does not find instances (gh-93649)")
def test_the_warning_has_the_place(server: EmbeddedServer) -> None:
    """Under tracemalloc, the warning has the place where the client was made."""
    tracemalloc.start(20)
    try:
        with pytest.warns(ResourceWarning, match="state store client") as found:
            StateStoreClient(server.url).open()
        traceback = tracemalloc.get_object_traceback(found[0].source)
        assert traceback is not None
        assert __file__ in [frame.filename for frame in traceback]
    finally:
        tracemalloc.stop()
