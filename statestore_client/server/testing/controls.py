"""What a test does with a server beside connecting to it: look, wait, publish, reset, restart, and move the time.

Any thread may call these. In the thread of the server's own event loop (``async with``, and functions in
:class:`Hooks`), everything works at once, but for :meth:`Controls.wait_for`, which would wait for itself.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import Publish, PublishProperties, encode, validate_topic_name
from statestore_client.server.checks import LONGEST_S, check_flag, check_kind, check_number, check_seconds
from statestore_client.server.kvstore.peers import Synced
from statestore_client.server.runtime.broker_driver import BrokerDriver
from statestore_client.server.runtime.server import Server
from statestore_client.server.testing.fault_injector import FaultInjection, FaultyConnection
from statestore_client.server.testing.faults import FaultRequests, Faults
from statestore_client.server.testing.recording import EventDispatcher, Hooks, PublishedMessage, Recorder, SiteSynced
from statestore_client.server.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.broker import Broker, SessionView
    from statestore_client.server.kvstore.own_keys import OwnEvent
    from statestore_client.server.kvstore.peers import SiteEvent
    from statestore_client.server.runtime.settings import ServerSettings
    from statestore_client.server.runtime.storage import GroupCommit
    from statestore_client.server.runtime.transport.connection import ServerConnection
    from statestore_client.wire.kvstore.messages import LostKey

#: Of all recorded messages; the number is the user's to choose.
_MOST_RECORDED_BYTES: Final = 64 * 1024 * 1024

#: How many topics a message about a timeout names.
_FEW: Final = 10


class Controls(ABC):
    """The part of an :class:`EmbeddedServer` that tests use."""

    def __init__(self, *, record_messages: int, hooks: Hooks | None, faults: bool) -> None:
        check_number("record_messages", record_messages, 0)
        check_kind("hooks", hooks, Hooks)
        check_flag("faults", faults)
        self._recorder = Recorder(record_messages, _MOST_RECORDED_BYTES) if record_messages else None
        #: Functions to call for events. They can be set at any time.
        self.hooks: Hooks = hooks or Hooks()
        self._dispatcher = EventDispatcher(self._recorder, self.hooks)
        self._virtual_clock = VirtualClock()
        self._clock = ServerClock(self._running, self._virtual_clock)
        self._injection = FaultInjection(Faults(), FaultRequests(), self._virtual_clock) if faults else None

    @abstractmethod
    def _running(self) -> ControlledServer:
        """The server. Raises RuntimeError when there is none."""

    @abstractmethod
    def _reopen(self, *, erase: bool) -> bool:
        """Stop a server with a data directory, and start it from there on the same port; False for one without."""

    def _recording(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("this server records no messages (record_messages=0)")
        return self._recorder

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[PublishedMessage]:
        """The messages that clients published, wills and :meth:`publish` included, the oldest first.

        State store requests are among them, the answers to them are not. As many as ``record_messages``, and 64 MiB;
        older ones are forgotten. They can still be read after the server was stopped.
        """
        return self._recording().messages()

    @property
    def sessions(self) -> dict[str, SessionView]:
        """All sessions by client id, connected or not, as they are now."""
        server = self._running()
        return {session.client_id: session for session in server.call(server.broker.sessions)}

    def wait_for(self, topic_filter: str, timeout: float | None = 5.0) -> PublishedMessage:
        """The first message that matches the filter, already published or still to come. Each message is returned
        once, so that calling it again waits for the next one. ``timeout`` in seconds, None for ever.

        Raises TimeoutError, InvalidArgumentError for a filter that is none, and RuntimeError in the thread of the
        server's own event loop: await :meth:`wait_for_async` there.
        """
        recorder = self._recording()
        _check_timeout(timeout)
        if self._running().is_here:
            raise RuntimeError("waiting here would stop the server: await wait_for_async()")
        future = recorder.take(topic_filter)
        try:
            return future.result(timeout)
        except TimeoutError:
            if not recorder.give_up(future):
                return future.result()
            raise self._too_late(topic_filter, timeout) from None
        except BaseException:
            recorder.give_up(future)
            raise

    async def wait_for_async(self, topic_filter: str, timeout: float | None = 5.0) -> PublishedMessage:
        """:meth:`wait_for`, in any event loop."""
        recorder = self._recording()
        _check_timeout(timeout)
        future = recorder.take(topic_filter)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except TimeoutError:
            raise self._too_late(topic_filter, timeout) from None
        finally:
            recorder.give_up(future)

    def _too_late(self, topic_filter: str, timeout: float | None) -> TimeoutError:
        seen = [message.topic for message in self.messages[-_FEW:]]
        return TimeoutError(f"no message on {topic_filter!r} within {timeout} s; the last ones were on {seen}")

    # -- acting -------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        message_expiry: int | None = None,
        content_type: str | None = None,
        response_topic: str | None = None,
        correlation_data: bytes | None = None,
        user_properties: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Publish a message as the server, to whoever subscribed; ``message_expiry`` in seconds. When this returns, it
        is on its way.

        Raises InvalidArgumentError for what cannot be published.
        """
        properties = PublishProperties(
            message_expiry=message_expiry,
            content_type=content_type,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=_checked_user_properties(user_properties),
        )
        _check_message(payload, qos, retain, properties)
        data = payload.encode() if isinstance(payload, str) else bytes(payload)
        packet = Publish(topic, data, qos, retain, properties=properties)
        validate_topic_name(topic)
        encode(attrs.evolve(packet, packet_id=1 if qos else 0))  # raises for what cannot be said
        server = self._running()
        server.call(lambda: server.publish(packet))

    def clear(self) -> None:
        """Forget everything: sessions, retained messages, the state store, recorded messages, faults. Connections are
        closed without a word. For the time between two tests.
        """
        server = self._running()
        if not self._reopen(erase=True):
            server.call(lambda: server.start_anew(tell=False))
        self._virtual_clock.wall_ahead_ms = 0
        if self._injection is not None:
            self._injection.faults.clear()
            self._injection.requests.clear()
        if self._recorder is not None:
            self._recorder.clear()

    def restart(self, *, keep_state: bool) -> None:
        """As if the server went down and came back on the same port. Clients are disconnected (0x8B).

        With ``keep_state`` sessions, retained messages and the state store are as before, as with a server that writes
        everything down; sessions that end with their connection have ended, and wills went out. Without, everything is
        empty and no will was sent. What was recorded stays in both cases.

        A server with a data directory is stopped and started from it; without ``keep_state`` its data are erased. Not
        in the thread of the server's own event loop, where this raises RuntimeError.
        """
        check_flag("keep_state", keep_state)
        server = self._running()
        if not self._reopen(erase=not keep_state):
            server.call(lambda: self._restart(server, keep_state=keep_state))

    def _restart(self, server: ControlledServer, *, keep_state: bool) -> None:
        if keep_state:
            server.restart()
            return
        gone = [session.client_id for session in server.broker.sessions() if session.is_connected]
        server.start_anew(tell=True)
        for client_id in gone:
            self._dispatcher.lost(client_id)

    @property
    def faults(self) -> Faults:
        """What is to go wrong. Raises RuntimeError if the server was not made with ``faults=True``."""
        if self._injection is None:
            raise RuntimeError("this server was made without faults=True")
        return self._injection.faults

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> ServerClock:
        """The time of this server."""
        return self._clock


