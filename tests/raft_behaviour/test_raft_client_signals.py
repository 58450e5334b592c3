"""Blocking clients of a log called from signal handlers and finalizers: nothing hangs.

Each test runs a program of its own that must end by itself within a time, because what it looks for is a hang.
"""

from __future__ import annotations

from support.programs import run_program

_HEAD = """
import gc, os, signal, threading, time
from raft_client import BusyError, RaftClient
from raft_client.server import EmbeddedCluster
"""


def test_a_signal_handler_may_append_while_its_thread_appends() -> None:
    """A handler's append is served or refused at once, and the append below it, and other threads, go on."""
    output = run_program(_HEAD, """
        served, refused, longest = [], [], 0.0
        def handler(*_):
            global longest
            began = time.monotonic()
            try:
                served.append(log.append(b"from the handler", timeout=5))
            except BusyError:
                refused.append(1)
            longest = max(longest, time.monotonic() - began)
        signal.signal(signal.SIGUSR1, handler)
        beside = []
        def work():
            while not done.is_set():
                beside.append(log.append(b"beside", timeout=20))
        done = threading.Event()
        with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log:
            for count in range(2):  # alone, and beside another thread
                thread = threading.Thread(target=work)
                if count:
                    thread.start()
                for number in range(30):
                    timer = threading.Timer(number % 7 * 0.001, os.kill, (os.getpid(), signal.SIGUSR1))
                    timer.start()
                    while timer.is_alive():
                        assert log.append(b"%d" % number, timeout=20)
                    timer.join()
            done.set()
            thread.join()
        assert served and len(served) + len(refused) > 40, (served, refused)
        assert longest < 4, longest
        print("fine", len(served), len(refused))
    """)  # fmt: skip
    assert "fine" in output


def test_dropped_streams_in_cycles_hang_nobody() -> None:
    """The collector closes generators that read entries, wherever it runs, and all threads go on."""
    output = run_program(_HEAD, """
        class Cycle:
            pass
        def reading():
            with log.subscribe() as entries:
                yield from entries
        gc.set_threshold(50)
        counts = [0, 0]
        def work(n):
            while not done.is_set():
                log.append([b"x" * 10] and b"1", timeout=20)
                counts[n] += 1
        done = threading.Event()
        with EmbeddedCluster(1) as cluster, RaftClient(cluster.url) as log:
            log.append(b"first")
            threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for number in range(40):
                cycle = Cycle()
                cycle.me = cycle
                cycle.entries = reading()
                next(cycle.entries)
                del cycle
            gc.collect()
            done.set()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
            assert all(counts), counts
        print("fine")
    """)  # fmt: skip
    assert "fine" in output


def test_a_handler_may_close_the_client() -> None:
    """Closing in a handler ends the call below, and the program goes on."""
    output = run_program(_HEAD, """
        from raft_client import RaftError
        with EmbeddedCluster(1) as cluster:
            for number in range(15):
                log = RaftClient(cluster.url).open()
                signal.signal(signal.SIGUSR1, lambda *_: log.close())
                timer = threading.Timer(0.02 + number % 7 * 0.001, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                try:
                    while True:
                        log.append(b"x", timeout=20)
                except RaftError:
                    pass
                timer.join()
                log.close()
        print("fine")
    """)  # fmt: skip
    assert "fine" in output
