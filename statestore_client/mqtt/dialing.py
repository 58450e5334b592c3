"""From a host name to a connected TCP socket, in blocking and in asyncio form, within one deadline.

Both try the addresses of a name one after the other. Each gets its share of the time that is left, so that one address
that swallows packets does not use up the time of the next.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from statestore_client.clocks import monotonic
from statestore_client.mqtt.opening import Opening, OpenSocket, in_own_thread

if TYPE_CHECKING:
    import asyncio

__all__ = ["OpenSocket", "dial", "dial_async"]

_Address: TypeAlias = tuple[int, int, int, str, Any]  # as getaddrinfo gives it
_SHORTEST_S: Final = 0.001


def dial(host: str, port: int, deadline: float, open_socket: OpenSocket | None = None) -> socket.socket:
    """A connected, blocking socket by ``deadline`` (monotonic seconds). Raises OSError, or ValueError for a host."""
    if open_socket is not None:
        with Opening(open_socket, host, port, _left(deadline)) as opening:
            sock = opening.wait()
    else:
        sock = _dial_any(_look_up(host, port), deadline)
    return _prepared(sock, is_blocking=True)


async def dial_async(
    loop: asyncio.AbstractEventLoop, host: str, port: int, deadline: float, open_socket: OpenSocket | None = None
) -> socket.socket:
    """As :func:`dial`, non-blocking."""
    if open_socket is not None:
        with Opening(open_socket, host, port, _left(deadline)) as opening:
            sock = await opening.wait_async()
    else:
        addresses = _numeric(host, port) or await in_own_thread(_look_up, host, port)
        sock = await _dial_any_async(loop, addresses, deadline)
    return _prepared(sock, is_blocking=False)


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


def _prepared(sock: socket.socket, *, is_blocking: bool) -> socket.socket:
    """Nagle's algorithm would hold a small request back until the one before it is acknowledged: 40 ms on loopback."""
    try:
        sock.setblocking(is_blocking)
        if sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_any(addresses: Sequence[_Address], deadline: float) -> socket.socket:
    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline) / (len(addresses) - position))
            sock.connect(address)
        except OSError:
            sock.close()
            if position == len(addresses) - 1:
                raise
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise OSError("the name has no address")


async def _dial_any_async(
    loop: asyncio.AbstractEventLoop, addresses: Sequence[_Address], deadline: float
) -> socket.socket:
    import asyncio  # not for the blocking client

    for position, (family, kind, protocol, _, address) in enumerate(addresses):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(_left(deadline) / (len(addresses) - position)):
                await loop.sock_connect(sock, address)
        except OSError:  # TimeoutError is one
            sock.close()
            if position == len(addresses) - 1:
                raise
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise OSError("the name has no address")


def _left(deadline: float) -> float:
    return max(_SHORTEST_S, deadline - monotonic())
