"""Calls that may block, in threads of their own: look-ups of names, TLS files, and the user's ``open_socket``, which
may also come too late, raise anything, or return anything.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Generic, TypeAlias, TypeVar, cast

from statestore_client import thread_locks
from statestore_client.errors import BusyError, SettingsError
from statestore_client.thread_locks import Mutex

T = TypeVar("T")

#: ``open_socket(host, port, timeout_s)`` returns a connected socket: through a proxy, say, or with options of its own.
OpenSocket: TypeAlias = Callable[[str, int, float], socket.socket]


class Errand(Generic[T]):
    """One call in a thread of its own, from which a time-out and a cancelled task can walk away.

    A socket that arrives after :meth:`leave` is closed.
    """

    def __init__(self, function: Callable[..., T], *arguments: object) -> None:
        self._function = function
        self._arguments = arguments
        self._lock = Mutex()  # guards what follows
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self._is_left = False
        #: Whether :meth:`outcome` may be called.
        self.is_over: bool = False

    def start(self, on_end: Callable[[], object]) -> None:
        """``on_end`` is called in that thread. Raises OSError if the system has no room for one: it is one attempt to
        connect that fails.
        """
        try:
            thread_locks.start(
                threading.Thread(target=self._run, args=(on_end,), name="statestore connect", daemon=True)
            )
        except BusyError as error:
            raise OSError(errno.EAGAIN, error.message) from error

    def _run(self, on_end: Callable[[], object]) -> None:
        outcome: T | None = None
        failure: BaseException | None = None
        try:
            outcome = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - it goes to the caller; SystemExit would end the wrong thread
            failure = error
        with self._lock:
            self._outcome, self._error, self.is_over = outcome, failure, True
            if self._is_left:
                self._discard()
        on_end()

    def outcome(self) -> T | BaseException:
        """What the function returned, or the exception that it raised."""
        outcome, self._outcome = self._outcome, None  # the caller's
        return cast("T", outcome) if self._error is None else self._error

    def leave(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._is_left = True
            self._discard()

    def _discard(self) -> None:
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, socket.socket):
            outcome.close()


def checked(open_socket: OpenSocket, host: str, port: int, timeout_s: float) -> socket.socket:
    """The connected socket of the user's function. Raises OSError, or SettingsError for anything else that it gives."""
    try:
        sock: object = open_socket(host, port, timeout_s)
    except (OSError, SettingsError):
        raise
    except BaseException as error:
        raise OSError(f"open_socket raised {error!r}") from error
    if isinstance(sock, Coroutine):
        sock.close()  # Python warns of a coroutine that is neither awaited nor closed
    if not isinstance(sock, socket.socket):
        raise SettingsError(f"open_socket must return a connected socket.socket, not {sock!r}")
    try:
        sock.getpeername()
    except OSError as error:
        sock.close()
        raise OSError(f"open_socket returned a socket that is not connected ({error})") from error
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        raise SettingsError(f"open_socket must return a connected stream socket, not {sock!r}")
    return sock


async def in_own_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call what may block, in a thread of its own. The loop's default executor is the application's: its jobs may fill
    it for minutes. A caller that is cancelled walks away.
    """
    import asyncio  # not for the blocking client

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while the thread worked
            loop.call_soon_threadsafe(ended.set)

    errand = Errand(function, *arguments)
    errand.start(tell)
    try:
        await ended.wait()
        outcome = errand.outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
    finally:
        errand.leave()
