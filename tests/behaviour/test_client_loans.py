"""The loan of the blocking client's socket: who has it, how it ends, and loops of calls that keep it."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
from support.interruptions import AlarmError
from support.waiting import eventually

from statestore_client import BatchError, ConnectionLostError, ConnectionState, SetResult, StateStoreClient
from statestore_client.server import EmbeddedServer
from statestore_client.sync.engine import Link

TIMEOUT_S = 10.0


@pytest.fixture(params=["native", "paho"])
def store(request: pytest.FixtureRequest) -> Iterator[StateStoreClient]:
    with EmbeddedServer() as server, StateStoreClient(server.url, driver=request.param) as client:
        yield client


def quiet(store: StateStoreClient) -> Link:
    """The client's link, when its network thread waits for the socket and has nothing else to do."""
    link = store._engine._link

    def is_quiet() -> bool:
        with link.section:
            return link.loan.is_watched and not link.loan.is_lent

    eventually(is_quiet)
    return link


def in_another_thread(function: Callable[..., object], *arguments: object) -> None:
    """A call on top of one of the same thread would read for both."""
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def test_one_call_at_a_time_has_the_socket(store: StateStoreClient) -> None:
    """One call at a time has the socket; a second call waits without it, and the next one may have it again."""
    link = quiet(store)
    with link.section:
        link.loan.take("first")
        in_another_thread(link.loan.take, "second")
        assert link.loan.lent_to("first") is not None
        assert link.loan.lent_to("second") is None
        assert not link.loan.is_watched
    link.give_back("second")
    assert link.loan.reader == "first"
    link.give_back("first")
    with link.section:
        assert link.loan.is_watched
        link.loan.take("second")
        assert link.loan.lent_to("second") is not None
    link.give_back("second")


def test_a_loan_that_nobody_is_heard_of_ends_by_itself(store: StateStoreClient) -> None:
    """The loan of a caller that falls silent ends by itself, and the network thread reads what other callers wait
    for."""
    link = quiet(store)
    with link.section:
        in_another_thread(link.loan.take, "silent")
    assert store.set("k", b"1", timeout=TIMEOUT_S).applied
    with link.section:
        assert not link.loan.renew("silent")
        assert link.loan.lent_to("silent") is None
    link.give_back("silent")
    assert store.get("k", timeout=TIMEOUT_S) is not None


def test_a_call_below_a_handlers_reads_no_more_once_another_thread_has_the_socket(store: StateStoreClient) -> None:
    """A signal handler's call reads for the one below as well; then another thread may borrow the socket, alone."""
    link = quiet(store)
    with link.section:
        link.loan.take("below")
        link.loan.take("handler")
    link.give_back("handler")
    with link.section:
        in_another_thread(link.loan.take, "other")
        assert link.loan.lent_to("other") is not None
        assert not link.loan.renew("below")
        assert link.loan.renew("other")
    link.give_back("other")


def test_a_caller_reads_while_the_network_thread_is_busy() -> None:
    """A listener that takes its time holds up no call of another thread, which reads the socket itself."""
    told, go_on = threading.Event(), threading.Event()

    def hear(state: ConnectionState, _error: Exception | None) -> None:
        if state is ConnectionState.CONNECTED:
            told.set()
            go_on.wait(TIMEOUT_S)

    with EmbeddedServer() as server, StateStoreClient(server.url, on_state=hear) as store:
        assert told.wait(TIMEOUT_S)
        assert store.set("k", b"1", timeout=TIMEOUT_S / 2).applied
        assert not go_on.is_set()
        go_on.set()


def test_an_interrupted_change_takes_the_socket_back(store: StateStoreClient) -> None:
    """After an interrupted change its caller reads no more from the socket, and the next call uses a new connection."""
    link = quiet(store)
    with link.section:
        link.loan.take("interrupted")
        link.interrupted()
        assert not link.loan.renew("interrupted")
        assert not link.loan.is_lent
    link.give_back("interrupted")
    assert store.set("k", b"1", timeout=TIMEOUT_S).applied


def open_in_vain(store: StateStoreClient) -> None:
    with pytest.raises(ConnectionLostError):
        store.open()


def test_a_connection_that_was_being_made_when_a_change_was_interrupted_is_given_up() -> None:
    """A connection that was being made when a change was interrupted is closed, and the client uses the next one."""
    sockets: list[socket.socket] = []
    reached, go_on = threading.Event(), threading.Event()

    def open_socket(host: str, port: int, timeout_s: float) -> socket.socket:
        sockets.append(socket.create_connection((host, port), timeout_s))
        if len(sockets) == 1:
            reached.set()
            go_on.wait(TIMEOUT_S)
        return sockets[-1]

    with EmbeddedServer() as server:
        store = StateStoreClient(server.url, open_socket=open_socket, retry_first_connect=True)
        opening = threading.Thread(target=open_in_vain, args=(store,))
        opening.start()
        assert reached.wait(TIMEOUT_S)
        link = store._engine._link
        with link.section:
            link.interrupted()
        opening.join()
        go_on.set()
        with store:
            assert store.set("k", b"1", timeout=TIMEOUT_S).applied
            eventually(lambda: [sock.fileno() for sock in sockets][:-1] == [-1])
            assert len(sockets) == 2


# -- calls in a tight loop, which keeps the socket between them --------------------------------------------------------


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


@pytest.mark.parametrize("late", [0, 1])
def test_a_batch_keeps_its_results_when_another_thread_is_inside_until_its_time_is_up(
    store: StateStoreClient, late: int
) -> None:
    """What was answered has its result; what could not be sent for so long fails, and nothing else does."""
    section, limit_s = quiet(store).section, 1.0
    count = 2 * store._engine._requests.window.depth  # the first chunk
    inside, over = threading.Event(), threading.Event()

    def work() -> None:
        with section:
            inside.set()
            over.wait(TIMEOUT_S)

    def pairs() -> Iterator[tuple[str, bytes]]:
        """When the first chunk was answered, another thread is inside until the time of all is up."""
        for number in range(count):
            yield f"{number}", b"v"
        eventually(lambda: len(list(store.scan("*"))) == count)
        threading.Thread(target=work).start()
        assert inside.wait(TIMEOUT_S)
        threading.Timer(1.5 * limit_s, over.set).start()
        if late:
            yield "late", b"v"
        else:
            time.sleep(limit_s)  # the condition is this time: all that was sent is over its limit then

    if late:
        with pytest.raises(BatchError, match=r"1 of .* items failed; .*: another thread was at work") as raised:
            store.set_many(pairs(), timeout=limit_s)
        results = raised.value.results[:-1]
        assert not raised.value.results[-1].may_have_been_applied
    else:
        results = tuple(store.set_many(pairs(), timeout=limit_s))
    assert [isinstance(result, SetResult) and result.applied for result in results] == [True] * count
