"""Signs of life: the active server says its epoch to the others, every 50 ms, from a thread of its own.

A thread, because the event loop may be busy for longer than the others wait. If it hangs altogether, the pulse ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, cast

from statestore_client.server.runtime.replication.inner_hello import (
    CHALLENGE_BYTES,
    EPOCH_BYTES,
    GREETING,
    InnerHello,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PulseListener", "PulseThread", "dial"]

_PULSE_S: Final = 0.05
#: An event loop that has not come by for so long hangs.
_HUNG_S: Final = 0.5
#: Between two attempts to reach an active server that is there.
_AGAIN_S: Final = 0.1
_CONNECT_S: Final = 1.0


class PulseThread:
    """Of the active server. :meth:`start` and :meth:`close` belong to the event loop."""

    def __init__(self, may_pulse: Callable[[], int | None]) -> None:
        """``may_pulse``: the epoch, or None; asked in the event loop."""
        self._may_pulse = may_pulse
        self._epoch: int | None = None
        self._seen_at = 0.0
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look()
        self._thread = threading.Thread(target=self._run, name="statestore-pulse", daemon=True)
        self._thread.start()

    def add(self, sock: socket.socket) -> None:
        """Another server listens on it. It is closed here."""
        sock.setblocking(False)
        with self._lock:
            self._sockets.append(sock)

    def close(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()

    def _look(self) -> None:
        """In the event loop."""
        self._epoch, self._seen_at = self._may_pulse(), time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_PULSE_S, self._look)

    def _run(self) -> None:
        while not self._is_over.wait(_PULSE_S):
            epoch = self._epoch
            if epoch is not None and time.monotonic() - self._seen_at < _HUNG_S:
                self._give(epoch.to_bytes(EPOCH_BYTES, "big"))

    def _give(self, pulse: bytes) -> None:
        with self._lock:
            for sock in tuple(self._sockets):
                try:
                    sock.send(pulse)
                except BlockingIOError:
                    pass  # it does not listen at the moment
                except OSError:
                    self._sockets.remove(sock)
                    sock.close()


class Listener(Protocol):
    """Who wants to know whether the active server lives."""

    def hear(self, epoch: int) -> None:
        """It said so."""

    def suspect(self) -> None:
        """Its machine refuses connections: the process is gone."""


async def dial(address: str, hello: InnerHello, key: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Come in at the inner door ``host:port`` of another server. Raises OSError, and EOFError."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        greeting = await reader.readexactly(len(GREETING) + CHALLENGE_BYTES)
        if not greeting.startswith(GREETING):
            raise ConnectionAbortedError(f"{address} is not the inner door of a server of this log")
        writer.write(hello.encode(greeting[len(GREETING) :], key))
    except BaseException:
        writer.close()
        raise
    return reader, writer


class PulseListener:
    """Listens to one active server until it is closed."""

    def __init__(self, address: str, key: bytes, listener: Listener) -> None:
        self._address = address
        self._key = key
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def close(self) -> None:
        self._task.cancel()

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear_all()
            except ConnectionRefusedError:
                self._listener.suspect()
                await asyncio.sleep(_AGAIN_S)
            except (OSError, EOFError, TimeoutError):
                # Gone a moment ago, mostly: the next attempt tells whether its process is.
                await asyncio.sleep(0)

    async def _hear_all(self) -> None:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await dial(self._address, InnerHello("pulse"), self._key)
        with suppress(OSError):
            _keep_alive(cast("socket.socket", writer.get_extra_info("socket")))
        try:
            while True:
                pulses = await reader.readexactly(EPOCH_BYTES)
                self._listener.hear(int.from_bytes(pulses, "big"))
        finally:
            writer.close()


def _keep_alive(sock: socket.socket) -> None:
    """A host that is gone says nothing; the next listener must not wait for it for hours."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
