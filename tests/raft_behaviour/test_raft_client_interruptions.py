"""Calls, streams and closings of the blocking Raft client, interrupted by exceptions from signal handlers."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.interruptions import (
    AlarmError,
    interrupted_at_call,
    interrupted_at_line,
    interrupting,
    is_free,
    needs_timer,
)
from support.scripted_peers import ScriptedCluster
from support.waiting import eventually

import raft_client
from raft_client import (
    BusyError,
    ConnectionLostError,
    ConnectionState,
    KeyValueCodec,
    RaftClient,
    WatchEvent,
)

pytestmark = [
    needs_timer,
    pytest.mark.ci,
    pytest.mark.interruptions,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of what Python swallows
    # pyzmq warns of a socket whose making was interrupted, and then closes it: not if the warning is an error.
    pytest.mark.filterwarnings("ignore:Unclosed socket:ResourceWarning"),
]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, AlarmError])
def test_calls_go_on_after_interruptions_at_any_moment(peers: ScriptedCluster, kind: type[BaseException]) -> None:
    """After a signal between any two lines the interrupted call ends, another thread's calls are answered or
    raise ConnectionLostError, and the client goes on."""
    stop = threading.Event()
    answered: list[int] = []
    with RaftClient(peers.seeds, response_timeout=30) as client:

        def write() -> None:
            while not stop.is_set():
                with contextlib.suppress(ConnectionLostError):  # the links were dropped: it may have been applied
                    answered.append(client.append(b"other", timeout=30))

        other = threading.Thread(target=write, daemon=True)
        other.start()
        with interrupting(kind) as interrupted:
            assert sum(interrupted(partial(client.append, b"a", timeout=30), 0.01) for _ in range(60)) > 40
        assert is_free(partial(client.append, b"b", timeout=30))
        before = len(answered)
        while len(answered) < before + 3:
            client.append(b"c", timeout=30)
        stop.set()
        other.join(30)
        assert not other.is_alive()


@pytest.mark.parametrize(("work", "step"), [("append", 2), ("append_many", 5), ("watch", 4)])
def test_an_exception_at_any_line_costs_other_threads_nothing(peers: ScriptedCluster, work: str, step: int) -> None:
    """Whatever line an exception cuts, the answers that other threads wait for come, and so do broadcasts, or an error
    that says that their stream was cut. None of them waits for a time-out.
    """
    stop = threading.Event()
    answered: list[int] = []
    heard: list[int] = []
    with RaftClient(peers.seeds, response_timeout=60, request_timeout=60) as client:
        works = {
            "append": lambda: client.append(b"a"),
            "append_many": lambda: client.append_many([b"a"] * 3),
            "watch": lambda: client.watch().close(),
        }

        def write() -> None:
            while not stop.is_set():
                with contextlib.suppress(ConnectionLostError):
                    answered.append(client.append(b"other"))

        def listen() -> None:
            while not stop.is_set():
                with contextlib.suppress(ConnectionLostError), client.subscribe() as entries:
                    while not stop.is_set():
                        entry = entries.get(timeout=0.2)
                        heard.append(0 if entry is None else entry.index)

        others = [threading.Thread(target=run, daemon=True) for run in (write, listen)]
        for other in others:
            other.start()
        number = uncut = 0
        while uncut < 3:  # how many lines there are differs with what comes in meanwhile
            place = interrupted_at_line(number, works[work], raft_client)
            number, uncut = number + step, uncut + (place is None)
            del answered[:], heard[:]
            eventually(lambda: len(answered) > 1 and heard, f"served, cut at {place}", timeout_s=10)
        stop.set()
        for other in others:
            other.join(30)
            assert not other.is_alive()
    assert number > 100


def test_what_is_interrupted_and_closed_warns_of_nothing(
    peers: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C ends a program that closes its client: its log has no warning of links that were cut by the signal."""
    cuts = 0
    for number in range(0, 300, 3):
        with RaftClient(peers.seeds) as client:
            client.append(b"a")
            cuts += interrupted_at_line(number, lambda: client.append(b"b"), raft_client) is not None
    assert cuts > 50
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_second_reader_is_not_refused_after_an_interruption(peers: ScriptedCluster) -> None:
    """A reader of a stream that was interrupted at any moment reads no longer: another thread may.

    A watch that was at work at that moment has ended: there is no saying what of it is whole.
    """
    refused: list[BusyError] = []
    with RaftClient(peers.seeds) as client, contextlib.ExitStack() as watches:
        client.append(b"a")
        events = watches.enter_context(client.watch(after=0))

        def look() -> None:
            try:
                events.get(timeout=0)
            except BusyError as error:
                refused.append(error)

        with interrupting() as interrupted:
            for _ in range(50):
                with contextlib.suppress(ConnectionLostError):
                    interrupted(look, 0.001)
                if events.error is not None:
                    assert isinstance(events.error, ConnectionLostError)
                    events = watches.enter_context(client.watch(after=0))
                assert is_free(look)
    assert not refused


def test_clients_that_are_closed_under_interruptions_hang_nobody(peers: ScriptedCluster) -> None:
    """A client can be closed after an interruption at any moment of its opening, work and closing."""
    with interrupting(KeyboardInterrupt) as interrupted:
        for _ in range(60):
            client = RaftClient(peers.seeds)

            def work(client: RaftClient = client) -> None:
                client.open()
                client.append(b"a", timeout=30)
                client.close()
                raise KeyboardInterrupt  # a second round would find it closed

            interrupted(work, 0.004)
            assert is_free(client.close)


@pytest.mark.parametrize("work", ["open", "watch"])
def test_a_thread_whose_start_is_cut_runs_or_does_not(peers: ScriptedCluster, work: str) -> None:
    """Whatever call in ``threading`` an exception cuts, it comes out as it is, and the same works afterwards; no thread
    is left.
    """
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    told: queue.SimpleQueue[ConnectionState] = queue.SimpleQueue()

    def follow(client: RaftClient) -> None:
        with client.watch(callback=heard.put):
            client.append(KeyValueCodec.set(b"k", b"1"), timeout=30)
            assert isinstance(heard.get(timeout=30), WatchEvent)

    works: dict[str, Callable[[RaftClient], object]] = {"open": RaftClient.open, "watch": follow}
    number, place = 0, "the first call"
    while place is not None:
        client = RaftClient(peers.seeds, heartbeat=30, on_state=lambda state, *_: told.put(state), response_timeout=30)
        if work == "watch":
            client.open()
        place = interrupted_at_call(number, partial(works[work], client), threading)
        while not heard.empty():
            heard.get()
        works[work](client)
        assert is_free(client.close)
        while told.get(timeout=30) is not ConnectionState.CLOSED:
            pass
        number += 1
    assert number > 10
    eventually(lambda: not any(each.name.startswith("raft ") and each.is_alive() for each in threading.enumerate()))
