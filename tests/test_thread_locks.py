"""Locks and flags of both packages, which an exception from a signal handler leaves whole."""

from __future__ import annotations

import inspect
import threading
from contextlib import AbstractContextManager
from types import ModuleType

import pytest
from support.interruptions import interrupting, is_free, needs_timer

import raft_client.clocks
import raft_client.errors
import raft_client.reports
import raft_client.sync.primitives
import statestore_client.clocks
import statestore_client.errors
import statestore_client.reports
import statestore_client.sync.primitives
from raft_client import thread_locks as of_raft
from statestore_client import thread_locks as of_store
from statestore_client.sync.primitives import Bell, ExclusiveUse, Guard

BOTH = pytest.mark.parametrize("locks", [of_store, of_raft], ids=["statestore", "raft"])
IN_TURN = {
    "statestore mutex": of_store.Mutex,
    "raft mutex": of_raft.Mutex,
    "statestore mutex in time": lambda: of_store.Mutex().within(5, TimeoutError),
    "raft mutex in time": lambda: of_raft.Mutex().within(None, TimeoutError),
    "statestore reader": statestore_client.sync.primitives.SingleReader,
    "raft reader": raft_client.sync.primitives.OneReader,
    "caller": lambda: ExclusiveUse("one at a time"),
    "guard": Guard,
    "bell": lambda: Bell().lock,
}


@needs_timer
@pytest.mark.parametrize("kind", IN_TURN)
def test_an_interruption_leaves_it_free(kind: str) -> None:
    """After an exception from a signal handler at any moment of a ``with`` statement, another thread gets in."""
    held: AbstractContextManager[object] = IN_TURN[kind]()
    refused = (statestore_client.errors.BusyError, raft_client.errors.BusyError)
    errors: list[BaseException] = []

    def enter() -> None:
        with held:
            pass

    def enter_too() -> None:
        try:
            enter()
        except refused as error:
            errors.append(error)

    with interrupting() as interrupted:
        count = sum(interrupted(enter, 0.0003) for _ in range(120))
    assert count > 100
    assert is_free(enter_too)
    assert not errors


@needs_timer
@BOTH
def test_an_interruption_on_top_of_an_own_frame_leaves_that_one_its_lock(locks: ModuleType) -> None:
    """Of a thread that came twice, an exception from a signal handler ends the inner one; the outer one holds on."""
    mutex = locks.Mutex()

    def again() -> None:
        with mutex:
            pass

    with interrupting() as interrupted:
        for _ in range(60):
            with mutex:
                interrupted(again, 0.0003)
                assert mutex.is_mine()
            assert not mutex.is_mine()
    assert is_free(again)


@BOTH
def test_a_mutex_that_is_not_had_in_time_raises(locks: ModuleType) -> None:
    """One thread at a time holds a mutex; another one waits for its time, and gets the error that it named."""
    mutex = locks.Mutex()
    came: list[str] = []

    def wait() -> None:
        for timeout in (0, 0.02):
            try:
                with mutex.within(timeout, lambda: TimeoutError("too late")):
                    came.append("in")
            except TimeoutError as error:
                came.append(str(error))

    with mutex:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(10)
        with mutex.within(0, TimeoutError):
            came.append("the same thread")
    assert came == ["too late", "too late", "the same thread"]
    assert is_free(wait)
    assert came[3:] == ["in", "in"]


@BOTH
def test_a_flag_wakes_all_that_wait(locks: ModuleType) -> None:
    """Any number of threads wait for a flag, and later ones do not wait at all."""
    flag = locks.Flag()
    assert not flag.wait(0.01)
    threads = [threading.Thread(target=flag.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not flag.is_set()
    flag.set()
    flag.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert flag.is_set()
    assert flag.wait(0)


@needs_timer
@BOTH
def test_an_interrupted_wait_for_a_flag_hinders_nobody(locks: ModuleType) -> None:
    """After an exception from a signal handler at any moment of waiting, another thread can set the flag."""
    with interrupting() as interrupted:
        for _ in range(60):
            flag = locks.Flag()
            interrupted(lambda flag=flag: flag.wait(0.0001), 0.0003)
            assert is_free(flag.set)
            assert flag.wait(0)
    flag = locks.Flag()
    flag.set()
    with interrupting() as interrupted:
        for _ in range(60):
            interrupted(flag.wait, 0.0003)
    assert is_free(flag.wait)


def test_the_twins_do_the_same() -> None:
    """The packages import nothing of each other, so some lines stand in both: who changes them here changes them there,
    too."""
    _, _, clocks = inspect.getsource(raft_client.clocks).partition("#: What")
    assert clocks.rstrip() in inspect.getsource(statestore_client.clocks)
    of_both = inspect.getsource(raft_client.reports.warn_unclosed)
    assert of_both == inspect.getsource(statestore_client.reports.warn_unclosed)


@BOTH
def test_a_start_without_room_is_told_from_one_that_was_cut(locks: ModuleType) -> None:
    """Thread.start() raises RuntimeError for both: for a limit of the system, also while another error is handled; and
    in a Condition whose lock was released by an exception that a signal's handler raised.
    """

    class Full(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    class Cut(threading.Thread):
        def start(self) -> None:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                raise RuntimeError("release unlocked lock")  # noqa: B904 - as the standard library has it

    refused = (statestore_client.errors.BusyError, raft_client.errors.BusyError)
    with pytest.raises(refused, match="no thread could be started for 'work': can't start new thread"):
        locks.start(Full(name="work"))
    try:
        raise ValueError
    except ValueError:
        with pytest.raises(refused):
            locks.start(Full())
        with pytest.raises(KeyboardInterrupt):
            locks.start(Cut())
