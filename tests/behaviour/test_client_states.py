"""The states that a client tells in order, and listeners that fail, close or block, with both shells."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from support.ports import reserved_port
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import until

from statestore_client import (
    BusyError,
    ConnectionState,
    SessionLostError,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer


async def test_the_states_are_told_in_order(shell: Shell) -> None:
    """States are reported in order: connecting, connected, suspended with its reason, connected again, closed."""
    told: list[tuple[ConnectionState, StateStoreError | None]] = []
    port = reserved_port()
    with EmbeddedServer(port) as first:
        store = shell.client(first.url, on_state=lambda state, error: told.append((state, error)))
        await store.open()
        assert store.state is ConnectionState.CONNECTED
    await until(lambda: store.state is ConnectionState.SUSPENDED)
    with EmbeddedServer(port=port):
        await until(lambda: store.state is ConnectionState.CONNECTED, 10)
        await store.close()
    await until(lambda: told[-1][0] is ConnectionState.CLOSED)
    states = [state for state, _ in told]
    assert states[:3] == ["connecting", "connected", "suspended"]
    assert states[-2:] == ["connected", "closed"]
    assert set(states[2:-2]) == {"suspended"}
    assert all((error is not None) == (state == "suspended") for state, error in told[:-2])
    assert isinstance(told[-2][1], SessionLostError)  # the second server knows nothing of the first one's sessions
    assert told[-1][1] is None


async def test_a_session_that_was_kept_is_not_told_as_lost(shell: Shell, server: EmbeddedServer) -> None:
    """After an outage with the session kept, a listener is told "suspended" and "connected", and of no lost session."""
    told: list[tuple[ConnectionState, StateStoreError | None]] = []
    async with Proxy(server.port) as proxy:
        async with shell.client(proxy.url, on_state=lambda state, error: told.append((state, error))) as store:
            proxy.cut()
            await until(lambda: len(told) > 2 and store.state is ConnectionState.CONNECTED, 10)
            await store.get("key")
        await until(lambda: told[-1][0] is ConnectionState.CLOSED)
    assert {error for state, error in told if state is not ConnectionState.SUSPENDED} == {None}


async def test_a_listener_that_fails_harms_nobody(shell: Shell, server: EmbeddedServer) -> None:
    """A listener's exception is logged, and the client goes on."""

    def fail(_state: ConnectionState, _error: StateStoreError | None) -> None:
        raise RuntimeError("listener")

    if shell.is_aio:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    async with shell.client(server.url, on_state=fail) as store:
        assert (await store.set("k", b"1")).applied


async def test_a_listener_may_close_the_client(shell: Shell, server: EmbeddedServer) -> None:
    """A listener may close the client, because it is called without any lock held."""
    closed = threading.Event()
    clients: list[Any] = []

    def close(state: ConnectionState, _error: StateStoreError | None) -> None:
        if state is ConnectionState.CONNECTED:
            if shell.is_aio:
                tasks.append(asyncio.ensure_future(clients[0].close()))
            else:
                clients[0].target.close()
            closed.set()

    tasks: list[asyncio.Future[None]] = []
    clients.append(shell.client(server.url, on_state=close))
    await clients[0].open()
    await until(closed.is_set)
    await until(lambda: clients[0].state is ConnectionState.CLOSED)
    for task in tasks:
        await task
    await clients[0].close()


async def test_a_blocking_listener_cannot_wait_for_itself(server: EmbeddedServer) -> None:
    """A blocking call from the network's own thread raises an error: it would wait for an answer that nobody reads."""
    from statestore_client import StateStoreClient

    errors: list[Exception] = []

    def call(state: ConnectionState, _error: StateStoreError | None) -> None:
        if state is ConnectionState.CONNECTED:
            for attempt in (lambda: store.get("k"), lambda: store.get_many(["k"]), store.watch("k").start, store.open):
                try:
                    attempt()
                except BusyError as error:
                    errors.append(error)

    store = StateStoreClient(server.url, on_state=call)
    with store:
        await until(lambda: len(errors) == 4)
    assert all("listener" in str(error) for error in errors)
