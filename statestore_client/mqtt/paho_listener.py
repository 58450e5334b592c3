"""Listens in on the callbacks of a paho client, ours or the application's, and passes on what happens.

Hazards that shape this file:

* paho calls back with its locks held, from whatever thread runs its loop, and takes them in ``publish``. A callback
  that waited for the shell's lock would meet a shell that waits for paho's: callbacks only queue what they saw. What a
  packet identifier belongs to is looked up later by the shell, which has registered it by then.
* the application may assign callbacks of its own after that, and this client would not hear of anything any longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs
from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from statestore_client.clocks import monotonic
from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.closing import (
    connect_failed,
    disconnected,
    no_pingresp,
    peer_closed,
    protocol_violated,
    refused,
)
from statestore_client.mqtt.packets.types import ReasonCode
from statestore_client.mqtt.paho_bounds import BoundedClient
from statestore_client.settings import ConnectionSettings
from statestore_client.thread_locks import Mutex
from statestore_client.wire.hot_value import hot_value
from statestore_client.wire.messages import Closed, Connected, IncomingMessage, Published
from statestore_client.wire.protocol import QOS


class EncodedProperties(Properties):
    """Properties that were encoded by our own codec; paho only asks for the bytes.

    paho's own objects check and pack every property one by one, which takes longer than the rest of a request.
    """

    def __init__(self, packed: bytes) -> None:
        # Not super().__init__(): it builds the tables for checking and packing, a fifth of the time of a request.
        self.__dict__["packed"] = packed

    def __str__(self) -> str:
        return f"{len(self.pack())} encoded bytes"

    def pack(self) -> bytes:
        return cast("bytes", self.__dict__["packed"])


def no_delay_below(sock: Any) -> None:
    """Switch Nagle's algorithm off on the TCP socket below paho's TLS and WebSocket wrappers, if there is one.

    paho leaves it on, which costs 40 ms a round trip on loopback.
    """
    if sock is None:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as plain:  # it may be closed by now
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def incoming_message(message: MQTTMessage) -> IncomingMessage:
    """paho's message as ours; :func:`acknowledge` knows its ``ack_id``."""
    properties = message.properties
    return IncomingMessage(
        message.topic,
        bytes(message.payload),
        getattr(properties, "CorrelationData", None),
        tuple(getattr(properties, "UserProperty", ())),
        message.mid << 2 | message.qos if message.qos else 0,
    )


def acknowledge(client: Client, ack_id: int) -> None:
    """PUBACK or PUBCOMP. paho does nothing here, and has done it already, where ``manual_ack`` is not set."""
    client.ack(ack_id >> 2, ack_id & 3)


#: Those that are assigned. Ours calls the one that was there before.
_CALLBACKS: Final = ("on_connect", "on_disconnect", "on_publish", "on_subscribe")
#: Events that wait for a driver, or for one to come. The application's paho acknowledges by itself, so that no rule of
#: MQTT bounds them; a broker may have this many in flight.
MOST_EVENTS: Final = 65_535


@hot_value
class Acknowledged:
    """PUBACK for a packet identifier, ours or the application's."""

    mid: int
    reason_code: int


@hot_value
class Granted:
    """SUBACK for a packet identifier, ours or the application's."""

    mid: int
    reason_codes: tuple[int, ...]


#: ``Published`` is what paho did not take.
PahoEvent: TypeAlias = Connected | Closed | IncomingMessage | Published | Acknowledged | Granted


