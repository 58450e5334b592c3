"""The functions that users give to a client, plain ones and what has to be awaited, and the states that are told."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
import pytest
from support.ports import reserved_port
from support.proxy import Proxy
from support.shells import Shell
from support.waiting import eventually, until

from statestore_client import (
    AsyncStateStoreClient,
    BusyError,
    ConnectionState,
    InvalidArgumentError,
    LeaseLostError,
    SessionLostError,
    SettingsError,
    StateStoreClient,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer


async def coroutine_function(*_: object) -> None:
    """What has to be awaited."""


async def generator_function(*_: object) -> Any:
    """What can only be iterated."""
    yield


class AwaitedSessions:
    """An object whose calls have to be awaited."""

    async def __call__(self, *_: object) -> None: ...

    async def method(self, *_: object) -> None: ...


#: Everything that looks like a function and makes something to await.
AWAITED = (
    coroutine_function,
    functools.partial(coroutine_function, 1),
    AwaitedSessions(),
    functools.partial(functools.partial(AwaitedSessions(), 1), 2),
    AwaitedSessions().method,
)
NO_FUNCTIONS = ("on_state", generator_function)


def log_of(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(f"{r.getMessage()} {r.exc_info[1] if r.exc_info else ''}" for r in caplog.records)


# -- refused at the call -----------------------------------------------------------------------------------------------


async def test_what_a_client_cannot_call_is_refused(shell: Shell, server: EmbeddedServer) -> None:
    """A listener or callback that the client cannot call, or, blocking, cannot await, is refused at the call, and
    nothing is done."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, "theirs", protocol=paho.MQTTv5)
    async with shell.client(server.url) as store, store.lock("lock") as lease:
        for function in (*NO_FUNCTIONS, *(() if shell.is_aio else AWAITED)):
            with pytest.raises(InvalidArgumentError, match="on_state"):
                shell.client(server.url, on_state=function)
            for _ in range(2):  # and the application's client is not taken
                with pytest.raises(InvalidArgumentError, match="on_state"):
                    shell.over(client, on_state=function)
            with pytest.raises(InvalidArgumentError, match="callback"):
                store.watch("key", callback=function)
            with pytest.raises(InvalidArgumentError, match="callback"):
                lease.on_lost(function)
    assert client.on_publish is None


async def test_functions_that_must_answer_at_once_are_plain(shell: Shell, server: EmbeddedServer) -> None:
    """Both clients refuse a coroutine function as a clock, as what opens sockets, and as the change of an edit."""
    async with shell.client(server.url) as store:
        lock = store.lock("lock")
        for function in (*AWAITED, *NO_FUNCTIONS):
            for name in ("clock", "open_socket"):
                with pytest.raises(InvalidArgumentError, match=name):
                    shell.client(server.url, **{name: function})
            with pytest.raises(InvalidArgumentError, match="change"):
                await lock.edit("key", function)
        assert await lock.holder() is None


async def test_a_change_that_returns_a_coroutine_is_an_error(shell: Shell, server: EmbeddedServer) -> None:
    """An edit whose change returns a coroutine raises an error, writes nothing and frees the lock; the coroutine is
    closed."""
    async with shell.client(server.url) as store:
        lock = store.lock("lock")
        with pytest.raises(InvalidArgumentError, match="change returned 'coroutine'"):
            await lock.edit("key", lambda _value: coroutine_function())
        assert await store.get("key") is None
        assert await lock.holder() is None


async def test_an_opener_that_returns_a_coroutine_is_an_error(server: EmbeddedServer) -> None:
    """If the function that opens sockets returns a coroutine, open() fails with that reason in both clients."""

    def opener(host: str, port: int, timeout_s: float) -> socket.socket:
        return coroutine_function()  # type: ignore[return-value]

    with pytest.raises(SettingsError, match="open_socket must return a connected"):
        await AsyncStateStoreClient(server.url, open_socket=opener).open()
    with pytest.raises(SettingsError, match="open_socket must return a connected"):
        await asyncio.to_thread(StateStoreClient(server.url, open_socket=opener).open)


