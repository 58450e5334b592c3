"""Signs of life: the active server says its epoch to the others, every 50 ms, from a thread of its own.

A thread, because the event loop may be busy for longer than the others wait. If it hangs altogether, the pulse ends.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from statestore_client.clocks import monotonic
from statestore_client.errors import RemoteProtocolError
from statestore_client.server.cluster.entries import FORMAT
from statestore_client.server.runtime.observability.logs import LOGGER
from statestore_client.server.runtime.replication.internal import PULSE_BYTES, Hello, dial
from statestore_client.thread_locks import Flag, Mutex

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.runtime.replication.internal import ClusterSecret, Session

_PULSE_S: Final = 0.05
#: An event loop that has not come by for longer hangs.
_HUNG_S: Final = 0.5
#: Between two attempts to reach an active server that is there.
_AGAIN_S: Final = 0.1
_CONNECT_S: Final = 1.0
#: A connection on which nothing comes for longer is tried anew: its other end may be gone without a word, and so may
#: that of each client that was passed on there. If others can be reached, another server is active before (0.6 s).
_SILENCE_S: Final = 1.0


@attrs.define
class _Standby:
    """One that listens."""

    id: str
    format: int
    session: Session
    count: int = 0  # of signs of life that it was given


class HeartbeatThread:
    """Of the active server. :meth:`start` and :meth:`close` belong to the event loop."""

    def __init__(self, may_pulse: Callable[[], int | None], listener_came: Callable[[], None]) -> None:
        """``may_pulse``: the epoch, or None. Both are called in the event loop."""
        self._may_pulse = may_pulse
        self._listener_came = listener_came
        self._epoch: int | None = None
        self._seen_at = 0.0
        self._sockets: dict[socket.socket, _Standby] = {}
        self._lock = Mutex()
        self._is_over = Flag()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._look()
        self._thread = threading.Thread(target=self._run, name="statestore-pulse", daemon=True)
        self._thread.start()

    def add(self, sock: socket.socket, server_id: str, format_: int, session: Session) -> None:
        """Another server listens on it, which knows records up to this format. It is closed here.

        So are those that have left. A standby that hears nothing comes anew each second, and while nothing is said to
        anybody, nobody else notices.
        """
        sock.setblocking(False)
        with self._lock:
            for left in [each for each in self._sockets if _has_ended(each)]:
                del self._sockets[left]
                left.close()
            self._sockets[sock] = _Standby(server_id, format_, session)
        if self._is_over.is_set():
            self.part()
        else:
            self._listener_came()

    @property
    def listeners(self) -> list[str]:
        """The ids of the servers that listen, those that came last at the end."""
        return list(self.formats)

    @property
    def formats(self) -> dict[str, int]:
        """The newest formats that they know, by id, in that order."""
        with self._lock:
            return {standby.id: standby.format for standby in self._sockets.values()}

    def close(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
        self.part()

    def part(self) -> None:
        """From all that listen: this server is not active any more, and what they knew counts for the next one."""
        with self._lock:
            for sock in self._sockets:
                sock.close()
            self._sockets.clear()

    def _look(self) -> None:
        """In the event loop."""
        self._epoch, self._seen_at = self._may_pulse(), monotonic()
        self._timer = asyncio.get_running_loop().call_later(_PULSE_S, self._look)

    def _run(self) -> None:
        while not self._is_over.wait(_PULSE_S):
            epoch = self._epoch
            if epoch is not None and monotonic() - self._seen_at < _HUNG_S:
                self._give(epoch)

    def _give(self, epoch: int) -> None:
        with self._lock:
            for sock, standby in tuple(self._sockets.items()):
                try:
                    is_whole = sock.send(standby.session.pulse(epoch, standby.count)) == PULSE_BYTES
                except BlockingIOError:
                    continue  # it does not listen at the moment
                except OSError:
                    is_whole = False
                standby.count += 1
                if not is_whole:
                    del self._sockets[sock]
                    sock.close()


def _has_ended(sock: socket.socket) -> bool:
    """Whether the other side has closed it, which says nothing else."""
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Listener(Protocol):
    """A standby that wants to know whether the active server lives."""

    def hear(self, epoch: int) -> None:
        """It said so."""

    def suspect(self) -> None:
        """Its machine refuses connections: the process is gone."""


class HeartbeatListener:
    """Listens to one active server until it is closed."""

    def __init__(
        self,
        address: str,
        server_id: str,
        secret: ClusterSecret,
        listener: Listener,
        doubt: Callable[[], None] = lambda: None,
    ) -> None:
        """``server_id`` is the own one. ``doubt`` is called when nothing has come for a second, once: the server may
        be active, and cannot be reached from here.
        """
        self._address = address
        self._hello = Hello("pulse", server_id, address, str(FORMAT))
        self._secret = secret
        self._listener = listener
        self._doubt = doubt
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
            stream, session = await dial(self._address, self._hello, self._secret)
        count = 0
        try:
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    pulse = await stream.read(PULSE_BYTES)
                self._listener.hear(session.epoch_of(pulse, count))
                count += 1
        except TimeoutError:
            if count:  # once: who was passed on since has reached it
                self._doubt()
        except (OSError, EOFError):
            pass
        finally:
            stream.transport.close()
        return count > 0
