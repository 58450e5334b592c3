"""Calls in a tight loop with the blocking client, which keeps the socket between them, and what comes in meanwhile."""

from __future__ import annotations

import threading

from statestore_client import ConnectionState, StateStoreClient
from statestore_client.server import EmbeddedServer

CALLS = 50
TIMEOUT_S = 10.0


def loop_of_calls(store: StateStoreClient) -> None:
    for number in range(CALLS):
        assert store.set("loop", b"%d" % number, timeout=TIMEOUT_S).applied


def test_an_outage_after_a_loop_is_noticed() -> None:
    """Nobody has to call the client for it."""
    suspended = threading.Event()

    def hear(state: ConnectionState, _error: Exception | None) -> None:
        if state is ConnectionState.SUSPENDED:
            suspended.set()

    with EmbeddedServer() as server, StateStoreClient(server.url, on_state=hear) as store:
        loop_of_calls(store)
        server.stop()
        assert suspended.wait(TIMEOUT_S)


def test_a_watch_that_begins_after_a_loop_hears_everything() -> None:
    """Also what is written by further loops of the same client."""
    with EmbeddedServer() as server, StateStoreClient(server.url) as store:
        loop_of_calls(store)
        with store.watch("loop", max_queued=2 * CALLS, overflow="error") as events:
            loop_of_calls(store)
            values = [event.value for _, event in zip(range(CALLS), events, strict=False)]
    assert values == [b"%d" % number for number in range(CALLS)]


def test_loops_of_several_threads_take_turns() -> None:
    """Whoever has the socket wakes the others with their answers, and nobody waits for a loop that has ended."""
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
