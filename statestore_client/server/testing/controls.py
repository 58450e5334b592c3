"""What a test does with a server beside connecting to it: look, wait, publish, reset, restart, and move the time.

Any thread may call these. In the thread of the server's own event loop (``async with``, and functions in
:class:`Hooks`), everything works at once, but for :meth:`Controls.wait_for`, which would wait for itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import Publish, PublishProperties, encode, validate_topic_name
from statestore_client.server.checks import LONGEST_S, check_flag, check_kind, check_number, check_seconds
from statestore_client.server.testing.fault_injector import FaultInjection
from statestore_client.server.testing.fault_requests import FaultRequests
from statestore_client.server.testing.faults import Faults
from statestore_client.server.testing.hooks import EventDispatcher, Hooks
from statestore_client.server.testing.recording import PublishedMessage, Recorder
from statestore_client.server.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.server.broker import SessionView
    from statestore_client.server.testing.controlled_server import ControlledServer

__all__ = ["Controls", "ServerClock"]

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
