"""Threads, tasks, loops and processes: who may use a client, and what happens to the others when one leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.scripted_peers import UPDATE, ScriptedCluster
from support.waiting import until

from raft_client import (
    AsyncRaftClient,
    BusyError,
    ClientClosedError,
    ConnectionState,
    ForkedClientError,
    KeyValueCodec,
    RaftClient,
    RequestTimeoutError,
)
from raft_client.aio import engine
from raft_client.sync.socket_reader import Poller, _PollPoller, _SelectorPoller

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and later


def test_a_thread_that_stops_reading_hands_over(peers: ScriptedCluster, executor: ThreadPoolExecutor) -> None:
    """When the thread that waits for the sockets times out, another takes over, and the sleeping callers get their
    answers."""
    with RaftClient(peers.seeds, response_timeout=30) as client:
        peers.script("1", UPDATE, lambda _frames: [])
        first = executor.submit(client.append, b"a", timeout=0.3)
        others = [executor.submit(client.append, b"b", timeout=20) for _ in range(5)]
        with pytest.raises(RequestTimeoutError):
            first.result(10)
        peers.script("1", UPDATE, None)
        peers.kill("1")
        peers.elect("2")
        assert sorted(other.result(10) for other in others) == [1, 2, 3, 4, 5]


def test_the_thread_that_reads_may_wake_at_any_moment(peers: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads may wake at any moment, also while another compares its sleeping time with a new
    deadline."""
    with RaftClient(peers.seeds) as client:
        sockets = client._engine._sockets
        next_look = sockets._next_look

        def wake_and_look(now: float) -> float:
            sockets._wakes_at = None
            return next_look(now)

        monkeypatch.setattr(sockets, "_next_look", wake_and_look)
        sockets._wakes_at = time.monotonic() + 60
        assert client.append(b"a") == 1


def test_an_interrupted_call_leaves_no_trace(peers: ScriptedCluster) -> None:
    """Ctrl-C while waiting makes the client forget the request, and the client can be used on."""
    with RaftClient(peers.seeds) as client:
        peers.script("1", UPDATE, lambda _frames: [])
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.append(b"a", timeout=20)
        timer.join()
        peers.script("1", UPDATE, None)
        assert client.append(b"b") == 1


def test_a_forked_child_cannot_use_the_client(peers: ScriptedCluster) -> None:
    """A forked child that uses the client gets an error, may close it, and the parent goes on."""
    with RaftClient(peers.seeds) as client:
        stream = client.entries()
        child = os.fork()
        if child == 0:
            os._exit(_in_the_child(client, stream))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert client.append(b"a") == 1


def _in_the_child(client: RaftClient, stream: object) -> int:
    try:
        for call in (client.config, lambda: client.append(b"x"), lambda: next(stream), client.watch, client.open):
            try:
                call()
            except ForkedClientError:
                continue
            return 2
        client.close()
    except BaseException:  # noqa: BLE001 - nothing may leave the child
        return 3
    return 0


def test_a_client_opened_before_fork_in_its_child_works(peers: ScriptedCluster) -> None:
    """Many forked children can each open a client from the parent's settings."""
    children = []
    for number in range(3):
        child = os.fork()
        if child == 0:
            os._exit(_append_in_the_child(peers.seeds, number))
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert sorted(entry[20:] for entry in peers.log) == [b"0", b"1", b"2"]
    assert len({entry[:12] for entry in peers.log}) == 3


def _append_in_the_child(seeds: str, number: int) -> int:
    try:
        with RaftClient(seeds) as client:
            client.append(b"%d" % number)
    except BaseException:  # noqa: BLE001 - nothing may leave the child
        return 1
    return 0


async def test_a_cancelled_task_leaves_no_trace(peers: ScriptedCluster) -> None:
    """A cancelled task's request is forgotten, and other tasks go on."""
    async with AsyncRaftClient(peers.seeds) as client:
        peers.script("1", UPDATE, lambda _frames: [])
        task = asyncio.create_task(client.append(b"a"))
        batch = asyncio.create_task(client.append_many([b"b"] * 10))
        await until(lambda: len([s for s in list(peers.seen) if s[2] == UPDATE]) == 11)
        for cancelled in (task, batch):
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        peers.script("1", UPDATE, None)
        assert await client.append(b"c") == 1


