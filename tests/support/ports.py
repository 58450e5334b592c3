"""Ports for servers that are told where to listen: nobody else on this machine takes them in between.

Asking the kernel for a free port (port 0), giving it back and telling a server to take it leaves a gap: the kernel
hands the same port to the next one that asks, and takes it for outgoing connections. On a busy machine that happens. So
these ports lie outside the range that the kernel hands out, and a lock that lasts as long as this process keeps them
from other test processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

__all__ = ["black_hole", "reserved_port", "reserved_ports"]

#: Below the range of ports that Linux, macOS and Windows hand out, above those that need rights.
_FIRST: Final = 12_000
_LAST: Final = 32_000

_locks: list[IO[bytes]] = []
_candidates = itertools.cycle(random.Random(os.getpid()).sample(range(_FIRST, _LAST), _LAST - _FIRST))


def reserved_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, and which is this process's own until it ends."""
    for port in itertools.islice(_candidates, _LAST - _FIRST):
        if _lock(port) and _is_free(port):
            return port
    raise OSError(f"no port from {_FIRST} to {_LAST} is free")


def reserved_ports(count: int) -> int:
    """The first of so many, one after the other, of which each is reserved as above."""
    while True:
        first = reserved_port()
        if all(_lock(port) and _is_free(port) for port in range(first + 1, first + count)):
            return first


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port at which nothing is answered: nobody accepts, and the queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(3):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        time.sleep(0.01)  # the queue fills
        yield port


def _lock(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / "statestore-client-ports"
    folder.mkdir(mode=0o777, exist_ok=True)
    lock = (folder / str(port)).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _locks.append(lock)
    return True


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
