"""The driver over a connection that the application already has: its own paho-mqtt client.

The application connects, reconnects and runs paho's loop. This module listens in on paho's callbacks (and calls the
application's own), and publishes and subscribes beside the application.

Hazards that shape this file:

* paho calls back with its locks held, and takes them in ``publish``. A callback that waited for the shell's lock would
  meet a shell that waits for paho's: callbacks only queue what they saw. What a packet identifier belongs to is looked
  up later by the shell, which has registered it by then.
* paho sends its unacknowledged messages again by itself when it reconnects, so that this driver does not.
* paho leaves Nagle's algorithm on: 40 ms a round trip on loopback. It is switched off on the application's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from statestore_client.errors import BusyError, CallbackReplacedError, ConnectionLostError
from statestore_client.mqtt.closing import disconnected
from statestore_client.mqtt.packets.types import ReasonCode
from statestore_client.mqtt.paho_callbacks import CALLBACKS, is_acknowledged, replaced_callbacks
from statestore_client.mqtt.paho_values import EncodedProperties, acknowledge, incoming_message, no_delay_below
from statestore_client.mqtt.publish_properties import encode_request_properties
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import (
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OutgoingMessage,
    Published,
    Subscribed,
    whole,
)

__all__ = [
    "PahoClient",
    "SharedAioConnector",
    "SharedAioDriver",
    "SharedSyncConnector",
    "SharedSyncDriver",
]

#: Under our own name, for the rooms that do not import paho.
PahoClient: TypeAlias = Client
_shared: weakref.WeakSet[Client] = weakref.WeakSet()


@attrs.frozen
class _Acked:
    """PUBACK for a packet identifier, ours or the application's."""

    mid: int
    reason_code: int


@attrs.frozen
class _Refused:
    """paho's own queue was full: it did not take this message."""

    delivery_id: int


@attrs.frozen
class _Granted:
    """SUBACK for a packet identifier, ours or the application's."""

    mid: int
    reason_codes: tuple[int, ...]


_Raw: TypeAlias = Connected | Closed | IncomingMessage | _Acked | _Granted | _Refused


