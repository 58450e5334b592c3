"""Signs of life: the active server says its epoch to the others, every 50 ms, from a thread of its own.

A thread, because the event loop may be busy for longer than the others wait. If it hangs altogether, the pulse ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from statestore_client.errors import RemoteProtocolError
from statestore_client.server.cluster.entries import FORMAT
from statestore_client.server.runtime.observability.event_log import LOGGER
from statestore_client.server.runtime.replication.internal_handshake import (
    ACCEPTED,
    EPOCH_BYTES,
    SERVER_HELLO_BYTES,
    ClientHello,
    ServerHello,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PulseListener", "PulseThread", "dial"]

_PULSE_S: Final = 0.05
#: An event loop that has not come by for longer hangs.
_HUNG_S: Final = 0.5
#: Between two attempts to reach an active server that is there.
_AGAIN_S: Final = 0.1
_CONNECT_S: Final = 1.0
#: A connection on which nothing comes for longer is tried anew: its other end may be gone without a word.
_SILENCE_S: Final = 1.0


class PulseThread:
    """Of the active server. :meth:`start` and :meth:`close` belong to the event loop."""

    def __init__(self, may_pulse: Callable[[], int | None], listener_came: Callable[[], None]) -> None:
        """``may_pulse``: the epoch, or None. Both are called in the event loop."""
        self._may_pulse = may_pulse
        self._listener_came = listener_came
        self._epoch: int | None = None
        self._seen_at = 0.0
        self._sockets: dict[socket.socket, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look()
        self._thread = threading.Thread(target=self._run, name="statestore-pulse", daemon=True)
        self._thread.start()

    def add(self, sock: socket.socket, server_id: str, format_: int) -> None:
        """Another server listens on it, which knows records up to this format. It is closed here."""
        sock.setblocking(False)
        with self._lock:
            self._sockets[sock] = server_id, format_
        self._listener_came()

    @property
    def listeners(self) -> list[str]:
        """The ids of the servers that listen, those that came last at the end."""
        return list(self.formats)

    @property
    def formats(self) -> dict[str, int]:
        """The newest formats that they know, by id, in that order."""
        with self._lock:
            return dict(self._sockets.values())

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
                    del self._sockets[sock]
                    sock.close()


class Listener(Protocol):
    """A standby that wants to know whether the active server lives."""

    def hear(self, epoch: int) -> None:
        """It said so."""

    def suspect(self) -> None:
        """Its machine refuses connections: the process is gone."""


async def dial(address: str, hello: ClientHello, key: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the internal address ``host:port`` of another server. Raises OSError, EOFError, and
    RemoteProtocolError.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    try:
        answer = ServerHello.decode(await reader.readexactly(SERVER_HELLO_BYTES))
        if answer is not None:
            writer.write(hello.encode(answer.challenge, key))
        await reader.readexactly(len(ACCEPTED))
    except BaseException:
        writer.close()
        raise
    return reader, writer


class PulseListener:
    """Listens to one active server until it is closed."""

    def __init__(self, address: str, server_id: str, key: bytes, listener: Listener) -> None:
        """``server_id`` is the own one."""
        self._address = address
        self._hello = ClientHello("pulse", server_id, str(FORMAT))
        self._key = key
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def close(self) -> None:
        self._task.cancel()

    async def _listen(self) -> None:
        while True:
            try:
                if await self._hear_all():
                    continue  # gone a moment ago: the next attempt tells whether its process is
            except ConnectionRefusedError:
                self._listener.suspect()
            except (OSError, EOFError, RemoteProtocolError) as error:
                LOGGER.debug("no pulse from %s: %r", self._address, error)
            await asyncio.sleep(_AGAIN_S)

    async def _hear_all(self) -> bool:
        """Until the connection ends, or nothing comes. Whether something came."""
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await dial(self._address, self._hello, self._key)
        has_heard = False
        try:
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    pulse = await reader.readexactly(EPOCH_BYTES)
                self._listener.hear(int.from_bytes(pulse, "big"))
                has_heard = True
        except (OSError, EOFError):
            return has_heard
        finally:
            writer.close()
