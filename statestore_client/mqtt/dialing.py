"""From a host name to a connected TCP socket, in blocking and in asyncio form, within one deadline.

A name may have several addresses, and one of them may swallow packets. So each attempt has a head start of 100 ms, or
until it fails; then the next address is tried beside it. The first that connects wins, and the others are closed
(RFC 8305, section 5).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from statestore_client.clocks import monotonic
from statestore_client.mqtt.opening import Opening, OpenSocket, in_own_thread

if TYPE_CHECKING:
    import asyncio

__all__ = ["OpenSocket", "dial", "dial_async"]

_Address: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo gives it
_SHORTEST_S: Final = 0.001
#: Seconds. RFC 8305 recommends 250 ms and allows 100 ms.
_STAGGER_S: Final = 0.1
#: Where the system has it (Linux), TCP gives a connection up when the other kernel acknowledges nothing for this long
#: (seconds), or takes nothing, in place of a quarter of an hour. That finds a machine that vanished while MQTT owes us
#: nothing, too: a client that only watches sends acknowledgements. Longer than a server that works takes no input.
_UNACKNOWLEDGED_S: Final = 10.0
_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)
_UNDER_WAY: Final = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})


def dial(
    host: str, port: int, deadline: float, open_socket: OpenSocket | None = None, *, silence_s: float = 0.0
) -> socket.socket:
    """A connected, blocking socket by ``deadline`` (monotonic seconds). Raises OSError, or ValueError for a host.

    ``silence_s``: a silence that the user bears, so that TCP does, too.
    """
    if open_socket is not None:
        with Opening(open_socket, host, port, _left(deadline)) as opening:
            sock = opening.wait()
    else:
        sock = _dial_any(_look_up(host, port), deadline)
    return _prepared(sock, silence_s, is_blocking=True)


async def dial_async(
    loop: asyncio.AbstractEventLoop,
    host: str,
    port: int,
    deadline: float,
    open_socket: OpenSocket | None = None,
    *,
    silence_s: float = 0.0,
) -> socket.socket:
    """As :func:`dial`, non-blocking."""
    if open_socket is not None:
        with Opening(open_socket, host, port, _left(deadline)) as opening:
            sock = await opening.wait_async()
    else:
        addresses = _numeric(host, port) or await in_own_thread(_look_up, host, port)
        sock = await _dial_any_async(loop, addresses, deadline)
    return _prepared(sock, silence_s, is_blocking=False)


def _look_up(host: str, port: int) -> Sequence[_Address]:
    return socket.getaddrinfo(_encoded(host), port, type=socket.SOCK_STREAM)


def _numeric(host: str, port: int) -> Sequence[_Address]:
    """The address of a host that needs no look-up; nothing for a name."""
    try:
        return socket.getaddrinfo(_encoded(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        return ()


def _encoded(host: str) -> str | bytes:
    """The name as bytes, which need no tables of international names: a tenth of an idle client's memory."""
    return host.encode() if host.isascii() else host


def _prepared(sock: socket.socket, silence_s: float, *, is_blocking: bool) -> socket.socket:
    """Nagle's algorithm would hold a small request back until the one before it is acknowledged: 40 ms on loopback."""
    try:
        sock.setblocking(is_blocking)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _USER_TIMEOUT is not None:
                sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(1000 * max(silence_s, _UNACKNOWLEDGED_S)))
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_any(addresses: Sequence[_Address], deadline: float) -> socket.socket:
    waiting, why = deque(addresses), OSError("the name has no address")
    attempts: set[socket.socket] = set()
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or attempts:
                if (left := deadline - monotonic()) <= 0:
                    raise TimeoutError
                if waiting:
                    try:
                        sock, address = _made(waiting.popleft())
                    except OSError as error:
                        why = error
                        continue
                    attempts.add(sock)
                    if (code := sock.connect_ex(address)) in _UNDER_WAY:
                        selector.register(sock, selectors.EVENT_WRITE)
                    else:
                        why = _given_up(sock, code, attempts)
                        continue
                for key, _ in selector.select(min(left, _STAGGER_S) if waiting else left):
                    sock = cast("socket.socket", key.fileobj)
                    selector.unregister(sock)
                    if not (code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
                        attempts.discard(sock)
                        return sock
                    why = _given_up(sock, code, attempts)
    finally:
        for sock in attempts:
            sock.close()
    raise why


def _given_up(sock: socket.socket, code: int, attempts: set[socket.socket]) -> OSError:
    attempts.discard(sock)
    sock.close()
    return OSError(code, os.strerror(code))


async def _dial_any_async(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[_Address], deadline: float
) -> socket.socket:
    import asyncio  # not for the blocking client

    waiting, why = deque(addresses), OSError("the name has no address")
    attempts: dict[asyncio.Task[None], socket.socket] = {}
    try:
        while waiting or attempts:
            if (left := deadline - monotonic()) <= 0:
                raise TimeoutError
            if waiting:
                try:
                    sock, address = _made(waiting.popleft())
                except OSError as error:
                    why = error
                    continue
                attempts[loop.create_task(_connect(loop, sock, address))] = sock
            timeout = min(left, _STAGGER_S) if waiting else left
            done, _ = await asyncio.wait(attempts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failure = task.exception()
                if failure is None:
                    return attempts.pop(task)
                attempts.pop(task).close()
                if not isinstance(failure, OSError):
                    raise failure
                why = failure
    finally:
        for task in attempts:
            task.cancel()
        if attempts:
            await asyncio.wait(attempts)  # the loop lets go of a descriptor before it is closed
        for sock in attempts.values():
            sock.close()
    raise why


async def _connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: Any) -> None:
    await loop.sock_connect(sock, address)


def _made(target: _Address) -> tuple[socket.socket, Any]:
    family, kind, protocol, _, address = target
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    return sock, address


def _left(deadline: float) -> float:
    return max(_SHORTEST_S, deadline - monotonic())
