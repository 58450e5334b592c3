"""One connection of a paho client, ours or the application's, as the shells see it.

Whose client it is decides who connects and who runs paho's loop, and that is all that it decides:
:mod:`~statestore_client.mqtt.paho_owned` and :mod:`~statestore_client.mqtt.paho_shared` add it. The driver for an event
loop is the one for a thread, woken up by the event loop's own means.

paho's types stay in the modules that are called after it.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from paho.mqtt.enums import MQTTErrorCode

from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.closing import no_mqtt
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
        return no_mqtt(self._settings, text, answered=self._listener.is_up)


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
