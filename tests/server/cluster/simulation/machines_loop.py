"""As much of an event loop as a server without sockets needs. Its time is that of the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import attrs
from replicas_host import Host

#: The first byte of the packet (MQTT 5.0, 3.14).
_DISCONNECT: Final = 0xE0


@attrs.define(eq=False)
class _Handle:
    when_s: float
    callback: Callable[..., object] | None
    arguments: tuple[Any, ...]
    slept_s: float

    def when(self) -> float:
        return self.when_s

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback(*self.arguments)


class _Finished:
    """A task that never had to wait."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)

    def cancel(self) -> None:
        """Too late."""


class SimulatedLoop:
    """Of one process, until that is killed. Callbacks come while the process runs, late if it stands still."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.is_over = False
        #: How long its clock for timers has stood still, because the machine was suspended.
        self.slept_s = 0.0

    def time(self) -> float:
        return self._host.now.monotonic

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> _Handle:
        handle = _Handle(self.time() + delay, callback, arguments, self.slept_s)
        self._host.world.after(delay / self._host.rate, self._fire, handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *arguments: Any) -> _Handle:
        return self.call_later(max(0.0, when - self.time()), callback, *arguments)

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> _Handle:
        return self.call_later(0.0, callback, *arguments)

    call_soon_threadsafe = call_soon

    def _fire(self, handle: _Handle) -> None:
        if self.slept_s > handle.slept_s:
            late_s, handle.slept_s = self.slept_s - handle.slept_s, self.slept_s
            self._host.world.after(late_s, self._fire, handle)
        elif not self.is_over and handle.callback is not None:
            self._host.run(self._carry_out, handle)

    def _carry_out(self, handle: _Handle) -> None:
        if not self.is_over:
            handle.fire()

    def create_task(self, work: Coroutine[Any, Any, Any]) -> _Finished:
        try:
            work.send(None)
        except StopIteration:
            return _Finished()
        raise AssertionError("a task that waits")

    def get_debug(self) -> bool:
        return False


def _is_goodbye(data: bytes | bytearray | memoryview) -> bool:
    """Whether it is one DISCONNECT, and nothing else."""
    return data[0] == _DISCONNECT and len(data) == 2 + data[1]


class SimulatedTransport(asyncio.Transport):
    """The server's end of a connection. ``deliver`` and ``ended`` are told to the client, a moment later; ``speaks`` is
    called when something is said.
    """

    def __init__(
        self, host: Host, deliver: Callable[[bytes], None], ended: Callable[[], None], speaks: Callable[[], None]
    ) -> None:
        super().__init__()
        self._host = host
        self._deliver = deliver
        self._ended = ended
        self._speaks = speaks
        self._protocol: asyncio.Protocol | None = None
        self._unread: list[bytes] = []
        self._is_unread = False
        self._is_closing = False

    def open(self, protocol: asyncio.Protocol) -> None:
        """It was accepted."""
        self._protocol = protocol
        protocol.connection_made(self)

    def forget(self) -> None:
        """The process is gone."""
        self._protocol, self._is_closing = None, True

    def run(self, what: Callable[..., object], *arguments: object) -> None:
        """In the server's event loop."""
        self._host.run(what, *arguments)

    # -- from the client -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes of the client."""
        if self._is_closing or self._protocol is None:
            return
        if self._is_unread:
            self._unread.append(data)
        else:
            self._protocol.data_received(data)

    def cut(self) -> None:
        """The client's end is closed."""
        if not self._is_closing:
            self._is_closing = True
            self._tell()

    # -- from the server -----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            if not _is_goodbye(data):  # which any server may say: it promises nothing
                self._speaks()
            self._host.world.after(0.001, self._deliver, bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._host.world.after(0.001, self._ended)
            self._host.world.after(0.0, self._host.run, self._tell)

    abort = close

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return True

    def _tell(self) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(None)

    def pause_reading(self) -> None:
        self._is_unread = True

    def resume_reading(self) -> None:
        self._is_unread = False
        unread, self._unread = self._unread, []
        for data in unread:
            self.receive(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is ever too much."""

    def get_write_buffer_size(self) -> int:
        return 0
