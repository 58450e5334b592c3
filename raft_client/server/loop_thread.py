"""An event loop in a thread of its own, for peers beside blocking code or beside another loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

from raft_client import thread_locks
from raft_client.errors import BusyError, InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class LoopThread:
    """Runs in a ``with`` statement. A daemon: a program that forgets it can end."""

    def __init__(self, name: str, what: str) -> None:
        """``what`` runs in it, for errors."""
        self._name = name
        self._what = what
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.SelectorEventLoop()  # Windows' own has no add_reader()
        thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
        try:
            thread_locks.start(thread)
        except BusyError:
            loop.close()
            raise
        except BaseException:
            loop.call_soon_threadsafe(loop.stop)  # if the thread runs, it ends at once
            raise
        self._closing.callback(thread.join)
        self._closing.callback(loop.call_soon_threadsafe, loop.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises; from any other thread. Raises InvalidArgumentError outside the ``with``."""
        if self._loop is None or self._loop.is_closed():
            action.close()
            raise InvalidArgumentError(f"{self._what} is not running: use it in a with statement")
        return asyncio.run_coroutine_threadsafe(action, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
