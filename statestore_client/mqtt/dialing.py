"""From the addresses of a client to a connected TCP socket, in blocking and in asyncio form.

:mod:`~statestore_client.mqtt.addresses` decides which address is dialled when; here are the sockets, the look-ups, and
the waiting for them. What may block (look-ups of names, TLS files, and the user's ``open_socket``, which may also come
too late, raise anything, or return anything) runs in a thread of its own, so that it costs the others no time.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import attrs

from statestore_client import thread_locks
from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError, SettingsError
from statestore_client.mqtt.addresses import Address, Addresses, Sockaddr, Turn
from statestore_client.mqtt.closing import connect_failed
from statestore_client.mqtt.driver import OpenSocket
from statestore_client.settings import ConnectionSettings
from statestore_client.thread_locks import Mutex
from statestore_client.wire.messages import Closed

if TYPE_CHECKING:
    import asyncio


T = TypeVar("T")


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


_UNDER_WAY: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})
#: Where the system has it (Linux), TCP gives a connection up when the other kernel acknowledges nothing for this long
#: (seconds), or takes nothing, in place of a quarter of an hour. That finds a machine that vanished while MQTT owes us
#: nothing, too: a client that only watches sends acknowledgements. Longer than a server that works takes no input.
_UNACKNOWLEDGED_S: Final = 10.0
_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)


@attrs.frozen
class Line:
    """A connected TCP socket, non-blocking, and what is left for TLS, WebSocket and MQTT."""

    sock: socket.socket
    turn: Turn

    @property
    def settings(self) -> ConnectionSettings:
        """Those of the address, with its share of ``connect_timeout``."""
        return self.turn.settings


class _Dialing:
    """What both forms do: carry out what the addresses want, without waiting."""

    def __init__(self, settings: ConnectionSettings, open_socket: OpenSocket | None = None) -> None:
        #: Of one client, over all of its attempts.
        self.addresses: Addresses = Addresses(settings)
        self._open_socket = open_socket
        self._connected: dict[Address, socket.socket] = {}  # and not in use
        self._is_closed = False

    def _step(self, now: float) -> Line | float | None:
        """An open line, or else when to ask again; None if the attempt has failed."""
        addresses = self.addresses
        for address in addresses.late(now):
            self._fail(address, TimeoutError())
        if (taken := addresses.take(now)) is not None:
            return Line(_prepared(self._connected.pop(taken[0]), taken[1].settings), taken[1])
        while (due := addresses.due(now)) is not None:
            try:
                self._begin(due)
            except Exception as error:  # noqa: BLE001 - OSError, also without a thread; ValueError for a host
                self._fail(due, error)
        return addresses.wait_until(now)

    def _begin(self, address: Address) -> None:
        """Begin to dial, or to look up."""
        settings = address.settings
        if address.sockaddr is not None:
            self._connect(address, address.sockaddr)
        elif self._open_socket is not None:
            self._send(address, checked, self._open_socket, settings.host, settings.port, settings.connect_timeout)
        elif numeric := _numeric(settings.host, settings.port):
            self.addresses.found(address, numeric)
        else:
            self._send(address, _look_up, settings.host, settings.port)

    def _connect(self, address: Address, sockaddr: Sockaddr) -> None:
        """Begin to connect."""
        raise NotImplementedError

    def _send(self, address: Address, function: Callable[..., object], *arguments: object) -> None:
        """Begin to call what may block. It returns a socket, or what a name stands for."""
        raise NotImplementedError

    def _leave(self, address: Address) -> None:
        """Give up what :meth:`_begin` has begun."""
        raise NotImplementedError

    def _end(self, address: Address, outcome: object) -> None:
        """What was begun has ended, with a socket, with what a name stands for, or with an exception."""
        if isinstance(outcome, BaseException):
            self._fail(address, outcome)
        elif isinstance(outcome, socket.socket):
            self._connected[address] = outcome
            self.addresses.opened(address)
        else:
            self.addresses.found(address, cast("Sequence[Sockaddr]", outcome))

    def _fail(self, address: Address, why: BaseException) -> None:
        self._leave(address)
        if (sock := self._connected.pop(address, None)) is not None:
            sock.close()
        self.addresses.failed(address, why)

    def settle(self, *, for_good: bool = False) -> None:
        """Give up all dials that are not in use; ``for_good``: the client is closed, and opens no line any more."""
        self._is_closed = self._is_closed or for_good
        for address in self.addresses.settled():
            self._leave(address)
        for sock in self._connected.values():
            sock.close()
        self._connected.clear()


class Dialer(_Dialing):
    """Dial for threads. One at a time opens lines; any may close."""

    def __init__(self, settings: ConnectionSettings, open_socket: OpenSocket | None = None) -> None:
        super().__init__(settings, open_socket)
        self._connecting: dict[Address, socket.socket] = {}
        self._errands: dict[Address, Errand[object]] = {}
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._busy = Mutex()  # guards all of the above

    def open(self, *, new_round: bool) -> Line | Closed:
        """The first address that is open, or why there is none."""
        step: Line | float | None = -math.inf
        try:
            with self._busy:
                self.addresses.begin(monotonic(), new_round=new_round)
                while isinstance(step, float):
                    self._wait(max(0.0, step - monotonic()))
                    step = self._step(monotonic())
                self._end_waker()
        except BaseException:
            self.settle()
            raise
        if self._is_closed:
            self.settle()
        return step or connect_failed(*self.addresses.failure)

    def settle(self, *, for_good: bool = False) -> None:
        self._is_closed = self._is_closed or for_good
        if not self._busy.acquire(False, -1):
            return  # the thread that holds it settles when it is done
        try:
            super().settle()
            self._end_waker()
        finally:
            self._busy.release()

    def _end_waker(self) -> None:
        if self._errands:
            return
        for end in self._waker or ():
            end.close()
        self._waker = None

    def _connect(self, address: Address, sockaddr: Sockaddr) -> None:
        self._connecting[address] = sock = _made(sockaddr)
        if (code := sock.connect_ex(sockaddr[4])) not in _UNDER_WAY:
            raise OSError(code, os.strerror(code))

    def _send(self, address: Address, function: Callable[..., object], *arguments: object) -> None:
        if self._waker is None:
            self._waker = socket.socketpair()
            for end in self._waker:
                end.setblocking(False)
        self._errands[address] = errand = Errand(function, *arguments)
        errand.start(partial(_wake, self._waker[0]))

    def _leave(self, address: Address) -> None:
        if (sock := self._connecting.pop(address, None)) is not None:
            sock.close()
        if (errand := self._errands.pop(address, None)) is not None:
            errand.leave()

    def _wait(self, seconds: float) -> None:
        """Until something ends, and take that in."""
        if not (self._connecting or self._errands):
            return
        with selectors.DefaultSelector() as selector:
            for address, sock in self._connecting.items():
                selector.register(sock, selectors.EVENT_WRITE, address)
            if self._waker is not None:
                selector.register(self._waker[1], selectors.EVENT_READ)
            ready = [key.data for key, _ in selector.select(seconds) if key.data is not None]
        for address in ready:
            sock = self._connecting.pop(address)
            self._connected[address] = sock
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(address, OSError(code, os.strerror(code)) if code else sock)
        if self._waker is not None:
            with contextlib.suppress(BlockingIOError):
                self._waker[1].recv(4096)
        for address, errand in [item for item in self._errands.items() if item[1].is_over]:
            del self._errands[address]
            self._end(address, errand.outcome())


class AioDialer(_Dialing):
    """For one event loop."""

    def __init__(self, settings: ConnectionSettings, open_socket: OpenSocket | None = None) -> None:
        super().__init__(settings, open_socket)
        self._tasks: dict[Address, asyncio.Task[object]] = {}

    async def open(self, *, new_round: bool) -> Line | Closed:
        """The first address that is open, or why there is none."""
        self.addresses.begin(monotonic(), new_round=new_round)
        step: Line | float | None = -math.inf
        try:
            while isinstance(step, float):
                await self._wait(max(0.0, step - monotonic()))
                step = self._step(monotonic())
        except BaseException:
            self.settle()
            raise
        if self._is_closed:
            self.settle()
        return step or connect_failed(*self.addresses.failure)

    def _connect(self, address: Address, sockaddr: Sockaddr) -> None:
        self._start(address, _connected(sockaddr))

    def _send(self, address: Address, function: Callable[..., object], *arguments: object) -> None:
        self._start(address, in_own_thread(function, *arguments))

    def _start(self, address: Address, work: Coroutine[Any, Any, object]) -> None:
        import asyncio  # not for the blocking client

        self._tasks[address] = asyncio.get_running_loop().create_task(work, name="statestore dials")

    def _leave(self, address: Address) -> None:
        task = self._tasks.pop(address, None)
        if task is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed
            task.cancel()
        if task.done() and isinstance(outcome := _outcome(task), socket.socket):
            outcome.close()

    async def _wait(self, seconds: float) -> None:
        """Until something ends, and take that in."""
        import asyncio

        if not self._tasks:
            return
        done, _ = await asyncio.wait(self._tasks.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for address in [one for one, task in self._tasks.items() if task in done]:
            self._end(address, _outcome(self._tasks.pop(address)))


def _outcome(task: asyncio.Task[object]) -> object:
    if task.cancelled():
        return OSError("the event loop is about to end")
    return task.exception() or task.result()


async def _connected(sockaddr: Sockaddr) -> socket.socket:
    import asyncio

    sock = _made(sockaddr)
    try:
        await asyncio.get_running_loop().sock_connect(sock, sockaddr[4])
    except BaseException:
        sock.close()
        raise
    return sock


def _made(sockaddr: Sockaddr) -> socket.socket:
    sock = socket.socket(*sockaddr[:3])
    sock.setblocking(False)
    return sock


def _prepared(sock: socket.socket, settings: ConnectionSettings) -> socket.socket:
    """Nagle's algorithm would hold a small request back until the one before it is acknowledged: 40 ms on loopback."""
    with contextlib.suppress(OSError):  # it is broken already: the first write tells
        sock.setblocking(False)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _USER_TIMEOUT is not None:
                patience_s = max(settings.silence_timeout, _UNACKNOWLEDGED_S)
                sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(1000 * patience_s))
    return sock


def _wake(waker: socket.socket) -> None:
    with contextlib.suppress(OSError):  # full: the reader wakes anyway; closed: no reader is left
        waker.send(b"\0")


def _look_up(host: str, port: int) -> Sequence[Sockaddr]:
    return socket.getaddrinfo(_encoded(host), port, type=socket.SOCK_STREAM)


def _numeric(host: str, port: int) -> Sequence[Sockaddr]:
    """The address of a host that needs no look-up; nothing for a name."""
    try:
        return socket.getaddrinfo(_encoded(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return ()


def _encoded(host: str) -> str | bytes:
    """The name as bytes, which need no tables of international names: a tenth of an idle client's memory."""
    return host.encode() if host.isascii() else host
