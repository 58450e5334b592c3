"""What many clients see of a key at once can be put into one order, also while links are cut."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest
from linearizability import REFUSED, UNKNOWN, Operation, explain, is_linearizable
from support.proxy import Proxy
from support.schedules import SEED, scaled
from support.shells import Shell

from statestore_client import StateStoreError
from statestore_client.server import EmbeddedServer
from statestore_client.server.store import StateStore
from statestore_client.wire.commands import Get

pytestmark = pytest.mark.scaled

_CLIENTS = 5
_OPERATIONS = 8
_HISTORIES = scaled(100, 2500)  # for each of four kinds of clients
_HISTORIES_WITH_CUTS = scaled(40, 400)
_KINDS = ("set", "set", "nx", "nex", "get", "get", "get", "delete", "vdelete")


async def _call(store: Any, kind: str, key: str, value: bytes) -> object:
    match kind:
        case "get":
            item = await store.get(key)
            return None if item is None else item.value
        case "delete":
            return (await store.delete(key)).count
        case "vdelete":
            return (await store.vdelete(key, value)).count
        case "set":
            return (await store.set(key, value)).applied
        case _:
            return (await store.set(key, value, condition=kind.upper())).applied


async def _client(store: Any, key: str, random: Random, history: list[Operation]) -> None:
    for _ in range(_OPERATIONS):
        kind, value = random.choice(_KINDS), b"%d" % random.randrange(3)
        call = time.monotonic()
        try:
            result = await _call(store, kind, key, value)
        except StateStoreError as error:
            if error.may_have_been_applied and kind != "get":
                history.append(Operation(kind, value, UNKNOWN, call))
        else:
            history.append(Operation(kind, value, result, call, time.monotonic()))


async def _record(stores: list[Any], key: str, random: Random) -> list[Operation]:
    history: list[Operation] = []
    await asyncio.gather(*(_client(store, key, Random(random.random()), history) for store in stores))
    return history


async def test_concurrent_histories_are_linearizable(
    shell: Shell, server: EmbeddedServer, figures: Callable[[str], None]
) -> None:
    """What five clients see of one key by set, NX, NEX, get, del and vdel can be put into one order."""
    random = Random(f"{SEED} {shell.name} {shell.driver}")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(shell.client(server.url)) for _ in range(_CLIENTS)]
        for n in range(_HISTORIES):
            history = await _record(stores, f"key{n}", random)
            assert len(history) == _CLIENTS * _OPERATIONS
            assert is_linearizable(history), explain(history)
    figures(f"{_HISTORIES} histories of {_CLIENTS} × {_OPERATIONS} operations, seed {SEED}")


async def test_histories_with_cut_links_are_linearizable(
    shell: Shell, server: EmbeddedServer, figures: Callable[[str], None]
) -> None:
    """The history can be put into one order while three of the five clients lose their connections again and again."""
    random = Random(f"{SEED} cuts {shell.name} {shell.driver}")
    unknown = 0
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(Proxy(server.port))
        urls = [proxy.url] * 3 + [server.url] * 2
        stores = [await stack.enter_async_context(shell.client(url, max_reconnect_delay=0.1)) for url in urls]

        async def cut() -> None:
            for _ in itertools.count():
                await asyncio.sleep(random.uniform(0.005, 0.15))
                proxy.cut()

        cutting = asyncio.ensure_future(cut())
        for n in range(_HISTORIES_WITH_CUTS):
            history = await _record(stores, f"key{n}", random)
            unknown += sum(operation.result is UNKNOWN for operation in history)
            assert is_linearizable(history), explain(history)
        cutting.cancel()
        assert proxy.connections > 2 * 3
    figures(f"{_HISTORIES_WITH_CUTS} histories, {proxy.connections} connections, {unknown} unknown, seed {SEED}")


async def test_a_broken_server_is_caught(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sometimes answers a read with its first answer is caught. Not every history shows it: an old value
    may be right when all operations overlap."""
    apply = StateStore.apply
    random = Random(SEED)
    stale: dict[bytes, Any] = {}

    def broken(self: StateStore, command: Any, request: Any) -> Any:
        outcome = apply(self, command, request)
        if isinstance(command, Get):
            first = stale.setdefault(command.key, outcome)
            return first if random.random() < 0.5 else outcome
        return outcome

    monkeypatch.setattr(StateStore, "apply", broken)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EmbeddedServer())
        stores = [await stack.enter_async_context(shell.client(server.url)) for _ in range(_CLIENTS)]
        for n in range(400):
            if not is_linearizable(await _record(stores, f"key{n}", random)):
                return
    pytest.fail("400 histories looked right")


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([Operation("set", b"1", True, 0, 1), Operation("get", None, b"1", 2, 3)], True),
        ([Operation("set", b"1", True, 0, 1), Operation("get", None, None, 2, 3)], False),
        ([Operation("set", b"1", True, 0, 4), Operation("get", None, None, 2, 3)], True),
        ([Operation("set", b"1", UNKNOWN, 0), Operation("get", None, None, 2, 3)], True),
        ([Operation("set", b"1", UNKNOWN, 0), Operation("get", None, b"1", 2, 3)], True),
        ([Operation("set", b"1", UNKNOWN, 4), Operation("get", None, b"1", 2, 3)], False),
        (
            # Two reads at the same time may not see the new value in turns (Herlihy and Wing 1990, figure 1d).
            [
                Operation("set", b"1", True, 0, 9),
                Operation("get", None, b"1", 1, 2),
                Operation("get", None, None, 3, 4),
            ],
            False,
        ),
        ([Operation("nx", b"1", True, 0, 1), Operation("nx", b"2", True, 0, 1)], False),
        ([Operation("nex", b"1", True, 0, 1), Operation("nex", b"1", True, 2, 3)], True),
        ([Operation("set", b"1", True, 0, 1), Operation("vdelete", b"2", 1, 2, 3)], False),
        ([Operation("delete", None, 1, 0, 1)], False),
        ([Operation("set", b"1", True, 0, 1, token=2), Operation("set", b"2", REFUSED, 2, 3, token=1)], True),
        ([Operation("set", b"1", True, 0, 1, token=2), Operation("set", b"2", True, 2, 3, token=1)], False),
        ([Operation("set", b"1", True, 0, 1, token=2), Operation("set", b"2", True, 2, 3)], False),
        ([Operation("set", b"1", True, 0, 1, token=2), Operation("set", b"2", REFUSED, 2, 3, token=2)], False),
        ([Operation("set", b"1", UNKNOWN, 0, token=2), Operation("set", b"2", REFUSED, 2, 3, token=1)], True),
        (
            # The mark of a key disappears with it.
            [
                Operation("set", b"1", True, 0, 1, token=2),
                Operation("delete", None, 1, 2, 3, token=2),
                Operation("set", b"2", True, 4, 5, token=1),
            ],
            True,
        ),
    ],
)
def test_the_checker_knows_good_from_bad(history: list[Operation], expected: bool) -> None:
    """The checker accepts and rejects small histories whose verdict is obvious."""
    assert is_linearizable(history) is expected
