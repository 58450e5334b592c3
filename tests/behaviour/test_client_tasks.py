"""What only one of the shells has: cancelled tasks and event loops, interrupted threads, forked processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from itertools import count
from random import Random
from types import FrameType
from typing import Any

import pytest
from support.interruptions import AlarmError
from support.server_clients import Gate

from statestore_client import (
    AsyncStateStoreClient,
    ConnectionLostError,
    ForkedClientError,
    StateStoreClient,
    thread_locks,
)
from statestore_client.server import EmbeddedServer
from statestore_client.sync import watch
from statestore_client.sync.primitives import Batch, acquired
from statestore_client.thread_locks import LONGEST_NAP_S


@pytest.fixture(params=["native", "paho"])
def via(request: pytest.FixtureRequest) -> str:
    """What to append to a URL for each driver."""
    return f"?driver={request.param}"


# -- asyncio -----------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_is_forgotten(via: str) -> None:
    """A cancelled call frees its place in the window, and its late answer reaches nobody."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with AsyncStateStoreClient(server.url + via, max_in_flight=1) as store:
            call = asyncio.ensure_future(store.set("k", b"1"))
            await asyncio.to_thread(gate.reached.wait, 5)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            queued = asyncio.ensure_future(store.set("k", b"2"))
            gate.open()
            assert (await queued).applied
            assert store.stats.late_or_unknown_replies == 1


async def test_a_timeout_around_a_batch_ends_it_at_once(via: str) -> None:
    """asyncio.timeout() cancels a batch without waiting for its answers, and the client goes on."""
    gate = Gate()
    with EmbeddedServer(authorize=gate) as server:
        async with AsyncStateStoreClient(server.url + via, max_in_flight=4) as store:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await store.set_many(((f"k{i}", b"") for i in range(100)), timeout=None)
            gate.open()
            assert (await store.set("k", b"1")).applied


async def test_a_cancelled_watch_and_lock_leave_nothing_behind(via: str) -> None:
    """A watch and a lock that are cancelled while they start leave no watch behind."""
    with EmbeddedServer() as server:
        async with AsyncStateStoreClient(server.url + via) as store, store.lock("l"):
            for start in (store.watch("k").start(), store.lock("l").acquire()):
                task = asyncio.ensure_future(start)
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            task = asyncio.ensure_future(store.lock("l").acquire())
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await store.get("k")
            assert not store._engine._machine.watching


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.set_many(((f"k{i}", b"") for i in range(100)), timeout=None),
        lambda store: store.set("k", b"", timeout=None),
        lambda store: store.watch("k", timeout=None).start(),
    ],
)
def test_an_interrupted_call_does_not_wait(call: Callable[[StateStoreClient], object], via: str) -> None:
    """Ctrl-C ends a call without waiting for answers, and the client goes on."""
    gate = Gate()

    def is_waiting(thread: int) -> bool:
        stack = traceback.extract_stack(sys._current_frames()[thread])
        return any(f.name in ("wait", "wait_for_input") and f"{os.sep}sync{os.sep}" in f.filename for f in stack)

    def interrupt(main: int) -> None:
        gate.reached.wait(10)
        while not is_waiting(main):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    with EmbeddedServer(authorize=gate) as server, StateStoreClient(server.url + via, max_in_flight=4) as store:
        interrupter = threading.Thread(target=interrupt, args=(threading.get_ident(),))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            call(store)
        interrupter.join()
        gate.open()
        assert store.set("k", b"1", timeout=10).applied


@pytest.mark.parametrize(("timeout", "naps"), [(None, 3), (1.2, 3), (0.5, 1), (0.0, 1), (-1.0, 1)])
def test_a_call_sleeps_in_naps(timeout: float | None, naps: int) -> None:
    """A call sleeps at most a short time at once, because Python handles a signal only when the thread wakes."""
    asked: list[float] = []

    def acquire(_blocking: bool, timeout: float) -> bool:
        asked.append(timeout)
        return len(asked) == 3

    assert acquired(acquire, timeout) is (naps == 3)
    assert len(asked) == naps
    assert 0 <= max(asked) <= LONGEST_NAP_S
    assert timeout is None or sum(asked) == pytest.approx(max(timeout, 0.0))


def interrupted_at(number: int, call: Callable[[], object], *, outside: Collection[str] = ()) -> bool:
    """Whether the call goes through so many lines, outside these files: it is interrupted there."""
    lines = count()

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "line" and frame.f_code.co_filename not in outside and next(lines) == number:
            raise AlarmError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except AlarmError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_wait_for_a_batch_that_is_interrupted_leaves_it_whole() -> None:
    """A wait for a batch that is interrupted at any of its lines can be repeated, and disturbs no other thread."""
    for number in count():
        batch = Batch()
        slot = batch.slot()
        was_interrupted = interrupted_at(number, lambda batch=batch: batch.wait(0.001))
        slot.resolve("done")
        assert batch.wait(1.0)
        assert batch.outcomes == ["done"]
        if not was_interrupted:
            assert number > 3
            return


def test_a_wait_for_an_event_that_is_interrupted_leaves_the_watch_whole() -> None:
    """A wait for a watch's next event that is interrupted at any line of what it calls raises what interrupted it, and
    the next event arrives.

    Not at those of the watch itself and of its locks: there are lines at which Python looks for no signals.
    """
    outside = (watch.__file__, thread_locks.__file__)
    with (
        EmbeddedServer() as server,
        StateStoreClient(server.url) as other,
        StateStoreClient(server.url) as store,
        store.watch("k") as events,
    ):
        for number in count():
            was_interrupted = interrupted_at(number, lambda: events.get(timeout=0.001), outside=outside)
            other.set("k", b"%d" % number)
            event = events.get(timeout=10)
            assert event is not None
            assert event.value == b"%d" % number
            if not was_interrupted:
                assert number > 10
                return


