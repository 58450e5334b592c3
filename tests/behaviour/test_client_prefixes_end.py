"""How a watch of a prefix ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prefix_recorder import Recorder
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    ClosedError,
    InvalidArgumentError,
    NotAuthorizedError,
    TooManyKeysError,
    UnknownCommandError,
)
from statestore_client.server import EmbeddedServer
from statestore_client.wire import commands
from statestore_client.wire.commands import KeyNotify

#: Far longer than a test: only what is notified is seen.


async def test_too_many_keys_end_it_with_advice(shell: Shell, server: EmbeddedServer) -> None:
    """Too many keys, at the start or in a later listing, end the watch with advice, and the client goes on."""
    async with shell.client(server.url) as store:
        await store.set_many((f"a/{n}", b"") for n in range(5))
        with pytest.raises(TooManyKeysError, match=r"more than 4 keys begin with b'a/'; raise max_keys"):
            await store.watch_prefix("a/", max_keys=4).start()
        async with store.watch_prefix("a/", max_keys=5, rescan=0.05) as events:
            await store.set("a/5", b"")
            with pytest.raises(TooManyKeysError):
                await events.get(timeout=20)
            assert isinstance(events.error, TooManyKeysError)
        assert await store.get("a/5") is not None


async def test_a_server_that_cannot_list_keys_is_told_from_others(
    shell: Shell, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that cannot list keys gets an error that says what the watch needs and what to do."""
    monkeypatch.delitem(commands._READERS, b"SCAN")
    async with shell.client(server.url) as store:
        with pytest.raises(UnknownCommandError, match="cannot list keys, and a watch on a prefix needs that") as caught:
            await store.watch_prefix("a/").start()
        assert (caught.value.command, caught.value.key) == ("SCAN", b"a/*")


async def test_a_client_without_the_right_to_watch_hears_of_it_with_the_first_key(shell: Shell) -> None:
    """A client without the right to watch is refused at the first key, because rights are on keys."""
    recorder = Recorder()
    recorder.forbidden = KeyNotify(b"a/1")
    with EmbeddedServer(authorize=recorder) as server:
        async with shell.client(server.url) as store, store.watch_prefix("a/", rescan=0.05) as events:
            await store.set("b/1", "x")
            assert events.error is None
            await store.set("a/1", "x")
            with pytest.raises(NotAuthorizedError, match="KEYNOTIFY of 'a/1'"):
                await events.get(timeout=20)


async def test_a_key_that_may_not_be_watched_is_named(shell: Shell) -> None:
    """A key that may not be watched ends the watch, and the error names it."""
    recorder = Recorder()
    recorder.forbidden = KeyNotify(b"a/2")
    with EmbeddedServer(authorize=recorder) as server:
        async with shell.client(server.url) as store:
            await store.set_many([("a/1", "x"), ("a/2", "x")])
            with pytest.raises(NotAuthorizedError, match="KEYNOTIFY of 'a/2'") as caught:
                await store.watch_prefix("a/").start()
            assert caught.value.key == b"a/2"
            await until(lambda: KeyNotify(b"a/1", stop=True) in recorder.commands)


async def test_it_ends_with_its_client(shell: Shell, server: EmbeddedServer) -> None:
    """A watch on a prefix ends with its client, and an iteration of it ends quietly."""
    async with shell.client(server.url) as store:
        await store.set("a/1", b"x")
        events = await store.watch_prefix("a/").start()

        async def values() -> list[bytes]:
            return [event.value async for event in events]

        iteration = asyncio.ensure_future(values())
        await store.set("a/1", b"y")
    assert await asyncio.wait_for(iteration, 20) in ([b"y"], [])
    assert isinstance(events.error, ClosedError)


@pytest.mark.parametrize(
    ("prefix", "options"),
    [(b"\xff", {}), ("a", {"rescan": 0}), ("a", {"max_keys": 0}), ("a", {"max_queued": 0}), ("a", {"callback": 7})],
)
async def test_what_cannot_be_is_refused_at_once(
    shell: Shell, server: EmbeddedServer, prefix: Any, options: Any
) -> None:
    """Impossible arguments are refused at the call, before anything is sent."""
    async with shell.client(server.url) as store:
        with pytest.raises(InvalidArgumentError):
            store.watch_prefix(prefix, **options)
