"""Calls of the user's functions, in whatever thread makes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from statestore_client.core.callbacks import check_function, refuse_awaitable

__all__ = ["Worker", "call_back", "check_callback"]

logger = logging.getLogger("statestore_client")


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
        """Begin."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._thread is threading.current_thread()