async def test_a_client_belongs_to_its_loop(peers: ScriptedCluster) -> None:
    """In another event loop every call, also reading, stopping and closing, is refused and changes nothing."""
    peers.fill(200)
    async with AsyncRaftClient(peers.seeds) as client, client.watch(after=0) as watch, client.subscribe(0) as reader:
        entries = client.entries(0, buffer_bytes=1)  # most of them are still to come
        assert (await anext(entries)).index == 1
        unread = client.entries(0)
        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: client.append(b"a"),
            lambda: watch.get(0),
            lambda: reader.next_batch(0),
            unread.next_batch,
            watch.close,
            reader.close,
            entries.close,
            client.close,
        ]
        for call in calls:
            with pytest.raises(BusyError, match="another event loop"):
                await asyncio.to_thread(lambda call=call: asyncio.run(call()))
        with pytest.raises(BusyError, match="another event loop"):
            await asyncio.to_thread(client.watch)
        assert (await anext(entries)).index == 2
        assert await reader.next_batch(10) is not None
        assert await client.append(KeyValueCodec.set("a", "1")) == 201
        assert await watch.get(10) is not None


def test_waiting_costs_nothing(peers: ScriptedCluster, executor: ThreadPoolExecutor) -> None:
    """While they wait, neither the thread that reads nor those that sleep use the processor."""
    with RaftClient(peers.seeds, response_timeout=30) as client:
        peers.script("1", UPDATE, lambda _frames: [])
        waiting = [executor.submit(client.append, b"a", timeout=1.0) for _ in range(8)]
        begun = time.thread_time(), time.process_time()
        for future in waiting:
            with pytest.raises(RequestTimeoutError):
                future.result(10)
        assert time.process_time() - begun[1] < 0.5


# -- sleeping on descriptors: in time, whatever time that is -----------------------------------------------------------


@pytest.fixture(params=[_PollPoller, _SelectorPoller])
def poller(request: pytest.FixtureRequest) -> Iterator[Poller]:
    made: Poller = request.param()
    yield made
    made.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", [0.0, -0.0005, -0.5, -1e6])
def test_a_moment_that_has_passed_is_no_wait(poller: Poller, seconds: float) -> None:
    """A deadline that has passed when the thread comes to wait for it does not make it wait."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        poller.add(ours.fileno(), "owner")
        assert poller.wait(seconds) == []
        theirs.send(b"x")
        [(descriptor, _)] = poller.wait(seconds)
        assert poller.owners[descriptor] == "owner"
        poller.remove(ours.fileno())


def test_a_wait_is_never_early(poller: Poller) -> None:
    """A wait of half a millisecond lasts a millisecond, and not zero."""
    for _ in range(20):
        began = time.monotonic()
        assert poller.wait(0.0005) == []
        assert time.monotonic() - began >= 0.0005


@pytest.mark.usefixtures("remains_of_loops")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("later_s", [0.0, 0.3, 1.1])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_client_whose_loop_is_closed_can_be_ended(
    peers: ScriptedCluster, is_cancelled: bool, later_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing frees the sockets, and ends streams and watches, without their loop; calls say why they end. So also when
    something was due meanwhile, a connection for one.
    """
    states: list[ConnectionState] = []
    client = AsyncRaftClient(peers.seeds, heartbeat=0.5, on_state=lambda state, _error: states.append(state))

    async def begin() -> tuple[Any, Any, Any]:
        await client.open()
        watch, subscriber = client.watch(), await client.subscribe().start()
        entries = client.entries(0)
        peers.fill(3)
        assert await entries.get() is not None
        for wait in (watch.get(), subscriber.get(), client.append(b"x", timeout=60)):
            asyncio.ensure_future(wait)  # noqa: RUF006 - it waits when the loop is closed
        await asyncio.sleep(0)
        return watch, subscriber, entries

    loop = asyncio.new_event_loop()
    readers = asyncio.run(begin()) if is_cancelled else loop.run_until_complete(begin())
    loop.close()
    monkeypatch.setattr(engine, "monotonic", lambda: time.monotonic() + later_s)

    async def end() -> None:
        with pytest.raises(ClientClosedError, match="event loop in which this client was opened is closed"):
            await client.config()
        for reader in readers:
            await reader.close()
        await client.close()
        assert client.state is ConnectionState.CLOSED
        await client.close()

    asyncio.run(end())
    assert client._engine._actions.links is None
