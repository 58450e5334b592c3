"""A server that tests handle from outside: its time, its state, and messages of its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from statestore_client.server.runtime.server import Server
from statestore_client.server.testing.controlled_driver import ControlledDriver
from statestore_client.server.testing.fault_injector import FaultyConnection

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker import Broker
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.runtime.storage import GroupCommit
    from statestore_client.server.runtime.transport.connection import ServerConnection
    from statestore_client.server.testing.fault_injector import FaultInjection
    from statestore_client.server.testing.hooks import EventDispatcher
    from statestore_client.server.testing.virtual_clock import VirtualClock

__all__ = ["ControlledServer"]

T = TypeVar("T")

#: How long another thread waits for the server's to do something. It is never busy for that long.
_CALL_TIMEOUT_S: Final = 60.0


#: For clients to take their DISCONNECT. They are in the same process or beside it, and a test that stops its server
#: does not want to wait for those that never read.
_GRACE_S: Final = 0.02


class ControlledServer(Server):
    """Everything but :meth:`call` and :attr:`is_here` belongs to the thread of the server's event loop."""

    _grace_s = _GRACE_S

    def __init__(
        self,
        *,
        virtual_clock: VirtualClock,
        dispatcher: EventDispatcher,
        injection: FaultInjection | None = None,
        **options: Any,
    ) -> None:
        """``options`` are those of :class:`Server`."""
        self._injection = injection
        self._virtual_clock = virtual_clock
        self._dispatcher = dispatcher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        super().__init__(clock=virtual_clock, events=dispatcher, **options)

    def _new_driver(self, loop: asyncio.AbstractEventLoop, group_commit: GroupCommit | None) -> ControlledDriver:
        self._loop = loop
        self._thread_id = threading.get_ident()
        return ControlledDriver(
            self._broker,
            self._clock,
            loop,
            verify=self._security.verify,
            group_commit=group_commit,
            call_at=self._call_at or self._virtual_clock.call_at,
        )

    def _new_connection(self, driver: BrokerDriver) -> ServerConnection:
        return super()._new_connection(driver) if self._injection is None else FaultyConnection(driver, self._injection)

    def _running(self) -> ControlledDriver:
        if not isinstance(self._driver, ControlledDriver):
            raise RuntimeError("this server is not running")
        return self._driver

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
        self._dispatcher.published("", packet)
        self._broker.publish(packet, self._clock())
        self._running().flush()

    def advance(self, seconds: float, *, keep_alive: bool) -> None:
        """Let the clock jump, and do all that is due by then. Without ``keep_alive``, no client is held to have been
        silent meanwhile.
        """
        self._check_alone()
        driver, clock = self._running(), self._virtual_clock

        def catch_up() -> None:
            if not keep_alive:
                self._broker.restart_keep_alives(clock())
            driver.catch_up()

        clock.advance(seconds, catch_up)

    def restart(self) -> None:
        """As if the server had been stopped and started, with all that it knows."""
        self._broker.disconnect_all(self._clock())
        self._running().flush()

    def start_anew(self, *, tell: bool) -> None:
        """As if the server had been stopped and started, empty. Clients get a DISCONNECT if ``tell``."""
        self._check_alone()
        self._service, self._broker = self.new_machines(None)
        driver = self._running()
        driver.start_anew(self._broker, tell=tell)
        self._open_bridge(driver)

    def _check_alone(self) -> None:
        if self.replication is not None:
            raise RuntimeError("a server with a log has its time and its state from there: neither can be set here")
