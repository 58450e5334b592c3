"""The user's functions, and the threads that call them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from raft_client import thread_locks
from raft_client.core import arguments


def check_callback(callback: object) -> None:
    """A function of one event, and not a coroutine function: nobody would await it. None without a callback."""
    arguments.check_callback(callback, may_await=False)


def call_back(function: Callable[..., object], *event: object) -> None:
    """Call; what it returns is of no interest."""
    function(*event)


class Worker:
    """A thread that works beside its owner until the work is done; it keeps no program from ending."""

    __slots__ = ("_thread",)

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Raises :class:`BusyError` if the system has no room for a thread. After any other exception it may
        work, or never will: its owner must end.
        """
        thread_locks.start(self._thread)

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._thread is threading.current_thread()