async def test_a_plain_function_that_returns_a_coroutine_is_told_in_the_log(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """When a plain callback returns a coroutine, the blocking client logs that nobody awaits it, and goes on."""

    def use() -> None:
        with StateStoreClient(server.url, on_state=lambda *_: coroutine_function()) as store:
            lock = store.lock("lock")
            lock.acquire().on_lost(lambda _: coroutine_function())
            with store.watch("key", callback=lambda _: coroutine_function()):
                store.set("key", b"1")
                store.set("key", b"2")
                eventually(
                    lambda: log_of(caplog).count("the callback of the watch on b'key' failed") == 2, "both are told"
                )

    with caplog.at_level(logging.ERROR, "statestore_client"):
        await asyncio.to_thread(use)
        await until(lambda: log_of(caplog).count("returned 'coroutine', which nobody awaits") >= 5)
    for what in ("the state listener", "the callback of the watch", "a callback for the loss of the lease"):
        assert what in log_of(caplog)


# -- awaited by the asyncio client -------------------------------------------------------------------------------------


def kinds(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The same coroutine function in all its forms."""

    class Callable_:  # noqa: N801 - a name for one test
        async def __call__(self, *arguments: object) -> None:
            await function(*arguments)

    return [function, functools.partial(function), Callable_(), lambda *arguments: function(*arguments)]


@pytest.mark.parametrize("kind", range(4), ids=["function", "partial", "object", "lambda"])
async def test_the_listener_is_awaited_in_order(server: EmbeddedServer, kind: int) -> None:
    """The listener is awaited for one state after the other, however long it takes, and CLOSED is the last, before
    close() returns."""
    told: list[str] = []

    async def listen(state: ConnectionState, error: StateStoreError | None) -> None:
        told.append(f"{state} begins")
        for _ in range(20):
            await asyncio.sleep(0)
        told.append(f"{state} ends")

    async with Proxy(server.port) as proxy:
        async with AsyncStateStoreClient(proxy.url, on_state=kinds(listen)[kind]) as store:
            proxy.cut()
            await until(lambda: store.state is ConnectionState.SUSPENDED)
            await until(lambda: store.state is ConnectionState.CONNECTED)
        assert told == [
            f"{state} {word}"
            for state in ("connecting", "connected", "suspended", "connected", "closed")
            for word in ("begins", "ends")
        ]


async def test_the_loss_of_a_lease_is_awaited(server: EmbeddedServer) -> None:
    """Each callback for the loss of a lease is awaited, whatever becomes of the others, and close() waits for them."""
    told: list[str] = []

    async def lost(error: LeaseLostError) -> None:
        assert "closed" in str(error)
        await asyncio.sleep(0)
        told.append("lost")

    async def fail(_error: LeaseLostError) -> None:
        raise RuntimeError("this callback")

    async with AsyncStateStoreClient(server.url) as store:
        lease = await store.lock("lock").acquire()
        lease.on_lost(fail)
        lease.on_lost(lost)
        lease.on_lost(lambda _: told.append("plain"))
        lease.on_lost(lost)
        await store.close()
        assert told == ["plain", "lost", "lost"]
        lease.on_lost(lost)
        await until(lambda: told == ["plain", "lost", "lost", "lost"])


async def test_what_a_coroutine_raises_is_logged(server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of an awaited listener or callback is logged, also when something that it awaited was cancelled."""
    calls = 0

    async def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise RuntimeError("this one failed")
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    with caplog.at_level(logging.ERROR, "statestore_client"):
        async with AsyncStateStoreClient(server.url, on_state=fail) as store:
            await until(lambda: calls == 2)
            async with store.watch("key", callback=fail):
                await store.set_many([("key", b"1"), ("key", b"2"), ("key", b"3")])
                await until(lambda: calls == 5)
            lease = await store.lock("lock").acquire()
            lease.on_lost(fail)
            lease.on_lost(fail)
    assert calls == 8
    assert log_of(caplog).count("this one failed") + log_of(caplog).count("was cancelled") == 8


async def test_a_listener_may_use_and_close_the_client(server: EmbeddedServer) -> None:
    """A listener may use and close the client: it runs in a task of its own, for which its own close() does not
    wait."""
    told: list[str] = []

    async def listen(state: ConnectionState, _error: StateStoreError | None) -> None:
        told.append(state)
        if state is ConnectionState.CONNECTED:
            told.append(str((await store.set("key", b"1")).applied))
            await store.close()
            told.append("closed it")

    store = AsyncStateStoreClient(server.url, on_state=listen)
    await store.open()
    await until(lambda: len(told) == 5)
    assert told == ["connecting", "connected", "True", "closed it", "closed"]
    await store.close()


@pytest.mark.parametrize("where", ["on_state", "watch", "on_lost"])
async def test_what_never_returns_is_cancelled_at_the_end(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A callback that never returns is cancelled some time after close(), here 0.3 s, and no task is left behind."""
    monkeypatch.setattr("statestore_client.aio.engine._CLOSE_TIMEOUT_S", 0.3)
    cancelled = asyncio.Event()

    async def stuck(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    tasks = asyncio.all_tasks()
    store = await AsyncStateStoreClient(server.url, on_state=stuck if where == "on_state" else None).open()
    if where == "watch":
        await store.watch("key", callback=stuck).start()
        await store.set("key", b"1")
    if where == "on_lost":
        lock = store.lock("lock")
        (await lock.acquire()).on_lost(stuck)
    began = asyncio.get_running_loop().time()
    await store.close()
    assert asyncio.get_running_loop().time() - began > 0.28
    assert cancelled.is_set()
    assert asyncio.all_tasks() == tasks


# -- states, and listeners that fail, close or block -------------------------------------------------------------------


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


@pytest.mark.parametrize("end", ["lease", "lock", "resign", "exit"])
async def test_a_listener_may_release_a_lease(shell: Shell, server: EmbeddedServer, end: str) -> None:
    """A listener may release a lease: the lock is free then, and not only for this program."""
    ends: list[Callable[[], Any]] = []
    outcomes: list[object] = []

    async def release(state: ConnectionState, _error: StateStoreError | None) -> None:
        if state is ConnectionState.CONNECTED and ends:
            outcomes.append(await ends[0]())

    def release_at_once(state: ConnectionState, _error: StateStoreError | None) -> None:
        if state is ConnectionState.CONNECTED and ends:
            outcomes.append(ends[0]())

    async with (
        shell.client(server.url, on_state=release if shell.is_aio else release_at_once) as store,
        AsyncStateStoreClient(server.url) as other,
    ):
        contender = store.election("lock", term=60) if end == "resign" else store.lock("lock", lease=60)
        lease = await (contender.campaign() if end == "resign" else contender.acquire())
        lease, contender = (getattr(each, "target", each) for each in (lease, contender))
        leave = contender.__aexit__ if shell.is_aio and end == "exit" else getattr(contender, "__exit__", None)
        ends.append(
            {
                "lease": lambda: lease.release(),
                "lock": lambda: contender.release(),
                "resign": lambda: contender.resign(),
                "exit": lambda: leave(None, None, None),
            }[end]
        )
        server.restart(keep_state=True)
        await until(lambda: outcomes)
        assert outcomes == [None if end == "exit" else True]
        async with other.lock("lock").acquire(timeout=10):
            pass


async def test_a_blocking_listener_cannot_wait_for_itself(server: EmbeddedServer) -> None:
    """A blocking call from the network's own thread raises an error: it would wait for an answer that nobody reads."""
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
