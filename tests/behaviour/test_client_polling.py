"""Readers that only look, with a time-out of 0: they hear of everything, and leave the event loop its turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import AsyncStateStoreClient
from statestore_client.server import EmbeddedServer


async def leaves_turns(take: Callable[[], Awaitable[Any]]) -> None:
    """A timer that is due runs although somebody polls without a pause."""
    rang = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, rang.set)
    polls = 0
    while not rang.is_set():
        await take()
        polls += 1
        assert polls < 200_000, "the timer that was due never ran"


async def test_a_task_that_only_looks_leaves_turns_to_others(server: EmbeddedServer) -> None:
    """A task that reads with a time-out of 0 lets other tasks run, with or without events to read."""
    async with AsyncStateStoreClient(server.url) as store:
        watch, observation = store.watch("key", max_queued=10_000), store.lock("lock").observe()
        async with watch, observation:
            assert await observation.get(timeout=0) is not None
            await leaves_turns(lambda: watch.get(timeout=0))
            await leaves_turns(lambda: observation.get(timeout=0))
            await store.set("key", b"1")
            await leaves_turns(lambda: watch.get(timeout=0))


@pytest.mark.parametrize("what", ["watch", "observation"])
async def test_a_reader_that_only_looks_hears_of_everything(shell: Shell, server: EmbeddedServer, what: str) -> None:
    """A reader with a time-out of 0 gets every event, although somebody else reads the socket."""
    async with shell.client(server.url) as store, shell.client(server.url) as other:
        lock = store.lock("key")
        async with store.watch("key") if what == "watch" else lock.observe() as reader:
            if what == "observation":
                assert await reader.get(timeout=0) is not None
            await other.set("key", b"1")
            deadline = time.monotonic() + 20
            while (await reader.get(timeout=0)) is None:
                assert time.monotonic() < deadline
