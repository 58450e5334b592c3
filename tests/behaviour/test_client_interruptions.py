"""Locks, watches and closings of the blocking client, interrupted by exceptions from signal handlers at any moment.

:mod:`test_client_tasks` has the same for requests, :mod:`test_client_loans` for the socket.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial

import pytest
from support.interruptions import interrupted_at_call, interrupted_at_line, interrupting, is_free, needs_timer
from support.waiting import eventually

import statestore_client
from statestore_client import BusyError, ConnectionLostError, StateStoreClient
from statestore_client.server import EmbeddedServer

pytestmark = [
    needs_timer,
    pytest.mark.ci,
    pytest.mark.interruptions,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of what Python swallows
]

#: An ordinary exception may close the client: it could be an error of its own (docs/explanation/delivery.md).
KIND = KeyboardInterrupt


def beside(work: Callable[[], object], stop: threading.Event) -> tuple[threading.Thread, list[BaseException]]:
    """Another thread that does the same, and what it could not do."""
    errors: list[BaseException] = []

    def run() -> None:
        while not stop.is_set():
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - looked at below
                errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


@pytest.mark.parametrize(("work", "step"), [("set", 17), ("set_many", 23), ("watch", 5)])
def test_an_exception_at_any_line_keeps_no_other_thread_waiting(work: str, step: int) -> None:
    """Whatever line an exception cuts: who else waits for an answer gets it, or ConnectionLostError, and at once."""
    answers: list[object] = []
    with EmbeddedServer() as server, StateStoreClient(server.url, request_timeout=60) as store:
        works = {
            "set": lambda: store.set("a", "1"),
            "set_many": lambda: store.set_many([("a", "1"), ("b", "2")]),
            "watch": lambda: store.watch("a").close(),
        }

        def write() -> None:
            with contextlib.suppress(ConnectionLostError):
                answers.append(store.set("other", "1"))

        stop = threading.Event()
        thread, errors = beside(write, stop)
        number = uncut = 0
        while uncut < 3:  # how many lines there are differs with what comes in meanwhile
            place = interrupted_at_line(number, works[work], statestore_client)
            number, uncut = number + step, uncut + (place is None)
            answers.clear()
            eventually(lambda: len(answers) > 1, f"served, cut at {place}", timeout_s=10)
        stop.set()
        thread.join(30)
        assert not thread.is_alive()
        assert not errors
    assert number > 100


def test_edits_of_two_threads_go_on_after_interruptions() -> None:
    """A lock object whose edits were interrupted at any moment edits on, in this thread and in another."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        lock = store.lock("l", lease=1)
        edit = partial(lock.edit, "n", lambda value: b"%d" % (int(value or b"0") + 1), timeout=20)
        with interrupting(KIND) as interrupted:
            assert sum(interrupted(edit, 0.01) for _ in range(30)) > 15
        assert is_free(edit)
        before = int(store.get("n", timeout=20).value)
        edit()
        assert int(store.get("n", timeout=20).value) == before + 1


def test_a_watch_and_a_lease_go_on_after_interruptions() -> None:
    """Looks at a watch and at a lease, interrupted at any moment, leave both to this thread and to another."""
    stop = threading.Event()
    with (
        EmbeddedServer() as server,
        StateStoreClient(server.url) as other,
        StateStoreClient(server.url) as store,
        store.watch("k") as events,
    ):
        lease = store.lock("l", lease=30).acquire(20)

        def look() -> None:
            events.get(timeout=0)
            lease.check()
            lease.on_lost(print)

        writer, errors = beside(lambda: other.set("k", b"1"), stop)
        with interrupting(KIND) as interrupted:
            assert sum(interrupted(look, 0.005) for _ in range(100)) > 60
        stop.set()
        writer.join(20)
        assert not writer.is_alive()
        assert not errors
        while events.get(timeout=0.2) is not None:
            pass
        assert is_free(partial(events.get, 0.1))
        other.set("k", b"last")
        assert events.get(timeout=20).value == b"last"
        assert lease.release(timeout=20)


def test_a_second_reader_is_not_refused_after_an_interruption() -> None:
    """A reader that was interrupted at any moment reads no longer: another thread may."""
    refused: list[BusyError] = []
    with EmbeddedServer() as server, StateStoreClient(server.url) as store, store.watch("k") as events:

        def look() -> None:
            try:
                events.get(timeout=0)
            except BusyError as error:
                refused.append(error)

        with interrupting(KIND) as interrupted:
            for _ in range(50):
                interrupted(look, 0.001)
                assert is_free(look)
    assert not refused


@pytest.mark.parametrize("work", ["open", "watch", "lock"])
def test_a_thread_whose_start_is_cut_runs_or_does_not(work: str) -> None:
    """Whatever call in ``threading`` an exception cuts, it comes out as it is, and the same works afterwards."""
    seen: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def follow(store: StateStoreClient) -> None:
        with store.watch("k", callback=lambda event: seen.put(event.value)):
            store.set("k", "1", timeout=20)
            assert seen.get(timeout=20) == b"1"
            assert seen.empty()

    works: dict[str, Callable[[StateStoreClient], object]] = {
        "open": lambda store: (store.open(20), store.set("k", "1", timeout=20)),
        "watch": follow,
        "lock": lambda store: store.lock("l", lease=1).acquire(20).release(),
    }
    number, place = 0, "the first call"
    with EmbeddedServer() as server:
        while place is not None:
            store = StateStoreClient(server.url)
            if work != "open":
                store.open(20)
            place = interrupted_at_call(number, partial(works[work], store), threading)
            while not seen.empty():
                seen.get()
            works[work](store)
            assert is_free(store.close)
            number += 1
    assert number > 10


def test_clients_that_are_opened_and_closed_under_interruptions_hang_nobody() -> None:
    """A client can be closed after an interruption at any moment of its opening, work and closing."""
    with EmbeddedServer() as server:
        with interrupting(KIND) as interrupted:
            for _ in range(60):
                store = StateStoreClient(server.url)

                def work(store: StateStoreClient = store) -> None:
                    store.open(20)
                    store.set("k", b"1", timeout=20)
                    store.close()
                    raise KIND  # a second round would find it closed

                interrupted(work, 0.004)
                assert is_free(store.close)
        with StateStoreClient(server.url) as last:
            last.set("k", b"2", timeout=20)  # none of the others need have come so far
            assert last.get("k", timeout=20) is not None
