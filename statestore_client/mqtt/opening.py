"""Calls that may block, in threads of their own: look-ups of names, TLS files, and the user's ``open_socket``, which
may also come too late, raise anything, or return anything.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from statestore_client import thread_locks
from statestore_client.errors import BusyError, SettingsError
from statestore_client.thread_locks import Flag, Mutex

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["OpenSocket", "Opening", "in_own_thread"]

T = TypeVar("T")

#: ``open_socket(host, port, timeout_s)`` returns a connected socket: through a proxy, say, or with options of its own.
OpenSocket: TypeAlias = Callable[[str, int, float], socket.socket]


class Opening:
    """In a thread of its own, from which a time-out and a cancelled task can walk away.

    A context manager: a socket that has not been taken when it is left is closed as soon as it arrives.
    """

    def __init__(self, open_socket: OpenSocket, host: str, port: int, timeout_s: float) -> None:
        self._open_socket = open_socket
        self._target = (host, port)
        self._timeout_s = timeout_s
        self._lock = Mutex()  # guards what follows
        self._outcome: object = None
        self._is_over = False
        self._is_left = False
        self._on_end: Callable[[], object] | None = None

    def wait(self) -> socket.socket:
        """The connected socket. Raises OSError, or SettingsError for anything that is not a connected socket."""
        ended = Flag()
        self._start(ended.set)
        ended.wait(self._timeout_s)
        return self._result()

    async def wait_async(self) -> socket.socket:
        """As :meth:`wait`; the caller's own time-out counts."""
        import asyncio  # not for the blocking client

        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(ended.set)

        self._start(tell)
        await ended.wait()
        return self._result()

    def _start(self, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        _start(self._run, "statestore open_socket")

    def _run(self) -> None:
        try:
            outcome: object = self._open_socket(*self._target, self._timeout_s)
        except BaseException as error:  # noqa: BLE001 - the user's code; SystemExit, too, would end the wrong thread
            outcome = error
        with self._lock:
            self._outcome, self._is_over = outcome, True
            if self._is_left:
                _close(outcome)
        if self._on_end is not None:
            self._on_end()

    def _result(self) -> socket.socket:
        outcome = self._outcome
        if not self._is_over:
            raise TimeoutError
        if isinstance(outcome, (OSError, SettingsError)):
            raise outcome
        if isinstance(outcome, BaseException):
            raise OSError(f"open_socket raised {outcome!r}") from outcome
        if not isinstance(outcome, socket.socket):
            raise SettingsError(f"open_socket must return a connected socket.socket, not {outcome!r}")
        try:
            outcome.getpeername()
        except OSError as error:
            raise OSError(f"open_socket returned a socket that is not connected ({error})") from error
        if outcome.type != socket.SOCK_STREAM:
            raise SettingsError(f"open_socket must return a connected stream socket, not {outcome!r}")
        self._outcome = None  # the caller's
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_left = True
            _close(self._outcome)


async def in_own_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call what may block, in a thread of its own. The loop's default executor is the application's: its jobs may fill
    it for minutes. A caller that is cancelled walks away.
    """
    import asyncio  # not for the blocking client

    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def finish(set_outcome: Callable[[Any], None], value: object) -> None:
        if not outcome.done():
            set_outcome(value)

    def run() -> None:
        end: tuple[Callable[[Any], None], object]
        try:
            end = (outcome.set_result, function(*arguments))
        except Exception as error:  # noqa: BLE001 - it goes to the caller
            end = (outcome.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop was closed while this thread worked
            loop.call_soon_threadsafe(finish, *end)

    _start(run, "statestore connect")
    return await outcome


def _start(work: Callable[[], None], name: str) -> None:
    """In a thread. Raises OSError if the system has no room for one: it is one attempt to connect that fails."""
    try:
        thread_locks.start(threading.Thread(target=work, name=name, daemon=True))
    except BusyError as error:
        raise OSError(errno.EAGAIN, error.message) from error


def _close(outcome: object) -> None:
    if isinstance(outcome, (socket.socket, Coroutine)):  # of a coroutine that nobody awaits, Python would complain
        outcome.close()