class _Listener:
    """Sits in the callbacks of one paho client and passes on what happens, from whatever thread paho runs in."""

    def __init__(self, paho_client: Client, settings: ConnectionSettings) -> None:
        if paho_client in _shared:
            raise BusyError("this paho client is shared already; use the one state store client everywhere")
        _shared.add(paho_client)
        self.client = paho_client
        self.settings = settings
        self.deliveries: dict[int, int] = {}  # packet identifier -> delivery id; paho repeats them by itself
        self.outstanding: set[int] = set()  # the delivery ids among them
        self.infos: dict[int, MQTTMessageInfo] = {}  # of the same packets: whether paho has seen their PUBACK
        self.subscriptions: dict[int, int] = {}  # packet identifier -> subscribe id, of the present driver
        # Guards what follows. It is taken with paho's locks held and with the shell's: paho is not called under it.
        self._lock = threading.Lock()
        self._driver: _SharedDriver | None = None  # it has not heard of an end
        # paho repeats what was unacknowledged as soon as it is back; the answers may be quicker than the next driver.
        self._early: deque[_Raw] = deque(maxlen=65_535)
        self._filters: set[str] = set()
        self._is_up = paho_client.is_connected()
        self._session_kept = False  # by the broker, in all connections since the last one that a driver was told of
        self._limits: tuple[int, int | None] = (65_535, None)
        self._in_doubt = False  # core gave the link up, although paho has not
        self._closed = False
        self._theirs: list[Callable[..., Any] | None] = [getattr(paho_client, name) for name in CALLBACKS]
        #: The very objects that paho holds, for a look at whether it still does.
        self._ours = {name: getattr(self, f"_{name}") for name in (*CALLBACKS, "on_message")}
        for name in CALLBACKS:
            setattr(paho_client, name, self._ours[name])
        self._no_delay()

    # -- calls of the shell --------------------------------------------------------------------------------------------

    def attach(self, driver: _SharedDriver) -> None:
        """From now on ``driver`` hears what happens; a connection that stands already is the first of it."""
        with self._lock:
            if self._closed:
                driver.push(Closed(ConnectionLostError("the connection was closed by this client")))
                return
            self._driver = driver
            if self._is_up and not self._in_doubt:
                self._tell_connected()

    def subscribe(self, topic_filters: Sequence[str]) -> int | None:
        """Subscribe beside the application; the packet identifier."""
        for topic_filter in topic_filters:
            self._filters.add(topic_filter)
            self.client.message_callback_add(topic_filter, self._ours["on_message"])
        options = SubscribeOptions(qos=1)
        return self.client.subscribe([(f, options) for f in topic_filters])[1]

    def complaint(self) -> str | None:
        """What the application has done to our callbacks, if that is why something is waited for in vain."""
        is_up = self.client.is_connected()
        needed = {
            "on_connect": is_up and not self._is_up,
            "on_disconnect": self._is_up and not is_up,
            "on_publish": any(is_acknowledged(info) for info in self.infos.copy().values()),
            "on_subscribe": bool(self.subscriptions),
        }
        return replaced_callbacks(
            self.client, self._ours, [name for name, is_needed in needed.items() if is_needed], sorted(self._filters)
        )

    def doubt(self) -> None:
        """Nothing comes back: what paho believes about its connection does not count until it is heard from."""
        with self._lock:
            self._in_doubt = True
            self._driver = None

    def close(self) -> None:
        """Leave the connection to the application, as it was."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _shared.discard(self.client)
        self._give_back()
        for topic_filter in self._filters:
            self.client.message_callback_remove(topic_filter)
        if self._filters and self.client.is_connected():
            self.client.unsubscribe(sorted(self._filters))

    def _no_delay(self) -> None:
        sock = self.client.socket()
        if sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                no_delay_below(sock)

    def _give_back(self) -> None:
        """Restore the application's callbacks, unless it has set others since."""
        for name, their in zip(CALLBACKS, self._theirs, strict=True):
            if getattr(self.client, name) is self._ours[name]:
                setattr(self.client, name, their)

    # -- paho's callbacks, in paho's thread ----------------------------------------------------------------------------

    def _push(self, event: _Raw) -> None:
        with self._lock:
            if self._in_doubt:  # no longer: something was heard
                self._in_doubt = False
                self._tell_connected()
            if self._driver is not None:
                self._driver.push(event)
            else:
                self._early.append(event)

    def _tell_connected(self) -> None:
        """Under the lock."""
        driver = self._driver
        if driver is None:
            return
        kept, self._session_kept = self._session_kept, True
        receive_maximum, maximum_packet_size = self._limits
        window = self.client.max_inflight_messages or 65_535
        driver.push(Connected(kept, min(receive_maximum, window), maximum_packet_size))
        while self._early:
            driver.push(self._early.popleft())

    def _tell_closed(self, closed: Closed) -> None:
        """Under the lock."""
        self._in_doubt = False
        if self._driver is not None:
            self._driver.push(closed)
            self._driver = None

    def _on_connect(
        self,
        client: Client,
        userdata: Any,
        flags: ConnectFlags,
        reason: PahoReasonCode,
        properties: Properties | None,
    ) -> None:
        if not reason.is_failure:
            self._no_delay()
            with self._lock:
                if self._is_up:
                    self._tell_closed(Closed(ConnectionLostError("the application connected anew")))
                self._is_up = True
                self._in_doubt = False
                self._session_kept = self._session_kept and bool(flags.session_present)
                self._limits = (
                    getattr(properties, "ReceiveMaximum", 65_535),
                    getattr(properties, "MaximumPacketSize", None),
                )
                self._tell_connected()
        if (theirs := self._theirs[0]) is not None:
            theirs(client, userdata, flags, reason, properties)

    def _on_disconnect(
        self,
        client: Client,
        userdata: Any,
        flags: DisconnectFlags,
        reason: PahoReasonCode,
        properties: Properties | None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            # Never fatal: whether to connect again is the application's decision.
            closed = disconnected(self.settings, reason.value, getattr(properties, "ReasonString", None))
            closed = attrs.evolve(closed, fatal=False)
        else:
            closed = Closed(ConnectionLostError(f"the application's connection was lost: {reason}"))
        with self._lock:
            self._is_up = False
            self._tell_closed(closed)
        if (theirs := self._theirs[1]) is not None:
            theirs(client, userdata, flags, reason, properties)

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: PahoReasonCode, properties: Properties
    ) -> None:
        self._push(_Acked(mid, reason.value))
        if (theirs := self._theirs[2]) is not None:
            theirs(client, userdata, mid, reason, properties)

    def _on_subscribe(
        self,
        client: Client,
        userdata: Any,
        mid: int,
        reasons: list[PahoReasonCode],
        properties: Properties | None,
    ) -> None:
        self._push(_Granted(mid, tuple(r.value for r in reasons)))
        if (theirs := self._theirs[3]) is not None:
            theirs(client, userdata, mid, reasons, properties)

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self._push(incoming_message(message))