class ServerClock:
    """Moves the time of one server, for everything that waits there: keep-alives, session and message expiry, will
    delays, expiry of keys and leases, delayed packets.
    """

    def __init__(self, running: Callable[[], ControlledServer], clock: VirtualClock) -> None:
        self._running = running
        self._virtual_clock = clock

    def advance(self, seconds: float, *, keep_alive: bool = True) -> None:
        """Go forward. When this returns, everything that became due has been done, in the order of its time.

        Clients know nothing of it. Connected ones have been silent for as long as this, and are disconnected if that is
        more than one and a half of their keep-alives; not with ``keep_alive=False``. Versions of keys keep the real
        time. Raises InvalidArgumentError for negative seconds.
        """
        check_seconds("seconds", seconds, -LONGEST_S)
        if seconds < 0:
            raise InvalidArgumentError("time does not go back; step_wall() sets the wall clock back")
        server = self._running()
        server.call(lambda: server.advance(seconds, keep_alive=keep_alive))

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, which versions of keys are made of. Nothing becomes due.

        A client leaves versions that are more than a minute ahead out of its own clock (``stats.clock_drift``). The
        server refuses requests that are a minute ahead of its local clock, which does not follow a step back, unless
        it is longer than a day. :meth:`Controls.clear` sets the wall clock right again.
        """
        check_seconds("seconds", seconds, -LONGEST_S)
        self._virtual_clock.wall_ahead_ms += round(seconds * 1000)


def _check_timeout(timeout: object) -> None:
    if timeout is not None:
        check_seconds("timeout", timeout, -LONGEST_S)  # a negative one, what is left of a longer one, is over


def _check_message(payload: object, qos: object, retain: object, properties: PublishProperties) -> None:
    """The encoder looks at values, and takes it for granted that they are of their types."""
    if not isinstance(payload, (bytes, bytearray, memoryview, str)):
        raise InvalidArgumentError(f"payload must be bytes or a text, not {type(payload).__name__}")
    if isinstance(payload, str):
        try:
            payload.encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError("payload has a lone surrogate in it, which is not a character") from None
    check_number("qos", qos, 0, 2)
    check_flag("retain", retain)
    check_kind("message_expiry", properties.message_expiry, int, wanted="a whole number of seconds")
    check_kind("content_type", properties.content_type, str, wanted="a text")
    check_kind("response_topic", properties.response_topic, str, wanted="a text")
    check_kind("correlation_data", properties.correlation_data, bytes)


def _checked_user_properties(user_properties: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """A dictionary would do but for names that come twice, which MQTT allows."""
    found = tuple(user_properties) if isinstance(user_properties, Iterable) else (user_properties,)
    for pair in found:
        if not isinstance(pair, tuple) or [*map(type, pair)] != [str, str]:
            raise InvalidArgumentError(
                f'user_properties must be pairs of texts, like [("name", "value")], not {pair!r}'
            )
    return found


# -- controlled driver -------------------------------------------------------------------------------------------------
#
# A broker's driver that tests handle from outside: everything due at once, and another broker.


class ControlledDriver(BrokerDriver):
    """Belongs to the thread of its event loop."""

    def catch_up(self) -> None:
        """Do all that is due by now, and all the work that follows from it, in one go."""
        broker = self.broker
        while not self._is_closing:
            while broker.has_work:
                broker.work(self._clock())
                self.flush()
            deadline = broker.next_deadline()
            if deadline is None or deadline > self._clock().monotonic:
                return
            self._alarm.cancel()
            self._tick()

    def start_anew(self, broker: Broker, *, tell: bool) -> None:
        """Go on with another broker. Connections end, with a DISCONNECT if ``tell``. There must be no group commit."""
        if tell:
            self.broker.shut_down()
            self.flush()
        for connection, link in self._links.items():
            if connection.outbox or not tell:
                link.abort()
        self.replace_broker(broker)


# -- controlled server -------------------------------------------------------------------------------------------------
#
# A server that tests handle from outside: its time, its state, and messages of its own.


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
        settings: ServerSettings,
        *,
        virtual_clock: VirtualClock,
        dispatcher: EventDispatcher,
        injection: FaultInjection | None = None,
    ) -> None:
        self._injection = injection
        self._virtual_clock = virtual_clock
        self._dispatcher = dispatcher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        super().__init__(settings, clock=virtual_clock, events=dispatcher)

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

    def _on_site_event(self, event: SiteEvent | OwnEvent) -> None:
        if isinstance(event, Synced) and self.site is not None:
            self._dispatcher.synced(SiteSynced(self.site.site.settings.name, event.peers))

    def _on_lost_key(self, loss: LostKey) -> None:
        self._dispatcher.lost_key(loss)

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
        self._service, self._broker = self.build_state(None)
        driver = self._running()
        driver.start_anew(self._broker, tell=tell)
        self._open_bridge(driver)

    def _check_alone(self) -> None:
        if self.replication is not None:
            raise RuntimeError("a server with a log has its time and its state from there: neither can be set here")
