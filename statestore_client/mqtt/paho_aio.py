"""Connections of paho clients for an event loop: those for a thread, woken up by the loop's own means."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError
from statestore_client.mqtt.driver import AioDriver
from statestore_client.mqtt.opening import in_own_thread
from statestore_client.mqtt.paho_driver import PahoDriver
from statestore_client.wire.messages import Alternatives, Event

if TYPE_CHECKING:
    from statestore_client.mqtt.client_connection import PublishCall
    from statestore_client.mqtt.paho_owned import OwnedConnector
    from statestore_client.mqtt.paho_shared import SharedConnector


class PahoAioConnector:
    """See :class:`statestore_client.mqtt.driver.AioConnector`."""

    def __init__(self, connector: OwnedConnector | SharedConnector) -> None:
        self._connector = connector
        self.complaint: Callable[[], str | None] = connector.complaint
        self.settle: Callable[..., None] = connector.settle
        self.close: Callable[[], None] = connector.close
        self.reopen: Callable[[], None] = connector.reopen

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if type(loop).add_reader is asyncio.AbstractEventLoop.add_reader:  # where it is not implemented: on Windows
            raise BusyError(
                f"{type(loop).__name__} has no add_reader(), which paho needs; use driver='native', or run the program "
                "with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
            )

    @property
    def addresses(self) -> Alternatives:
        return self._connector.addresses

    def open(
        self, *, clean_start: bool, new_round: bool = True, on_events: Callable[[AioDriver, Sequence[Event]], None]
    ) -> PahoAioDriver:
        return PahoAioDriver(self._connector.open(clean_start=clean_start, new_round=new_round), on_events)


class PahoAioDriver:
    """For an event loop; see :class:`statestore_client.mqtt.driver.AioDriver`."""

    def __init__(self, driver: PahoDriver, on_events: Callable[[AioDriver, Sequence[Event]], None]) -> None:
        self._driver = driver
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._aborted = False
        self._fileno: int | None = None
        self._writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self.publish: PublishCall = driver.publish
        self.subscribe: Callable[[int, Sequence[str]], None] = driver.subscribe
        self.acknowledge: Callable[[int], None] = driver.acknowledge
        self.disconnect: Callable[[], None] = driver.disconnect
        self.ping: Callable[[], None] = driver.ping
        driver.wake_by(self._wake, self._let_go)

    @property
    def url(self) -> str:
        return self._driver.url

    @property
    def heard_at(self) -> float | None:
        return self._driver.heard_at

    async def connect(self) -> None:
        if self._driver.connect_blocks:
            await in_own_thread(self._connect_in_thread)
        else:
            self._driver.connect()
        self._fileno = self._driver.fileno()
        if self._fileno is not None:
            self._loop.add_reader(self._fileno, self._turn)
        self._turn()

    def flush(self) -> None:
        self._driver.flush()
        self._look_ahead()

    def abort(self) -> None:
        self._aborted = True
        self._driver.abort()

    def _connect_in_thread(self) -> None:
        try:
            self._driver.connect()
        finally:  # also if it failed with a socket: nobody else waits for this thread any longer
            if self._aborted:  # while it was waiting for the network
                self._driver.abort()

    def _turn(self) -> None:
        events = self._driver.poll()
        self._look_ahead()
        if events:
            self._on_events(self, events)

    def _look_ahead(self) -> None:
        """See to it that the next turn comes when there is something to do."""
        if self._fileno is not None:
            wanted = self._driver.wants_write
            if wanted and not self._writing:
                self._loop.add_writer(self._fileno, self._turn)
            elif self._writing and not wanted:
                self._loop.remove_writer(self._fileno)
            self._writing = wanted
        deadline = self._driver.next_deadline()
        if deadline != self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = deadline
            never, delay = deadline == math.inf, deadline - monotonic()
            self._timer = None if never else self._loop.call_later(max(0.0, delay), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self._wakes_at = math.inf
        self._turn()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._turn)

    def _let_go(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child shares the loop's selector with its parent, and would stop it listening
        if self._fileno is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fileno)
                self._loop.remove_writer(self._fileno)
            self._fileno = None
            self._writing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._wakes_at = math.inf
