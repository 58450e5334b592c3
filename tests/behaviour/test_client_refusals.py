"""Refusals name what was refused, with both shells."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from support.shells import Shell

from statestore_client import (
    BatchError,
    FencingError,
    FencingTokenRequiredError,
    FencingTokenTooOldError,
    NotAuthorizedError,
    ServerError,
)
from statestore_client.server import EmbeddedServer


@pytest.mark.parametrize(
    ("call", "command", "key", "text"),
    [
        (lambda store: store.set("pump-7", b"secret"), "SET", b"pump-7", "SET of 'pump-7'"),
        (lambda store: store.get(b"\xff\x00"), "GET", b"\xff\x00", r"GET of b'\xff\x00'"),
        (lambda store: store.delete("d" * 100), "DEL", b"d" * 100, f"DEL of '{'d' * 80}'... (100 bytes)"),
        (lambda store: store.vdelete("pump-7", b"1"), "VDEL", b"pump-7", "VDEL of 'pump-7'"),
        (lambda store: anext(store.scan("pump-*")), "SCAN", b"pump-*", "SCAN of 'pump-*'"),
        (lambda store: store.watch("pump-7").start(), "KEYNOTIFY", b"pump-7", "KEYNOTIFY of 'pump-7'"),
        (lambda store: store.lock("job").acquire(), "SET", b"job", "SET of 'job'"),
    ],
)
async def test_who_may_not_do_it_hears_what(shell: Shell, call: Any, command: str, key: bytes, text: str) -> None:
    """A refused client gets command and key in the error's text and attributes, beside the server's own words."""
    with EmbeddedServer(authorize=lambda _client, _command: False) as server:
        async with shell.client(server.url) as store:
            with pytest.raises(NotAuthorizedError) as caught:
                await call(store)
    error = caught.value
    assert (error.command, error.key, error.message) == (command, key, "not authorized")
    assert str(error) == f"not authorized ({text})"


async def test_a_fence_names_what_it_keeps_out(shell: Shell, server: EmbeddedServer) -> None:
    """The error of a fenced key names the key, for a missing and an old token, in requests, batches and edits."""
    async with shell.client(server.url) as store:
        old = (await store.set("a", b"")).version
        new = (await store.set("a", b"")).version
        await store.set("guarded", b"1", fencing_token=new)
        calls: list[tuple[Any, type[FencingError]]] = [
            (lambda: store.set("guarded", b"2"), FencingTokenRequiredError),
            (lambda: store.set("guarded", b"2", fencing_token=old), FencingTokenTooOldError),
        ]
        for call, kind in calls:
            with pytest.raises(kind) as caught:
                await call()
            assert (caught.value.command, caught.value.key) == ("SET", b"guarded")
            assert str(caught.value) == f"{kind.wire_text} (SET of 'guarded')"
        with pytest.raises(BatchError, match=r"the first is number 1: a fencing token .* \(DEL of 'guarded'\)"):
            await store.delete_many(["a", "guarded"])


async def test_a_broker_that_refuses_a_publication_is_told_of_with_the_key(shell: Shell) -> None:
    """The error of a publication that the broker refuses (PUBACK 0x87) names the key."""
    with EmbeddedServer(faults=True) as server:
        async with shell.client(server.url) as store:
            server.faults.refuse("PUBLISH", 0x87)
            with pytest.raises(NotAuthorizedError, match=r"does not let this client publish .* \(SET of 'key'\)"):
                await store.set("key", b"1")


def test_a_named_refusal_travels() -> None:
    """A refusal keeps what it names when it is pickled or copied."""
    error = ServerError("no")
    error.command, error.key = "SET", b"key"
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert (str(other), other.command, other.key, other.message) == ("no (SET of 'key')", "SET", b"key", "no")