class _SharedDriver(ABC):
    """One connection of the application's, as a shell sees it; the subclasses bring the events to its thread."""

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener
        self._queue: deque[_Raw] = deque()
        listener.subscriptions = {}
        self._is_open = False
        self._has_ended = False
        self._pid = os.getpid()

    @abstractmethod
    def push(self, event: _Raw) -> None:
        """Hand an event over, from paho's thread or the shell's."""

    # -- calls (see mqtt.driver) ---------------------------------------------------------------------------------------

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        listener = self._listener
        if again and delivery_id in listener.outstanding:
            return  # paho repeats it
        properties = EncodedProperties(encode_request_properties(message))
        info = listener.client.publish(message.envelope.topic, whole(message.payload), qos=1, properties=properties)
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            self.push(_Refused(delivery_id))
        else:
            listener.deliveries[info.mid] = delivery_id
            listener.infos[info.mid] = info
            listener.outstanding.add(delivery_id)

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        mid = self._listener.subscribe(topic_filters)
        if mid is not None:
            self._listener.subscriptions[mid] = subscribe_id

    def acknowledge(self, ack_id: int) -> None:
        acknowledge(self._listener.client, ack_id)

    def flush(self) -> None:
        """paho writes by itself."""
        return

    def disconnect(self) -> None:
        self.push(Closed(ConnectionLostError("the connection was closed by this client")))

    def abort(self) -> None:
        if os.getpid() == self._pid:  # in a forked child, paho's locks may be held by threads that do not exist there
            self._listener.doubt()
            self.push(Closed(ConnectionLostError("the connection was given up")))

    # -- for the subclasses --------------------------------------------------------------------------------------------

    def _take_events(self) -> list[Event]:
        events: list[Event] = []
        while self._queue and not self._has_ended:
            event = self._seen(self._queue.popleft())
            if event is not None:
                events.append(event)
        return events

    def _seen(self, raw: _Raw) -> Event | None:
        """What an event of paho's means for this connection; None if it is not ours."""
        match raw:
            case Connected():
                self._is_open = True
                return raw
            case Closed():
                self._has_ended = True
                return raw
            case _Acked(mid, reason_code):
                delivery_id = self._listener.deliveries.pop(mid, None)
                self._listener.infos.pop(mid, None)
                if delivery_id is None:
                    return None
                self._listener.outstanding.discard(delivery_id)
                return Published(delivery_id, reason_code)
            case _Granted(mid, reason_codes):
                subscribe_id = self._listener.subscriptions.pop(mid, None)
                return None if subscribe_id is None else Subscribed(subscribe_id, reason_codes)
            case _Refused(delivery_id):
                return Published(delivery_id, ReasonCode.QUOTA_EXCEEDED)
            case _:
                return raw if self._is_open else None

    def _give_up(self) -> None:
        if not self._is_open:
            seconds = self._listener.settings.connect_timeout
            text = f"the application's paho client did not connect within {seconds:g} s"
            if complaint := self._listener.complaint():
                self.push(Closed(CallbackReplacedError(f"{text}: {complaint}")))
            else:
                self.push(Closed(ConnectionLostError(text)))


class SharedSyncDriver(_SharedDriver):
    """For a thread with a selector; see :class:`statestore_client.mqtt.driver.SyncDriver`."""

    def __init__(self, listener: _Listener) -> None:
        super().__init__(listener)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._deadline = float("inf")

    def connect(self) -> None:
        self._deadline = time.monotonic() + self._listener.settings.connect_timeout
        self._listener.attach(self)

    def push(self, event: _Raw) -> None:
        self._queue.append(event)
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: nobody listens
            self._waker.send(b"\0")

    def fileno(self) -> int | None:
        return None if self._has_ended else self._woken.fileno()

    @property
    def wants_write(self) -> bool:
        return False

    def next_deadline(self) -> float:
        return float("inf") if self._is_open or self._has_ended else self._deadline

    def poll(self) -> Sequence[Event]:
        if self.fileno() is None:
            return ()
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(65_536)
        if time.monotonic() >= self._deadline:
            self._give_up()
        events = self._take_events()
        if self._has_ended:
            self._waker.close()
            self._woken.close()
        return events

    def disconnect(self) -> None:
        super().disconnect()
        self._deadline = float("inf")


class SharedAioDriver(_SharedDriver):
    """For an event loop; see :class:`statestore_client.mqtt.driver.AioDriver`."""

    def __init__(self, listener: _Listener, on_events: Callable[[Sequence[Event]], None]) -> None:
        super().__init__(listener)
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False

    async def connect(self) -> None:
        self._timer = self._loop.call_later(self._listener.settings.connect_timeout, self._give_up)
        self._listener.attach(self)

    def push(self, event: _Raw) -> None:
        self._queue.append(event)
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._scheduled = False  # before the queue is emptied: what comes from here on schedules again
        events = self._take_events()
        if self._timer is not None and (self._is_open or self._has_ended):
            self._timer.cancel()
            self._timer = None
        if events:
            self._on_events(events)


class SharedSyncConnector(_Listener):
    """See :class:`statestore_client.mqtt.driver.SyncConnector`."""

    def open(self, *, clean_start: bool) -> SharedSyncDriver:  # noqa: ARG002 - the session is the application's
        return SharedSyncDriver(self)


class SharedAioConnector(_Listener):
    """See :class:`statestore_client.mqtt.driver.AioConnector`."""

    def open(
        self,
        *,
        clean_start: bool,  # noqa: ARG002 - the session is the application's
        on_events: Callable[[Sequence[Event]], None],
    ) -> SharedAioDriver:
        return SharedAioDriver(self, on_events)
