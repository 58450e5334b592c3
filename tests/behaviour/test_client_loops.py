"""Calls in a tight loop with the blocking client, which keeps the socket between them, and what comes in meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from random import Random

import pytest

from statestore_client import ConnectionState, StateStoreClient
from statestore_client.server import EmbeddedServer

CALLS = 50
TIMEOUT_S = 10.0


def loop_of_calls(store: StateStoreClient) -> None:
    for number in range(CALLS):
        assert store.set("loop", b"%d" % number, timeout=TIMEOUT_S).applied


def test_an_outage_after_a_loop_is_noticed() -> None:
    """After a tight loop of calls the client notices an outage without another call."""
    suspended = threading.Event()

    def hear(state: ConnectionState, _error: Exception | None) -> None:
        if state is ConnectionState.SUSPENDED:
            suspended.set()

    with EmbeddedServer() as server, StateStoreClient(server.url, on_state=hear) as store:
        loop_of_calls(store)
        server.stop()
        assert suspended.wait(TIMEOUT_S)


def test_a_watch_that_begins_after_a_loop_hears_everything() -> None:
    """A watch that begins after a loop sees every change, also those of further loops of the same client."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        loop_of_calls(store)
        with store.watch("loop", max_queued=2 * CALLS, overflow="error") as events:
            loop_of_calls(store)
            values = [event.value for _, event in zip(range(CALLS), events, strict=False)]
    assert values == [b"%d" % number for number in range(CALLS)]


def test_loops_of_several_threads_take_turns() -> None:
    """Loops of several threads take turns: the thread that reads the socket wakes the others, and none waits for an
    ended loop."""
    answered: list[int] = []

    def work(thread: int) -> None:
        loop_of_calls(store)
        answered.append(thread)

    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        loop_of_calls(store)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        loop_of_calls(store)
        assert sorted(answered) == [0, 1, 2, 3]
        assert store.stats.replies == 6 * CALLS


class AlarmError(Exception):
    """What a signal handler of an application may raise."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_survives_interruptions_at_any_moment() -> None:
    """After a signal between any two lines of a loop, while the socket is kept too, the next call is answered."""
    random = Random(7)
    interruptions = 0

    def interrupt(delay_s: float) -> None:
        time.sleep(delay_s)  # the moment is the point of this test
        os.kill(os.getpid(), signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with EmbeddedServer() as server, StateStoreClient(server.url) as store:
            for _ in range(60):
                interrupter = threading.Thread(target=interrupt, args=(random.uniform(0.002, 0.01),))
                try:
                    interrupter.start()
                    while interrupter.is_alive():
                        store.set("k", b"")
                except AlarmError:
                    interruptions += 1
                interrupter.join()
                assert store.set("k", b"1", timeout=TIMEOUT_S).applied
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interruptions > 20  # Python swallows one now and then, in a callback of its own
