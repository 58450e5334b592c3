"""The driver on paho-mqtt 2: both shells, no paho threads.

Three facts about paho that shape this file:

* it leaves Nagle's algorithm on, which costs 40 ms a round trip on loopback: ``TCP_NODELAY`` is set on every socket;
* once ``on_socket_register_write`` is set it writes only when told to (``loop_write``), so that one object serves a
  thread as well as an event loop;
* a client that reconnects sends its unacknowledged messages again by itself. What to send again is decided in
  ``core/``, so each connection gets a new paho client.

paho's types stay in the modules that are called after it.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from statestore_client.errors import ConnectionLostError
from statestore_client.mqtt.closing import disconnected, hung_up, no_connack, no_mqtt, refused, unreachable
from statestore_client.mqtt.connect_properties import connect_user_properties
from statestore_client.mqtt.messaging import RECEIVE_MAXIMUM
from statestore_client.mqtt.paho_bounds import BoundedClient
from statestore_client.mqtt.paho_values import EncodedProperties, acknowledge, incoming_message, no_delay_below
from statestore_client.mqtt.publish_properties import encode_request_properties
from statestore_client.mqtt.tls import client_context, read_password
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed, Connected, Event, OutgoingMessage, Published, Subscribed, whole

__all__ = [
    "PahoAioConnector",
    "PahoAioDriver",
    "PahoSyncConnector",
    "PahoSyncDriver",
]

#: Reads, and seconds, per wake-up before timers and other callers get their turn. paho takes a packet with each, or as
#: many as it has messages in flight.
_READ_BATCH: Final = 256
_READ_TIME_S: Final = 0.05
#: How often (seconds) paho looks at its keep-alive; more often if that, or the one that the broker names, is short.
_HOUSEKEEPING_S: Final = 1.0
_PROTOCOL_ERROR: Final = 0x82  # what paho says of bytes that are no MQTT


class _TlsSocket(ssl.SSLSocket):
    """paho forgets its socket when the handshake fails, and leaves it to the garbage collector. It also forgets why a
    connection ended, and with TLS 1.3 a broker says only then that it does not accept our certificate.
    """

    failure: ssl.SSLError | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failure = error
            raise

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class _PahoConnection:
    """One paho client turned into calls and events; the two subclasses below do the waiting."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str, clean_start: bool) -> None:
        self._settings = settings
        self._clean_start = clean_start
        self._events: list[Event] = []
        self._closed = False
        self._aborted = False
        self._connack_deadline: float | None = None
        self._next_housekeeping = 0.0
        self._deliveries: dict[int, int] = {}
        self._subscriptions: dict[int, tuple[int, int]] = {}  # packet identifier -> subscribe id, number of filters
        self._unacknowledged = 0
        self._socket: Any = None  # paho's, which it forgets before it tells
        self._client = self._make_client(client_id)

    def _make_client(self, client_id: str) -> BoundedClient:
        settings = self._settings
        client = BoundedClient(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            transport="websockets" if settings.websocket else "tcp",
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages = 0  # core has its own window, which also respects the broker's receive maximum
        client.max_queued_messages = 0
        client.connect_timeout = settings.connect_timeout
        if settings.websocket:
            client.ws_set_options(path=settings.websocket_path)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_socket_open = self._on_socket_open
        client.on_socket_register_write = self._on_register_write
        return client

    # -- calls (see mqtt.driver) ---------------------------------------------------------------------------------------

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:  # noqa: ARG002 - paho has no say in DUP
        properties = EncodedProperties(encode_request_properties(message))
        info = self._client.publish(message.envelope.topic, whole(message.payload), qos=1, properties=properties)
        self._deliveries[info.mid] = delivery_id

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        options = SubscribeOptions(qos=1)
        _, mid = self._client.subscribe([(f, options) for f in topic_filters])
        if mid is not None:
            self._subscriptions[mid] = (subscribe_id, len(topic_filters))

    def acknowledge(self, ack_id: int) -> None:
        self._unacknowledged -= 1
        acknowledge(self._client, ack_id)

    def disconnect(self) -> None:
        properties = Properties(PacketTypes.DISCONNECT)
        properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)

    def abort(self) -> None:
        self._aborted = True
        sock = self._client.socket()
        if sock is not None:
            # close() only gives up this process's descriptor. A shutdown would end the connection of a forked parent.
            sock.close()
        self._end(ConnectionLostError("the connection was given up"))

    # -- shared steps --------------------------------------------------------------------------------------------------

    def _connect_blocking(self) -> None:
        """Raises SettingsError, OSError and anything that paho lets out."""
        settings = self._settings
        if settings.tls:
            context = client_context(settings)
            context.sslsocket_class = _TlsSocket
            self._client.tls_set_context(context)
        if settings.username is not None:
            self._client.username_pw_set(settings.username, read_password(settings))
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = int(settings.session_expiry)
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        # Our server tells its packet size, and its reasons in words, to those who ask for problem information.
        properties.RequestProblemInformation = 1
        if pairs := connect_user_properties(settings):
            properties.UserProperty = list(pairs)
        self._connack_deadline = time.monotonic() + settings.connect_timeout
        self._client.connect(
            settings.host,
            settings.port,
            keepalive=int(settings.keep_alive),
            clean_start=self._clean_start,
            properties=properties,
        )

    def _read(self) -> None:
        """Take in what has arrived, up to a batch."""
        until = time.monotonic() + _READ_TIME_S
        for _ in range(_READ_BATCH):
            before = len(self._events)
            try:
                self._client.loop_read()
                excess = self._client.excess(self._unacknowledged)
            except Exception as error:  # noqa: BLE001 - paho lets anything out (IndexError, struct.error) on bad packets
                excess = f"it cannot be read: {error!r}"
            if excess is not None:
                self._violated(excess)
            if self._closed or (len(self._events) == before and not self._has_unread) or time.monotonic() >= until:
                return

    def _violated(self, text: str) -> None:
        self._end(no_mqtt(self._settings, text, answered=self._connack_deadline is None))

    @property
    def _has_unread(self) -> bool:
        """Whether TLS has decrypted bytes that were not read: for them, the descriptor will not become readable."""
        pending = getattr(self._client.socket(), "pending", None)
        return not self._closed and pending is not None and pending() > 0

    def _write(self) -> None:
        if self._client.want_write() and not self._closed:
            self._client.loop_write()

    def _housekeeping(self) -> None:
        now = time.monotonic()
        if self._connack_deadline is not None and now >= self._connack_deadline:
            self._end(no_connack(self._settings))
        elif now >= self._next_housekeeping and not self._closed:
            self._next_housekeeping = now + min(_HOUSEKEEPING_S, (self._client.keepalive or 4) / 4)
            self._client.loop_misc()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _end(self, why: Closed | ConnectionLostError) -> None:
        """Report the end, once, and let the socket go."""
        if not self._closed:
            self._closed = True
            self._connack_deadline = None
            self._events.append(why if isinstance(why, Closed) else Closed(why))
        sock = self._client.socket()
        if sock is not None:
            sock.close()

    # -- paho's callbacks ----------------------------------------------------------------------------------------------

    def _on_socket_open(self, _client: Client, _userdata: Any, sock: Any) -> None:
        no_delay_below(sock)
        self._socket = sock

    def _on_register_write(self, _client: Client, _userdata: Any, _sock: Any) -> None:
        """Its presence makes paho write only when told to."""

    def _on_connect(
        self, _client: Client, _userdata: Any, flags: ConnectFlags, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            self._end(refused(self._settings, reason.value, getattr(properties, "ReasonString", None)))
            return
        self._connack_deadline = None
        self._events.append(
            Connected(
                bool(flags.session_present),
                getattr(properties, "ReceiveMaximum", 65_535),
                getattr(properties, "MaximumPacketSize", None),
            )
        )

    def _on_disconnect(
        self,
        _client: Client,
        _userdata: Any,
        flags: DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            self._end(disconnected(self._settings, reason.value, getattr(properties, "ReasonString", None)))
        elif isinstance(self._socket, _TlsSocket) and self._socket.failure is not None:
            self._end(unreachable(self._settings, self._socket.failure))
        elif self._connack_deadline is None:
            self._end(ConnectionLostError(f"the connection to {self._settings.url} was lost: {reason}"))
        elif reason.value == _PROTOCOL_ERROR:
            self._end(no_mqtt(self._settings, reason, answered=False))
        else:
            self._end(hung_up(self._settings, answered=False))

    def _on_message(self, _client: Client, _userdata: Any, message: MQTTMessage) -> None:
        if message.qos:
            self._unacknowledged += 1
        self._events.append(incoming_message(message))

    def _on_publish(
        self, _client: Client, _userdata: Any, mid: int, reason: ReasonCode, _properties: Properties
    ) -> None:
        delivery_id = self._deliveries.pop(mid, None)
        if delivery_id is not None:
            self._events.append(Published(delivery_id, reason.value))

    def _on_subscribe(
        self, _client: Client, _userdata: Any, mid: int, reasons: list[ReasonCode], _properties: Properties | None
    ) -> None:
        subscribe_id, count = self._subscriptions.pop(mid, (0, 0))
        if len(reasons) == count:
            self._events.append(Subscribed(subscribe_id, tuple(r.value for r in reasons)))
        elif count:
            self._violated(f"SUBACK has {len(reasons)} reason codes for {count} filters")  # [MQTT-3.8.4-6]


class PahoSyncDriver(_PahoConnection):
    """For a thread with a selector; see :class:`statestore_client.mqtt.driver.SyncDriver`."""

    def connect(self) -> None:
        try:
            self._connect_blocking()
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError, ssl.SSLError, and what paho lets out
            self._end(unreachable(self._settings, error))

    def fileno(self) -> int | None:
        sock = self._client.socket()
        return None if self._closed or sock is None else sock.fileno()

    @property
    def wants_write(self) -> bool:
        return not self._closed and self._client.want_write()

    def next_deadline(self) -> float:
        if self._has_unread:
            return 0.0
        if self._connack_deadline is not None:
            return min(self._connack_deadline, self._next_housekeeping)
        return self._next_housekeeping

    def flush(self) -> None:
        self._write()

    def poll(self) -> Sequence[Event]:
        if not self._closed:
            self._read()
            self._write()
            self._housekeeping()
        return self._take_events()


class PahoAioDriver(_PahoConnection):
    """For an event loop, by readiness callbacks; see :class:`statestore_client.mqtt.driver.AioDriver`."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        client_id: str,
        clean_start: bool,
        on_events: Callable[[Sequence[Event]], None],
    ) -> None:
        super().__init__(settings, client_id=client_id, clean_start=clean_start)
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._timer: asyncio.TimerHandle | None = None
        self._fileno: int | None = None
        self._writing = False

    async def connect(self) -> None:
        try:
            await asyncio.to_thread(self._connect_in_thread)
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError, ssl.SSLError, and what paho lets out
            self._end(unreachable(self._settings, error))
        if not self._closed:
            sock = self._client.socket()
            if sock is not None:
                self._fileno = sock.fileno()
                self._loop.add_reader(self._fileno, self._readable)
                self._timed()
        self.flush()
        self._report()

    def flush(self) -> None:
        self._write()
        self._watch_writability()
        if self._closed and self._events:
            # Not from here: the caller is in the middle of carrying out actions.
            self._loop.call_soon(self._report)

    def abort(self) -> None:
        self._detach()
        super().abort()

    def _connect_in_thread(self) -> None:
        try:
            self._connect_blocking()
        finally:  # also if it failed with a socket: nobody else waits for this thread any longer
            if self._aborted:  # while it was waiting for the network
                super().abort()

    def _readable(self) -> None:
        self._read()
        if self._has_unread:
            self._loop.call_soon(self._readable)
        self._write()
        self._watch_writability()
        self._report()

    def _writable(self) -> None:
        self._write()
        self._watch_writability()
        self._report()

    def _timed(self) -> None:
        self._housekeeping()
        self._report()
        if not self._closed:
            deadline = self._next_housekeeping
            if self._connack_deadline is not None:
                deadline = min(deadline, self._connack_deadline)
            self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._timed)
        self.flush()

    def _watch_writability(self) -> None:
        if self._fileno is None:
            return
        wanted = not self._closed and self._client.want_write()
        if wanted and not self._writing:
            self._loop.add_writer(self._fileno, self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._fileno)
        self._writing = wanted

    def _report(self) -> None:
        events = self._take_events()
        if events:
            self._on_events(events)

    def _end(self, why: Closed | ConnectionLostError) -> None:
        self._detach()  # before the descriptor is closed and its number used for something else
        super()._end(why)

    def _detach(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child shares the loop's selector with its parent, and would stop it listening
        if self._fileno is not None:
            self._loop.remove_reader(self._fileno)
            self._loop.remove_writer(self._fileno)
            self._fileno = None
            self._writing = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _PahoConnector:
    """Paho keeps nothing from one connection to the next; see the module."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id

    def complaint(self) -> None:
        """Nobody else has this paho client."""

    def close(self) -> None:
        """Nothing is left."""


class PahoSyncConnector(_PahoConnector):
    """See :class:`statestore_client.mqtt.driver.SyncConnector`."""

    def open(self, *, clean_start: bool) -> PahoSyncDriver:
        return PahoSyncDriver(self._settings, client_id=self._client_id, clean_start=clean_start)


class PahoAioConnector(_PahoConnector):
    """See :class:`statestore_client.mqtt.driver.AioConnector`."""

    def open(self, *, clean_start: bool, on_events: Callable[[Sequence[Event]], None]) -> PahoAioDriver:
        return PahoAioDriver(self._settings, client_id=self._client_id, clean_start=clean_start, on_events=on_events)
