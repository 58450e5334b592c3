"""How an asyncio client ends: what was queued leaves, and no task, timer or socket stays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keys import Certificates
from support.proxy import Proxy
from support.server_clients import Gate
from support.waiting import until

from statestore_client import (
    AsyncStateStoreClient,
    BusyError,
    ClosedError,
    ConnectionState,
    LeaseLostError,
    StateStoreError,
)
from statestore_client.server import EmbeddedServer


@pytest.fixture(params=["native", "paho"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs once for each driver."""
    return str(request.param)


async def reconnect(store: AsyncStateStoreClient, proxy: Proxy) -> None:
    """Break the link, and wait until the client is connected again."""
    before = proxy.connections
    proxy.cut()
    await until(lambda: proxy.connections > before and store.state is ConnectionState.CONNECTED)


def own_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of this loop, except those of the test and its proxy."""
    return {t for t in asyncio.all_tasks() if "Proxy" not in repr(t.get_coro()) and t is not asyncio.current_task()}


async def test_closing_after_a_reconnect_says_goodbye(driver: str) -> None:
    """Closing after a reconnect sends what is queued for a slow broker, then DISCONNECT, and leaves nothing open."""
    gate = Gate()
    tasks = own_tasks()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    with EmbeddedServer(authorize=gate) as server:
        store = await AsyncStateStoreClient(server.url, client_id="slow", driver=driver).open()
        server.restart(keep_state=True)
        await until(lambda: store.state is ConnectionState.SUSPENDED)
        await until(lambda: store.state is ConnectionState.CONNECTED)
        calls = [asyncio.ensure_future(store.get("key"))]
        await until(gate.reached.is_set)  # it reads nothing now
        calls.append(asyncio.ensure_future(store.set("large", bytes(16_000_000), timeout=None)))
        await until(lambda: store.stats.requests == 2)
        closing = asyncio.ensure_future(store.close())
        assert all(isinstance(e, StateStoreError) for e in await asyncio.gather(*calls, return_exceptions=True))
        assert not (await asyncio.wait([closing], timeout=0.1))[0], "it waits for its goodbye"
        gate.open()
        await closing
        assert store._engine._link.driver is None
        assert own_tasks() <= tasks
        await until(lambda: "slow" not in server.sessions)
    assert not complaints


async def test_closing_after_a_reconnect_closes_the_socket(server: EmbeddedServer) -> None:
    """After a reconnect, the transport has released the socket when close() returns."""
    sockets: list[socket.socket] = []

    def open_socket(host: str, port: int, timeout_s: float) -> socket.socket:
        sockets.append(socket.create_connection((host, port), timeout_s))
        return sockets[-1]

    async with Proxy(server.port) as proxy:
        store = await AsyncStateStoreClient(proxy.url, open_socket=open_socket).open()
        await reconnect(store, proxy)
        await store.close()
        assert [sock.fileno() for sock in sockets] == [-1, -1]


async def test_closing_after_a_reconnect_ends_tls_in_order(server: EmbeddedServer, tmp_path: Path) -> None:
    """After a reconnect, close() waits until TLS's own closing message has been sent to the peer."""
    certificates = Certificates(tmp_path)
    async with Proxy(server.port, tls=certificates.server_context()) as proxy:
        store = await AsyncStateStoreClient(proxy.url, client_id="tls", tls_ca_file=certificates.ca_file).open()
        await reconnect(store, proxy)
        driver: Any = store._engine._link.driver
        await store.close()
        assert driver._transport is None
        await until(lambda: "tls" not in server.sessions)


async def test_a_cancelled_close_leaves_nothing_open(server: EmbeddedServer, driver: str) -> None:
    """When close() is cancelled while it waits for the last bytes to leave, the connection is cut, and close() may be
    called again."""
    async with Proxy(server.port) as proxy:
        store = await AsyncStateStoreClient(proxy.url, driver=driver).open()
        tasks = own_tasks()
        proxy.hold("up")
        writing = asyncio.ensure_future(store.set("large", bytes(16_000_000), timeout=None))
        await until(lambda: store.stats.requests == 1)
        closing = asyncio.ensure_future(store.close())
        await asyncio.wait([writing])
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(StateStoreError):
            await writing
        await until(lambda: store._engine._link.driver is None and own_tasks() <= tasks)
        await store.close()


async def test_callbacks_that_close_their_client_do_not_wait_for_each_other(server: EmbeddedServer) -> None:
    """Two callbacks that both close their client do not wait for each other, and end before close() has returned."""
    ended = []

    async def lost(_error: LeaseLostError) -> None:
        await client.close()
        ended.append("lost")

    async def on_state(state: ConnectionState, _why: object) -> None:
        if state is ConnectionState.CLOSED:
            await client.close()
            ended.append("closed")

    client = AsyncStateStoreClient(server.url, on_state=on_state)
    await client.open()
    lease = await client.lock("lock", lease=5).acquire()
    lease.on_lost(lost)
    await client.close()
    assert sorted(ended) == ["closed", "lost"]


