"""Blocking clients called from where programs call them: signal handlers, finalizers, and beside a full system.

Each test runs a program of its own that must end by itself within a time, because what it looks for is a hang.
"""

from __future__ import annotations

import socket
import threading

import pytest
from support.programs import run_program

from statestore_client.sync.primitives import InputPoller

_HEAD = """
import gc, os, signal, threading, time
from statestore_client import StateStoreClient, BusyError, RequestTimeoutError
from statestore_client.server import EmbeddedServer
"""


@pytest.mark.parametrize("driver", ["native", "paho"])
def test_a_signal_handler_may_set_while_its_thread_sets(driver: str) -> None:
    """A handler's call is served or refused at once, other threads go on, and the call below it has its own answer."""
    output = run_program(
        _HEAD,
        f"""
        served, refused, longest = [], [], 0.0
        def handler(*_):
            global longest
            began = time.monotonic()
            try:
                served.append(store.set("from the handler", b"1", timeout=5))
            except BusyError:
                refused.append(1)
            longest = max(longest, time.monotonic() - began)
        signal.signal(signal.SIGUSR1, handler)
        others = []
        def beside():
            while not done.is_set():
                others.append(store.set("beside", b"2", timeout=20))
        done = threading.Event()
        with EmbeddedServer() as server, StateStoreClient(server.url, driver="{driver}") as store:
            thread = threading.Thread(target=beside)
            thread.start()
            for number in range(60):
                timer = threading.Timer(number % 7 * 0.001, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                while timer.is_alive():
                    assert store.set("k", b"%d" % number, timeout=20)
                    assert store.get("k", timeout=20).value == b"%d" % number
                timer.join()
            done.set()
            thread.join()
        assert served and len(served) + len(refused) > 40, (served, refused)
        assert longest < 4, longest
        print("fine", len(served), len(refused))
    """,
    )
    assert "fine" in output


def test_a_signal_handler_may_release_a_lease_at_any_moment() -> None:
    """A release in a handler returns in time, whatever its thread was doing, and the lock is free a moment later."""
    output = run_program(
        _HEAD,
        """
        released = []
        def handler(*_):
            released.append(lease.release(timeout=2))
        signal.signal(signal.SIGTERM, handler)
        with EmbeddedServer() as server, StateStoreClient(server.url) as store, StateStoreClient(server.url) as other:
            for number in range(30):
                lease = store.lock("lock", holder=f"h{number}", lease=30).acquire(timeout=5)
                timer = threading.Timer(number % 7 * 0.001, os.kill, (os.getpid(), signal.SIGTERM))
                timer.start()
                while len(released) <= number:
                    store.set("k", b"x", timeout=20)
                other.lock("lock", holder=f"o{number}", lease=30).acquire(timeout=5).release()
        assert released == [True] * 30, released
        print("fine")
    """,
    )
    assert "fine" in output


@pytest.mark.ci
def test_dropped_watches_and_leases_in_cycles_hang_nobody() -> None:
    """The collector closes generators that watch or hold a lock, wherever it runs, and all threads go on."""
    output = run_program(
        _HEAD,
        """
        class Cycle:
            pass
        def watching(key):
            with store.watch(key) as events:
                yield events
        def holding(name):
            with store.lock(name, lease=5) as lease:
                yield lease
        gc.set_threshold(50)
        counts = [0, 0]
        def work(n):
            while not done.is_set():
                store.set("k%d" % n, [b"x" * 10] and b"1", timeout=20)
                counts[n] += 1
        done = threading.Event()
        with EmbeddedServer() as server, StateStoreClient(server.url) as store:
            threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for number in range(60):
                cycle = Cycle()
                cycle.me = cycle
                cycle.events = watching("w%d" % (number % 5))
                next(cycle.events)
                if number % 5 == 0:
                    cycle.lease = holding("lock%d" % number)
                    next(cycle.lease)
                del cycle
            gc.collect()
            done.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert all(counts), counts
        print("fine")
    """,
    )
    assert "fine" in output


def test_a_handler_may_close_the_client() -> None:
    """Closing in a handler ends the call below with ClosedError, or before it begins, and the program goes on."""
    output = run_program(
        _HEAD,
        """
        from statestore_client import ClosedError, ConnectionLostError
        with EmbeddedServer() as server:
            for number in range(40):
                store = StateStoreClient(server.url).open()
                signal.signal(signal.SIGUSR1, lambda *_: store.close())
                timer = threading.Timer(0.002 + number % 7 * 0.001, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                try:
                    while True:
                        store.set("k", b"x", timeout=20)
                except (ClosedError, ConnectionLostError):  # before it was sent, or while it waited
                    pass
                timer.join()
                store.close()
        print("fine")
    """,
    )
    assert "fine" in output


def test_a_thread_that_cannot_be_started_leaves_nothing_behind() -> None:
    """Opening fails with the reason, may be tried again, and closing works; a lock that cannot be kept is free."""
    output = run_program(
        _HEAD,
        """
        start = threading.Thread.start
        def refuse(thread):
            raise RuntimeError("can't start new thread")
        with EmbeddedServer() as server:
            store = StateStoreClient(server.url)
            sockets = len(os.listdir("/proc/self/fd"))
            threading.Thread.start = refuse
            for _ in range(20):
                try:
                    store.open(timeout=5)
                except BusyError as error:
                    assert "thread" in str(error), error
                else:
                    raise AssertionError("opened")
            assert len(os.listdir("/proc/self/fd")) == sockets
            threading.Thread.start = start
            store.open(timeout=5)
            threading.Thread.start = refuse
            try:
                store.lock("lock", lease=60).acquire(timeout=5)
            except BusyError as error:
                assert "thread" in str(error), error
            else:
                raise AssertionError("acquired")
            threading.Thread.start = start
            assert store.lock("lock", holder="another", lease=60).try_acquire() is not None
            store.close()
            threading.Thread.start = refuse
            other = StateStoreClient(server.url)
            try:
                other.open(timeout=5)
            except BusyError:
                pass
            other.close()
            threading.Thread.start = start
        print("fine")
    """,
    )
    assert "fine" in output


def test_functions_at_exit_may_call_the_client() -> None:
    """What is registered with atexit may write, release a lease and close, however the program ends."""
    output = run_program(
        _HEAD,
        """
        import atexit
        server = EmbeddedServer().start()
        store = StateStoreClient(server.url).open()
        lease = store.lock("lock", lease=30).acquire(timeout=5)
        def last():
            assert store.set("last", b"1", fencing_token=lease.fencing_token, timeout=5)
            assert lease.release(timeout=5)
            store.close()
            server.stop()
            print("fine")
        atexit.register(last)
    """,
    )
    assert "fine" in output


def test_two_callers_may_wait_for_one_socket() -> None:
    """A thread may be late with a socket that another one has borrowed meanwhile: both wait, and wake."""
    near, far = socket.socketpair()
    with near, far:
        poller = InputPoller()
        failures: list[BaseException] = []
        begun = threading.Barrier(4)

        def wait() -> None:
            begun.wait()
            try:
                for _ in range(200):
                    poller.wait_for_input(near.fileno(), 0.001)
                poller.wait_for_input(near.fileno(), 30.0)
            except BaseException as error:  # noqa: BLE001 - the test says so
                failures.append(error)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        far.sendall(b"x")
        for thread in threads:
            thread.join()
    assert not failures
