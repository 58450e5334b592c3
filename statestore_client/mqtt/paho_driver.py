"""One connection of a paho client, ours or the application's, as the shells see it.

Whose client it is decides who connects and who runs paho's loop, and that is all that it decides:
:mod:`~statestore_client.mqtt.paho_owned` and :mod:`~statestore_client.mqtt.paho_shared` add it. The driver for an event
loop is the one for a thread, woken up by the event loop's own means.

paho's types stay in the modules that are called after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paho.mqtt.enums import MQTTErrorCode

from statestore_client.clocks import monotonic
from statestore_client.errors import BusyError, ConnectionLostError
from statestore_client.mqtt.closing import protocol_violated
from statestore_client.mqtt.dialing import in_own_thread
from statestore_client.mqtt.driver import AioDriver
from statestore_client.mqtt.packets.publish import encode_properties
from statestore_client.mqtt.packets.types import PublishProperties, ReasonCode
from statestore_client.mqtt.paho_listener import (
    Acknowledged,
    EncodedProperties,
    Granted,
    PahoEvent,
    PahoListener,
    acknowledge,
)
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    Alternatives,
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
    whole,
)
from statestore_client.wire.protocol import ANY_BYTES, CONTENT_TYPE, QOS

if TYPE_CHECKING:
    from statestore_client.mqtt.client_connection import PublishCall
    from statestore_client.mqtt.paho_owned import OwnedConnector
    from statestore_client.mqtt.paho_shared import SharedConnector


class PahoDriver(ABC):
    """For a thread with a selector; see :class:`statestore_client.mqtt.driver.SyncDriver`."""

    connect_blocks: bool  # connect() waits for the network

    def __init__(self, listener: PahoListener, settings: ConnectionSettings) -> None:
        self._queue: deque[PahoEvent] = deque()  # what the shell has not taken yet
        self._listener = listener
        self._settings = settings
        self._is_open = False  # Connected was taken
        self._is_over = False  # Closed is in the queue, or was taken
        self._has_ended = False  # Closed was taken
        self._pid = os.getpid()

    # -- what depends on whose client it is ----------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> None:
        """Hear what happens from now on; if the client is ours, connect it."""

    @abstractmethod
    def fileno(self) -> int | None:
        """What to wait for; None once closed."""

    @property
    def wants_write(self) -> bool:
        """Whether to wait for the socket to become writable as well, or :meth:`poll` has something to tell already."""
        return self._is_over and not self._has_ended

    def next_deadline(self) -> float:
        """When :meth:`poll` has something to do even if nothing comes in."""
        return 0.0 if self._is_over and not self._has_ended else math.inf

    @abstractmethod
    def flush(self) -> None:
        """Write what is queued."""

    @abstractmethod
    def disconnect(self) -> None:
        """The client is closed."""

    @abstractmethod
    def wake_by(self, wake: Callable[[], None], let_go: Callable[[], None]) -> None:
        """For an event loop: call ``wake``, from any thread, for what no descriptor tells, and ``let_go`` before the
        descriptor is closed and its number used for something else.
        """

    @abstractmethod
    def _work(self) -> None:
        """Do what is to be done now, so that the queue holds what happened."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of what this driver holds of the system. Safe in a forked child, and more than once."""

    @abstractmethod
    def _wake(self) -> None:
        """Something was queued."""

    # -- what does not -------------------------------------------------------------------------------------------------

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        listener = self._listener
        if again and delivery_id in listener.repeated:
            return  # paho repeats it
        properties = EncodedProperties(encode_properties(_properties_of(message)))
        info = listener.client.publish(message.envelope.topic, whole(message.payload), qos=QOS, properties=properties)
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            self.push(Published(delivery_id, ReasonCode.QUOTA_EXCEEDED))
        else:
            listener.deliveries[info.mid] = (delivery_id, info)

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        self._listener.subscribe(subscribe_id, topic_filters)

    @property
    @abstractmethod
    def heard_at(self) -> float | None:
        """When the last byte came; None where paho's loop is the application's."""

    @property
    def url(self) -> str:
        return self._settings.url

    @abstractmethod
    def ping(self) -> None:
        """Queue a PINGREQ."""

    def acknowledge(self, ack_id: int) -> None:
        acknowledge(self._listener.client, ack_id)

    def abort(self) -> None:
        self._release()
        if os.getpid() == self._pid:  # in a forked child, locks may be held by threads that do not exist there
            self._listener.detach(in_doubt=True)
            self.push(Closed(ConnectionLostError("the connection was given up")))

    def push(self, event: PahoEvent) -> int:
        """Hand an event over, from the thread that runs paho's loop or the shell's; how many wait now."""
        self._queue.append(event)
        if isinstance(event, Closed):
            self._is_over = True
        self._wake()
        return len(self._queue)

    def poll(self) -> Sequence[Event]:
        if not self._is_over:
            self._work()
        events: list[Event] = []
        while self._queue and not self._has_ended:
            event = self._seen(self._queue.popleft())
            if event is not None:
                events.append(event)
        if self._has_ended:
            self._release()
        return events

    def _seen(self, event: PahoEvent) -> Event | None:
        """What an event of paho's means for this connection; None if it is not ours."""
        match event:
            case IncomingMessage() | Published():
                return event if self._is_open else None
            case Acknowledged(mid, reason_code):
                delivery_id, _ = self._listener.deliveries.pop(mid, (None, None))
                return None if delivery_id is None else Published(delivery_id, reason_code)
            case Granted(mid, reason_codes):
                subscribe_id, count = self._listener.subscriptions.pop(mid, (0, 0))
                if len(reason_codes) == count:
                    return Subscribed(subscribe_id, reason_codes)
                what = f"SUBACK has {len(reason_codes)} reason codes for {count} filters"  # [MQTT-3.8.4-6]
                return self._violated(what) if count else None
            case Connected():
                self._is_open = True
            case Closed():
                self._has_ended = True
        return event

    def _violated(self, text: str) -> Closed:
        """The broker broke a rule of MQTT: nothing more is taken from this connection."""
        self._listener.detach(in_doubt=False)
        self._is_over = self._has_ended = True
        return protocol_violated(self._settings, text, answered=self._listener.is_up)


def _properties_of(message: OutgoingMessage) -> PublishProperties:
    envelope = message.envelope
    return PublishProperties(
        ANY_BYTES,
        message.message_expiry_s,
        CONTENT_TYPE,
        envelope.response_topic,
        message.correlation_data,
        (*message.user_properties, *envelope.user_properties),
    )


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
