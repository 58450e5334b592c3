"""A server that tests handle from outside: its time, its state, and messages of its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from statestore_client.server.runtime.fault_line import FaultyConnection
from statestore_client.server.runtime.hub import Hub
from statestore_client.server.runtime.server import Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker import Broker
    from statestore_client.server.runtime.connection import ClientConnection
    from statestore_client.server.runtime.fault_line import Mischief
    from statestore_client.server.runtime.jumping import JumpingClock
    from statestore_client.server.runtime.storage import Gate
    from statestore_client.server.runtime.watching import Watcher

__all__ = ["ControlledServer"]

T = TypeVar("T")

#: How long another thread waits for the server's to do something. It is never busy for so long.
_CALL_TIMEOUT_S: Final = 60.0


#: For clients to take their DISCONNECT. They are in the same process or beside it, and a test that stops its server
#: does not want to wait for those that never read.
_GRACE_S: Final = 0.02


class ControlledServer(Server):
    """Everything but :meth:`call` and :attr:`is_here` belongs to the thread of the server's event loop."""

    _grace_s = _GRACE_S

    def __init__(
        self, *, jumping: JumpingClock, watcher: Watcher, mischief: Mischief | None = None, **options: Any
    ) -> None:
        """``options`` are those of :class:`Server`."""
        self._mischief = mischief
        self._jumping = jumping
        self._watcher = watcher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        super().__init__(clock=jumping, witness=watcher, **options)

    def _new_hub(self, loop: asyncio.AbstractEventLoop, gate: Gate | None) -> Hub:
        self._loop = loop
        self._thread_id = threading.get_ident()
        verify = self._security.verify
        return Hub(self._broker, self._clock, loop, verify=verify, gate=gate, call_at=self._jumping.call_at)

    def _new_connection(self, hub: Hub) -> ClientConnection:
        return super()._new_connection(hub) if self._mischief is None else FaultyConnection(hub, self._mischief)

    def _running(self) -> Hub:
        if self._hub is None:
            raise RuntimeError("this server is not running")
        return self._hub

    @property
    def broker(self) -> Broker:
        return self._broker

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the thread of the server's event loop."""
        return self._thread_id == threading.get_ident()

    def call(self, action: Callable[[], T]) -> T:
        """Do something in the thread of the server's event loop. The result, or the error, is the caller's."""
        loop = self._loop
        self._running()
        if self.is_here or loop is None:
            return action()
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                done.set_exception(error)

        loop.call_soon_threadsafe(act)
        return done.result(_CALL_TIMEOUT_S)

    def publish(self, packet: Publish) -> None:
        """Publish a message of the server's own."""
        self._watcher.published("", packet.topic, packet)
        self._broker.publish(packet, self._clock())
        self._running().flush()

    def advance(self, seconds: float, *, keep_alive: bool) -> None:
        """Let the clock jump, and do all that is due by then. Without ``keep_alive``, no client is held to have been
        silent meanwhile.
        """
        hub, clock = self._running(), self._jumping

        def catch_up() -> None:
            if not keep_alive:
                self._broker.excuse_silence(clock())
            hub.catch_up()

        clock.advance(seconds, catch_up)

    def restart(self) -> None:
        """As if the server had been stopped and started, with all that it knows."""
        self._broker.disconnect_all(self._clock())
        self._running().flush()

    def start_anew(self, *, tell: bool) -> None:
        """As if the server had been stopped and started, empty. Clients get a DISCONNECT if ``tell``."""
        self._service, self._broker = self._new_broker()
        self._running().replace_broker(self._broker, tell=tell)
