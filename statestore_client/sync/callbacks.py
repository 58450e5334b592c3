"""Calls of the user's functions, in whatever thread makes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from statestore_client import thread_locks
from statestore_client.core.arguments import check_function, refuse_awaitable

logger: logging.Logger = logging.getLogger("statestore_client")

#: How long (seconds) to wait for the end of a worker.
_SETTLES_S: Final = 0.1


def check_callback(what: str, function: object) -> None:
    """Raise :class:`InvalidArgumentError` for what cannot be called, and for coroutine functions."""
    check_function(what, function)


def call_back(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call; what it raises is logged, and that it returned what nobody awaits."""
    try:
        refuse_awaitable(what, function(*arguments))
    except Exception:
        logger.exception("%s failed", what)


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

    def stop(self) -> None:
        """Nobody can stop a thread: it looks at a flag by itself."""

    def settle(self) -> None:
        """Nothing that it sends follows what is sent next, unless it is this worker that asks.

        It was told to end, and that takes longer only while it waits for an answer; what it asked has left before then.
        """
        if not self.is_current:
            self._thread.join(_SETTLES_S)

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._thread is threading.current_thread()