@pytest.mark.ci
async def test_a_closed_client_has_no_tasks(server: EmbeddedServer, driver: str) -> None:
    """When close() returns, leases, watches with callbacks and attempts to connect have ended."""
    tasks = own_tasks()
    forever = asyncio.Event()

    async def stuck(_event: object) -> None:
        await forever.wait()

    async with Proxy(server.port) as proxy:
        store = await AsyncStateStoreClient(proxy.url, driver=driver).open()
        lock = store.lock("lock")
        await lock.acquire()
        await store.watch("key", callback=stuck).start()
        await store.set("key", b"1")
        await until(lambda: len(own_tasks() - tasks) >= 3)
        await store.close()
        assert own_tasks() <= tasks
        store = AsyncStateStoreClient(proxy.url, driver=driver)
        proxy.hold("down")
        opening = asyncio.ensure_future(store.open())
        await until(lambda: proxy.connections == 2)
        await store.close()
        with pytest.raises(ClosedError):
            await opening
        assert own_tasks() <= tasks


# -- other event loops -------------------------------------------------------------------------------------------------


@pytest.fixture
def loops() -> Iterator[tuple[asyncio.Runner, asyncio.Runner]]:
    """Two event loops, of which one runs at a time."""
    with asyncio.Runner() as one, asyncio.Runner() as other:
        one.get_loop()
        other.get_loop()
        yield one, other


def test_another_loop_may_use_and_end_nothing(
    server: EmbeddedServer, driver: str, loops: tuple[asyncio.Runner, asyncio.Runner]
) -> None:
    """Every call from another event loop raises a typed error and changes nothing; the client's own loop can still
    close it."""
    one, other = loops
    store: Any = AsyncStateStoreClient(server.url, driver=driver)
    one.run(store.open())
    events, lock, states = store.watch("key"), store.lock("lock", lease=60), store.lock("lock").observe()
    one.run(events.start())
    lease = one.run(lock.acquire())
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        store.close,
        lambda: store.__aexit__(None, None, None),
        store.open,
        lambda: store.get("key"),
        events.start,
        events.close,
        lambda: events.get(timeout=1),
        states.start,
        lock.release,
        lambda: store.lock("lock").acquire(timeout=1),
    ]

    async def try_all() -> None:
        for call in calls:
            with pytest.raises(BusyError, match="another event loop"):
                await call()

    other.run(try_all())
    assert lease.valid

    async def go_on() -> None:
        await store.set("key", b"1")
        event = await events.get(timeout=5)
        assert event is not None
        assert event.value == b"1"
        assert await lock.release()
        await events.close()
        await store.close()

    one.run(go_on())
    other.run(store.close())  # once more, and there is nothing left to do


# -- an event loop that was closed first -------------------------------------------------------------------------------


async def _strand(store: AsyncStateStoreClient) -> tuple[Any, Any, Any]:
    await store.open()
    watch = await store.watch("key").start()
    lock = store.lock("lock", lease=60)
    lease = await lock.acquire()
    asyncio.ensure_future(watch.get())  # noqa: RUF006 - it waits when the loop is closed
    await asyncio.sleep(0)
    return watch, lock, lease


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.usefixtures("remains_of_loops")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_client_whose_loop_is_closed_can_be_ended(
    server: EmbeddedServer, driver: str, is_cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing frees the socket and ends leases and watches without their loop, and a line in the log says so."""
    store = AsyncStateStoreClient(server.url, driver=driver, client_id="stranded")
    lost: list[StateStoreError] = []
    if is_cancelled:
        watch, lock, lease = asyncio.run(_strand(store))
    else:
        loop = asyncio.new_event_loop()
        watch, lock, lease = loop.run_until_complete(_strand(store))
        loop.close()

    async def end() -> None:
        lease.on_lost(lost.append)
        with pytest.raises(ClosedError, match="event loop in which this client was opened is closed"):
            await store.get("key")
        with pytest.raises(ClosedError, match="free when their leases end"):
            await lock.release()
        assert not lease.valid
        await watch.close()
        await store.close()
        assert store.state is ConnectionState.CLOSED
        await store.close()
        await until(lambda: "stranded" not in server.sessions or not server.sessions["stranded"].is_connected)

    asyncio.run(end())
    assert "stranded was closed before the client" in caplog.text


@pytest.mark.usefixtures("remains_of_loops")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_closing_a_client_without_its_loop_tells_of_the_lease(server: EmbeddedServer, driver: str) -> None:
    """A lease that was not released is lost when its client is closed without a loop."""
    store = AsyncStateStoreClient(server.url, driver=driver)
    _, _, lease = asyncio.run(_strand(store))
    lost: list[StateStoreError] = []
    lease.on_lost(lost.append)
    asyncio.run(store.close())
    assert [str(error) for error in lost] == ["the client was closed"]
    assert not lease.valid


def test_leaving_a_lock_in_another_loop_changes_nothing(
    server: EmbeddedServer, loops: tuple[asyncio.Runner, asyncio.Runner]
) -> None:
    """Leaving the block of a lock in another loop releases nothing, and the lock can be released in its own."""
    one, other = loops
    store = AsyncStateStoreClient(server.url)
    one.run(store.open())
    lock = store.lock("lock", lease=60)
    one.run(lock.__aenter__())
    other.run(lock.__aexit__(None, None, None))
    assert one.run(lock.release())
    one.run(store.close())