class PahoListener:
    """One paho client, for one driver after the other."""

    def __init__(self, client: Client, settings: ConnectionSettings) -> None:
        self.client = client
        #: For messages.
        self.settings: ConnectionSettings = settings
        self._own = client if isinstance(client, BoundedClient) else None  # otherwise it is the application's
        # Packet identifier -> delivery id, and whether paho has seen the PUBACK.
        self.deliveries: dict[int, tuple[int, MQTTMessageInfo]] = {}
        self.repeated: frozenset[int] = frozenset()  # delivery ids that paho sends again by itself when it is back
        # Packet identifier -> subscribe id, number of filters; of the present driver.
        self.subscriptions: dict[int, tuple[int, int]] = {}
        # Guards what follows. It is taken with paho's locks held and with the shell's: paho is not called under it.
        self._lock = Mutex()
        self._report: Callable[[PahoEvent], int] | None = None  # a driver that has not heard of an end
        # paho repeats what was unacknowledged as soon as it is back; the answers may be quicker than the next driver.
        self._early: deque[PahoEvent] = deque(maxlen=MOST_EVENTS)
        self._filters: set[str] = set()
        self.is_up: bool = client.is_connected()
        # By the broker, in all connections since the last one that a driver was told of. There is nothing for us in a
        # session that the application had before.
        self._session_kept = self._own is not None
        self._limits: tuple[int, int | None] = (65_535, None)
        self._in_doubt = False  # core gave the link up, although paho has not
        #: Whether the application has its callbacks back.
        self.is_closed: bool = False
        self._theirs: dict[str, Callable[..., Any] | None] = {name: getattr(client, name) for name in _CALLBACKS}
        #: The very objects that paho holds, for a look at whether it still does.
        self._ours: dict[str, Callable[..., Any]] = {"on_message": self._on_message}
        for name, theirs in self._theirs.items():
            self._ours[name] = _both(getattr(self, f"_{name}"), theirs)
            setattr(client, name, self._ours[name])
        if self._own is not None:
            client.on_message = self._ours["on_message"]
        no_delay_below(client.socket())

    # -- calls of the shell --------------------------------------------------------------------------------------------

    def attach(self, report: Callable[[PahoEvent], int]) -> None:
        """From now on a driver is told what happens; of a connection that stands already, first.

        ``report`` returns how many events wait to be taken.
        """
        with self._lock:
            self.subscriptions = {}
            self.repeated = frozenset(delivery_id for delivery_id, _ in self.deliveries.values())
            if self.is_closed:
                report(Closed(ConnectionLostError("the connection was closed by this client")))
                return
            self._report = report
            if self.is_up and not self._in_doubt:
                self._tell_connected()

    def detach(self, *, in_doubt: bool) -> None:
        """The driver hears no more. With ``in_doubt``, what paho believes does not count until something is heard."""
        with self._lock:
            self._in_doubt = in_doubt
            self._report = None

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Subscribe, beside the application if it is the application's."""
        if self._own is None:
            for topic_filter in topic_filters:
                self._filters.add(topic_filter)
                self.client.message_callback_add(topic_filter, self._ours["on_message"])
        options = SubscribeOptions(qos=QOS)
        _, mid = self.client.subscribe([(f, options) for f in topic_filters])
        if mid is not None:
            self.subscriptions[mid] = (subscribe_id, len(topic_filters))

    def complaint(self) -> str | None:
        """What the application has done to our callbacks, if that is why something is waited for in vain.

        Only of those that are needed just now: a callback that calls the one that it replaced does no harm, and nobody
        waits for ours then.
        """
        is_up = self.client.is_connected()
        needed = {
            "on_connect": is_up and not self.is_up,
            "on_disconnect": self.is_up and not is_up,
            # PUBACKs that paho has seen, also of what it took while not connected: of that, its own method raises.
            "on_publish": any(info._published for _, info in self.deliveries.copy().values()),  # noqa: SLF001 - see above
            "on_subscribe": bool(self.subscriptions),
        }
        return _replaced(self.client, self._ours, [name for name in needed if needed[name]], sorted(self._filters))

    def close(self) -> None:
        """Restore the application's callbacks, unless it has set others since, and end our subscriptions."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        for name, their in self._theirs.items():
            if getattr(self.client, name) is self._ours[name]:
                setattr(self.client, name, their)
        for topic_filter in self._filters:
            self.client.message_callback_remove(topic_filter)
        if self._filters and self.client.is_connected():
            self.client.unsubscribe(sorted(self._filters))

    # -- paho's callbacks, in the thread that runs its loop ------------------------------------------------------------

    def _push(self, event: PahoEvent) -> None:
        with self._lock:
            if self._in_doubt:  # no longer: something was heard
                self._in_doubt = False
                self._tell_connected()
            if self._report is None:
                self._early.append(event)
            elif self._report(event) > MOST_EVENTS:
                text = f"more than {MOST_EVENTS} events came in before this program took them"
                self._tell_closed(Closed(ConnectionLostError(text)))

    def _tell_connected(self) -> None:
        """Under the lock."""
        if self._report is None:
            return
        kept, self._session_kept = self._session_kept, True
        receive_maximum, maximum_packet_size = self._limits
        window = self.client.max_inflight_messages or 65_535
        self._report(Connected(kept, min(receive_maximum, window), maximum_packet_size))
        while self._early:
            self._report(self._early.popleft())

    def _tell_closed(self, closed: Closed) -> None:
        """Under the lock."""
        report, self._report = self._report, None
        if report is not None:
            report(closed)

    def _on_connect(
        self, client: Client, _data: Any, flags: ConnectFlags, reason: PahoReasonCode, properties: Properties | None
    ) -> None:
        no_delay_below(client.socket())
        with self._lock:
            if not reason.is_failure:
                if self.is_up:
                    self._tell_closed(self._connected_again())
                self.is_up = True
                self._in_doubt = False
                self._session_kept = self._session_kept and bool(flags.session_present)
                self._limits = (
                    getattr(properties, "ReceiveMaximum", 65_535),
                    getattr(properties, "MaximumPacketSize", None),
                )
                self._tell_connected()
            elif self._own is not None:  # the application's goes on trying, or not, as the application likes
                self._tell_closed(refused(self.settings, reason.value, getattr(properties, "ReasonString", None)))

    def _on_disconnect(
        self, _client: Client, _data: Any, flags: DisconnectFlags, reason: PahoReasonCode, properties: Properties | None
    ) -> None:
        with self._lock:
            self._tell_closed(self._lost(flags, reason, getattr(properties, "ReasonString", None)))
            self.is_up = False
            self._in_doubt = False

    def _on_publish(self, _client: Client, _data: Any, mid: int, reason: PahoReasonCode, _properties: Any) -> None:
        self._push(Acknowledged(mid, reason.value))

    def _on_subscribe(
        self, _client: Client, _data: Any, mid: int, reasons: list[PahoReasonCode], _properties: Any
    ) -> None:
        self._push(Granted(mid, tuple(r.value for r in reasons)))

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        self._push(incoming_message(message))

    # -- what an end means ---------------------------------------------------------------------------------------------

    def _connected_again(self) -> Closed:
        if self._own is None:
            return Closed(ConnectionLostError("the application connected anew"))
        return protocol_violated(self.settings, "a second CONNACK", answered=True)  # (MQTT 5.0, 3.2)

    def _lost(self, flags: DisconnectFlags, reason: PahoReasonCode, text: str | None) -> Closed:
        settings, own = self.settings, self._own
        if flags.is_disconnect_packet_from_server:
            closed = disconnected(settings, reason.value, text)
            # Whether the application's client connects again is the application's decision.
            return attrs.evolve(closed, fatal=closed.fatal and own is not None)
        if own is None:
            return Closed(ConnectionLostError(f"the application's connection was lost: {reason}"))
        if own.tls_failure is not None:
            return connect_failed(settings, own.tls_failure)
        if self.is_up and reason.value == ReasonCode.KEEP_ALIVE_TIMEOUT:
            return no_pingresp(settings, monotonic() - own.heard_at)
        if self.is_up and own.failure is not None:
            return connect_failed(settings, own.failure)
        if self.is_up:
            return peer_closed(settings, answered=True)
        if reason.value == ReasonCode.PROTOCOL_ERROR:  # what paho says of bytes that are not MQTT
            return protocol_violated(settings, reason, answered=False)
        return peer_closed(settings, answered=False)


def _both(ours: Callable[..., None], theirs: Callable[..., Any] | None) -> Callable[..., None]:
    """Ours first, and then what the application had set before."""
    if theirs is None:
        return ours

    def call(*arguments: Any) -> None:
        ours(*arguments)
        theirs(*arguments)

    return call


def _replaced(
    client: Client, ours: Mapping[str, Callable[..., Any]], needed: Iterable[str], filters: Iterable[str]
) -> str | None:
    """What to tell the application that has replaced our callbacks, and what to do about it."""
    gone = [name for name in needed if getattr(client, name) is not ours[name]]
    kept = client._on_message_filtered  # noqa: SLF001 - paho has no public way to ask
    for topic_filter in filters:
        try:
            callback = kept[topic_filter]
        except KeyError:
            callback = None
        if callback is not ours["on_message"]:
            gone.append(f"the message callback for {topic_filter}")
    if not gone:
        return None
    return (
        f"the application has replaced or removed {', '.join(gone)} of its paho client after over(), so this "
        f"client receives nothing any more. Set {', '.join(_CALLBACKS)} before over(), or let a new one call the one "
        "that it replaces; take messages with on_message, or message_callback_add() for topics of your own"
    )