@pytest.mark.parametrize("kind", [KeyboardInterrupt, AlarmError])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.ci
@pytest.mark.interruptions
def test_a_client_survives_interruptions_at_any_moment(via: str, kind: type[BaseException]) -> None:
    """After a signal between any two lines the interrupted call ends, nobody else waits for ever, and the client goes
    on."""
    random = Random(7)
    stop = threading.Event()
    outcomes: list[object] = []
    interruptions = 0

    def write(store: StateStoreClient) -> None:
        while not stop.is_set():
            try:
                outcomes.append(store.set("other", b"1", timeout=20).applied)
            except ConnectionLostError as error:
                outcomes.append(error)

    def interrupt(delay_s: float) -> None:
        time.sleep(delay_s)  # the moment is the point of this test
        os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, handler)
    with EmbeddedServer() as server, StateStoreClient(server.url + via) as store:
        other = threading.Thread(target=write, args=(store,))
        other.start()
        for _ in range(60):
            interrupter = threading.Thread(target=interrupt, args=(random.uniform(0, 0.01),))
            try:
                interrupter.start()
                while interrupter.is_alive():
                    store.set_many((f"k{i}", b"") for i in range(300))
                    store.get("k1")
            except kind:
                interruptions += 1
            interrupter.join()
            assert store.set("k", b"1", timeout=20).applied
        stop.set()
        signal.signal(signal.SIGUSR1, before)
        assert interruptions > 30  # Python swallows one now and then, in a callback of its own
        other.join(30)
        assert not other.is_alive()
        assert outcomes.count(True) > 10
        assert store.get("other") is not None


# -- fork --------------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and later


def in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child; fail with its traceback if it raises."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write_end, b"fine")
        except BaseException:  # noqa: BLE001 - told to the parent, which raises it
            os.write(write_end, traceback.format_exc().encode())
        finally:
            os._exit(0)  # no clean-up of what belongs to the parent
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    assert said == "fine"


def use_everything(store: StateStoreClient, events: Any, lock: Any) -> None:
    """Every call of a client that belongs to the parent raises; closing and dropping it is harmless."""
    calls = (
        lambda: store.get("k"),
        lambda: store.set_many([("k", b"")]),
        lambda: next(store.scan("*")),
        lambda: store.watch("k").start(),
        lambda: events.get(timeout=5),
        lambda: store.lock("l2").acquire(),
        lock.acquire,
        store.open,
    )
    for call in calls:
        with pytest.raises(ForkedClientError, match="before fork"):
            call()
    events.close()
    store.close()


def test_a_forked_child_cannot_use_its_parents_client(via: str) -> None:
    """A forked child gets ForkedClientError and can make its own client, while the parent's connection, watch and lock
    live on."""
    with EmbeddedServer() as server, StateStoreClient(server.url + via) as store, store.watch("k") as events:
        lock = store.lock("l", lease=30)
        with lock as lease:

            def work() -> None:
                use_everything(store, events, lock)
                with pytest.raises(ForkedClientError, match="before fork"):
                    lease.on_lost(print)
                with StateStoreClient(server.url + via) as own:
                    assert own.set("k", b"child").applied

            in_child(work)
            assert events.get(timeout=5).value == b"child"
            assert lease.valid
            assert store.set("k", b"parent").applied
            assert events.get(timeout=5).value == b"parent"


def test_a_fork_while_a_thread_holds_the_lock_does_not_hang_the_child(via: str) -> None:
    """A child forked while a thread holds the engine's lock never waits for it."""
    with EmbeddedServer() as server, StateStoreClient(server.url + via) as store, store.watch("k") as events:
        lock = store.lock("l")
        lock.acquire()
        with store._engine._link.section:
            in_child(lambda: use_everything(store, events, lock))
        assert store.set("k", b"parent").applied
        assert events.get(timeout=5).value == b"parent"
        assert lock.release()


def test_a_fork_under_load_leaves_the_parent_alone(via: str) -> None:
    """Forked children that close and drop the client do not disturb the requests of the parent's threads."""
    with EmbeddedServer() as server, StateStoreClient(server.url + via) as store:
        stop = threading.Event()
        counts: list[int] = []

        def work() -> None:
            done = 0
            while not stop.is_set():
                assert store.set("k", b"1").applied
                done += 1
            counts.append(done)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            in_child(store.close)
        stop.set()
        for thread in threads:
            thread.join(20)
        assert len(counts) == 4
        assert store.stats.resent == store.stats.timeouts == 0


async def test_a_forked_child_cannot_use_its_parents_asyncio_client(via: str) -> None:
    """Closing the client in a forked child does not take the parent's socket out of the shared selector."""
    with EmbeddedServer() as server:
        async with AsyncStateStoreClient(server.url + via) as store, store.watch("k") as events:

            def work() -> None:
                for call in (
                    lambda: store.get("k"),
                    lambda: store.set_many([("k", b"")]),
                    lambda: store.watch("k").start(),
                    lambda: events.get(timeout=5),
                    lambda: store.lock("l").acquire(),
                    store.open,
                ):
                    with pytest.raises(ForkedClientError, match="before fork"):
                        asyncio.run(call())
                asyncio.run(events.close())
                asyncio.run(store.close())

            in_child(work)
            assert (await store.set("k", b"parent", timeout=5)).applied
            assert (await events.get(timeout=5)).value == b"parent"
