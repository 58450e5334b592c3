"""One connection of a paho client, ours or the application's, as the shells see it.

Whose client it is decides who connects and who runs paho's loop, and that is all that it decides: the second part has
our own client, the third the application's. The driver for an event loop is the one for a thread, woken up by the event
loop's own means.

paho's types stay in the modules that are called after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from statestore_client.clocks import monotonic
from statestore_client.errors import (
    BusyError,
    CallbackReplacedError,
    ConnectionLostError,
    InvalidArgumentError,
    SettingsError,
)
from statestore_client.mqtt.addresses import Addresses
from statestore_client.mqtt.client_connection import RECEIVE_MAXIMUM, connect_user_properties
from statestore_client.mqtt.closing import connect_failed, no_connack, protocol_violated
from statestore_client.mqtt.credentials import client_context, read_password
from statestore_client.mqtt.dialing import Dialer, Line, in_own_thread
from statestore_client.mqtt.driver import AioDriver
from statestore_client.mqtt.packets.publish import encode_properties
from statestore_client.mqtt.packets.types import PublishProperties, ReasonCode
from statestore_client.mqtt.paho_bounds import BoundedClient, FailureKeepingSocket, through_proxy
from statestore_client.mqtt.paho_listener import (
    Acknowledged,
    EncodedProperties,
    Granted,
    PahoEvent,
    PahoListener,
    acknowledge,
)
from statestore_client.settings import ConnectionSettings, SharedOptions
from statestore_client.wire.messages import (
    Alternatives,
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OneAddress,
    OutgoingMessage,
    Published,
    Subscribed,
    whole,
)
from statestore_client.wire.protocol import CONTENT_TYPE, QOS, UNSPECIFIED_BYTES

if TYPE_CHECKING:
    from statestore_client.mqtt.client_connection import PublishCall


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
        UNSPECIFIED_BYTES,
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


# -- a client of our own ----------------------------------------------------------------------------------------------
#
# ``driver="paho"``: a paho client that we make, for one connection, and whose loop the shell runs.
#
# Two facts about paho that shape this file:
#
# * once ``on_socket_register_write`` is set it writes only when told to (``loop_write``), so that one object serves a
#   thread as well as an event loop, without a thread of paho's;
# * a client that reconnects sends its unacknowledged messages again by itself. What to send again is decided in
#   ``core/``, so each connection gets a new paho client.


#: Reads, and seconds, per wake-up before timers and other callers get their turn. paho takes a packet with each, or as
#: many as it has messages in flight.
_READ_BATCH: Final = 256
_READ_TIME_S: Final = 0.05
#: How often (seconds) paho looks at its keep-alive; more often if that, or the one that the broker names, is short.
_HOUSEKEEPING_S: Final = 1.0


class _OwnedDriver(PahoDriver):
    """From the TCP connect to the close."""

    connect_blocks = True

    def __init__(
        self, settings: ConnectionSettings, dialer: Dialer, *, client_id: str, clean_start: bool, new_round: bool
    ) -> None:
        self._client = _make_client(settings, client_id)
        super().__init__(PahoListener(self._client, settings), settings)
        self._dialer = dialer
        self._new_round = new_round
        self._clean_start = clean_start
        self._let_go: Callable[[], None] | None = None
        self._connack_deadline = 0.0
        self._next_housekeeping = 0.0
        self._client.on_socket_close = self._on_socket_close

    # -- calls (see mqtt.driver) ---------------------------------------------------------------------------------------

    def connect(self) -> None:
        self._listener.attach(self.push)
        try:
            self._prepare()
            line = self._dialer.open(new_round=self._new_round)
            if isinstance(line, Closed):
                self._end(line)
                return
            self._settings = self._listener.settings = line.settings
            self._client.take(line)
            self._connect(line)
        except Exception as error:  # noqa: BLE001 - OSError, SettingsError, ssl.SSLError, and what paho lets out
            self._client.leave()
            self._end(connect_failed(self._settings, error))

    def fileno(self) -> int | None:
        sock = self._client.socket()
        return None if self._is_over or sock is None else sock.fileno()

    @property
    def wants_write(self) -> bool:
        return super().wants_write if self._is_over else self._client.want_write()

    def next_deadline(self) -> float:
        if self._is_over:
            return super().next_deadline()
        if self._has_unread:
            return 0.0
        return self._next_housekeeping if self._is_open else min(self._connack_deadline, self._next_housekeeping)

    @property
    def heard_at(self) -> float:
        return self._client.heard_at

    def ping(self) -> None:
        self._client.ping()

    def flush(self) -> None:
        if not self._is_over and self._client.want_write():
            self._client.loop_write()
        if self._is_over:
            self._release()

    def disconnect(self) -> None:
        properties = Properties(PacketTypes.DISCONNECT)
        properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)

    def wake_by(self, wake: Callable[[], None], let_go: Callable[[], None]) -> None:  # noqa: ARG002 - the socket tells
        self._let_go = let_go

    # -- paho's loop ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._read()
        self._keep_alive()
        self.flush()

    def _read(self) -> None:
        """Take in what has arrived, up to a batch."""
        client, queue = self._client, self._queue
        until = monotonic() + _READ_TIME_S
        for _ in range(_READ_BATCH):
            before = len(queue)
            try:
                client.loop_read()
                excess = client.excess()
            except Exception as error:  # noqa: BLE001 - paho lets anything out (IndexError, struct.error) on bad packets
                excess = f"it cannot be read: {error!r}"
            if excess is not None:
                self._end(protocol_violated(self._settings, excess, answered=self._listener.is_up))
            if self._is_over or (len(queue) == before and not self._has_unread) or monotonic() >= until:
                return

    def _keep_alive(self) -> None:
        now = monotonic()
        if not self._is_over and not self._listener.is_up and now >= self._connack_deadline:
            self._end(no_connack(self._settings))
        elif now >= self._next_housekeeping and not self._is_over:
            self._next_housekeeping = now + min(_HOUSEKEEPING_S, (self._client.keepalive or 4) / 4)
            self._client.loop_misc()

    @property
    def _has_unread(self) -> bool:
        """Whether TLS has decrypted bytes that were not read: for them, the descriptor will not become readable."""
        pending = getattr(self._client.socket(), "pending", None)
        return pending is not None and pending() > 0

    def _prepare(self) -> None:
        """Raises SettingsError for files."""
        settings, client = self._settings, self._client
        if settings.tls:
            context = client_context(settings)
            context.sslsocket_class = FailureKeepingSocket
            client.tls_set_context(context)
        if settings.username is not None:
            client.username_pw_set(settings.username, read_password(settings))

    def _connect(self, line: Line) -> None:
        """Raises OSError and anything that paho lets out."""
        settings, client = line.settings, self._client
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = int(settings.session_expiry)
        properties.ReceiveMaximum = RECEIVE_MAXIMUM
        # Our server tells its packet size, and its reasons in words, to those who ask for problem information.
        properties.RequestProblemInformation = 1
        if users := connect_user_properties(settings):
            properties.UserProperty = list(users)
        self._connack_deadline = line.turn.deadline
        client.connect(
            settings.host,
            settings.port,
            keepalive=int(settings.keep_alive),
            clean_start=self._clean_start,
            properties=properties,
        )

    def _end(self, closed: Closed) -> None:
        self._listener.detach(in_doubt=False)
        self.push(closed)

    def _on_socket_close(self, _client: Client, _userdata: Any, _sock: Any) -> None:
        if self._let_go is not None:
            self._let_go()

    def _release(self) -> None:
        sock = self._client.socket()
        if sock is not None:
            self._on_socket_close(self._client, None, sock)
            # close() only gives up this process's descriptor. A shutdown would end the connection of a forked parent.
            sock.close()

    def _wake(self) -> None:
        """Events are queued by the thread that takes them."""


def _make_client(settings: ConnectionSettings, client_id: str) -> BoundedClient:
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
    client.on_socket_register_write = _write_when_told
    return client


def _write_when_told(_client: Client, _userdata: Any, _sock: Any) -> None:
    """Its presence makes paho write only when told to."""


class OwnedConnector:
    """See :class:`statestore_client.mqtt.driver.SyncConnector`. paho keeps nothing from one connection to the next."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str) -> None:
        self._settings = settings
        self._client_id = client_id
        self._dialer = Dialer(settings, through_proxy(settings))

    @property
    def addresses(self) -> Addresses:
        return self._dialer.addresses

    def open(self, *, clean_start: bool, new_round: bool = True) -> _OwnedDriver:
        return _OwnedDriver(
            self._settings, self._dialer, client_id=self._client_id, clean_start=clean_start, new_round=new_round
        )

    def complaint(self) -> None:
        """Nobody else has this paho client."""

    def settle(self, *, for_good: bool) -> None:
        self._dialer.settle(for_good=for_good)

    def close(self) -> None:
        self._dialer.settle(for_good=True)

    def reopen(self) -> None:
        self._dialer = Dialer(self._settings, through_proxy(self._settings))  # the former one may still be in use


# -- the application's client ------------------------------------------------------------------------------------------
#
# ``over()``: connections of a paho client that belongs to the application, which connects it and runs its loop.
#
# What comes in is queued in the thread that runs paho's loop. How much paho itself takes in, how long it tries to
# connect and when it acknowledges is the application's choice, and none of our bounds holds for it.


#: What a client over a shared connection may choose; the rest is the application's.
_OPTIONS: Final = SharedOptions.__optional_keys__


def client_id_of(paho_client: object) -> str:
    """The client id of a paho client that can be shared; :class:`InvalidArgumentError` says why one cannot."""
    if not isinstance(paho_client, Client):
        raise InvalidArgumentError(f"over() takes a paho.mqtt.client.Client, not {type(paho_client).__name__}")
    if paho_client.protocol != MQTTProtocolVersion.MQTTv5:
        raise InvalidArgumentError("the state store needs MQTT 5: make the paho client with protocol=MQTTv5")
    if paho_client.callback_api_version != CallbackAPIVersion.VERSION2:
        raise InvalidArgumentError("make the paho client with CallbackAPIVersion.VERSION2")
    client_id = paho_client._client_id.decode()  # noqa: SLF001 - paho has no public way to ask
    if not client_id:
        raise InvalidArgumentError("the paho client has no client id; the state store's answers are addressed to it")
    return client_id


def shared_settings(paho_client: Client, options: SharedOptions) -> ConnectionSettings:
    """Settings that name the application's broker, with the options that are left to choose."""
    if refused := sorted(set(options) - _OPTIONS):
        raise SettingsError(
            f"{', '.join(refused)}: the paho client decides that; over() takes {', '.join(sorted(_OPTIONS))}"
        )
    # The client id is left out: a second connection made from these settings would take the first one over.
    return ConnectionSettings(host=paho_client.host or "paho", port=paho_client.port or 1883, driver="paho", **options)


#: Under our own name, for the rooms that do not import paho.
PahoClient: TypeAlias = Client
_shared: weakref.WeakSet[Client] = weakref.WeakSet()


class _SharedDriver(PahoDriver):
    """What happens between two ends of a connection, as the application's loop tells it."""

    connect_blocks = False

    def __init__(self, listener: PahoListener, settings: ConnectionSettings) -> None:
        super().__init__(listener, settings)
        self._deadline = float("inf")
        self._wake_loop: Callable[[], None] | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._is_awake = False  # it was woken, and has not looked yet

    def connect(self) -> None:
        self._deadline = monotonic() + self._settings.connect_timeout
        if self._wake_loop is None:
            self._waker = socket.socketpair()
            for end in self._waker:
                end.setblocking(False)
        self._listener.attach(self.push)

    def wake_by(self, wake: Callable[[], None], let_go: Callable[[], None]) -> None:  # noqa: ARG002 - no descriptor
        self._wake_loop = wake

    def fileno(self) -> int | None:
        return None if self._waker is None else self._waker[1].fileno()

    def next_deadline(self) -> float:
        return super().next_deadline() if self._is_open or self._is_over else self._deadline

    @property
    def heard_at(self) -> None:
        """paho's loop reads, and does not say when."""

    def ping(self) -> None:
        """When to ping is for the application's client to know."""

    def flush(self) -> None:
        """paho's loop writes by itself."""
        return

    def disconnect(self) -> None:
        self.push(Closed(ConnectionLostError("the connection was closed by this client")))

    def _wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        waker = self._waker  # the shell may let go of it meanwhile
        if self._wake_loop is not None:
            self._wake_loop()
        elif waker is not None:
            with contextlib.suppress(OSError):  # closed: nobody listens
                waker[0].send(b"\0")

    def poll(self) -> Sequence[Event]:
        if self._waker is not None:
            with contextlib.suppress(BlockingIOError):
                self._waker[1].recv(4096)
        self._is_awake = False  # before the queue is emptied: what comes from here on wakes again
        return super().poll()

    def _work(self) -> None:
        if not self._is_open and not self._queue and monotonic() >= self._deadline:
            text = f"the application's paho client did not connect within {self._settings.connect_timeout:g} s"
            complaint = self._listener.complaint()
            error = CallbackReplacedError(f"{text}: {complaint}") if complaint else ConnectionLostError(text)
            self.push(Closed(error))

    def _release(self) -> None:
        waker, self._waker = self._waker, None
        for end in waker or ():
            end.close()


class SharedConnector:
    """See :class:`statestore_client.mqtt.driver.SyncConnector`.

    One listener for all connections: paho repeats by itself what was not acknowledged on the one before.
    """

    def __init__(self, paho_client: Client, settings: ConnectionSettings) -> None:
        self._paho_client = paho_client
        self._settings = settings
        self._listener = self._listen()

    def _listen(self) -> PahoListener:
        if self._paho_client in _shared:
            raise BusyError("this paho client is shared already; use the one state store client everywhere")
        _shared.add(self._paho_client)
        return PahoListener(self._paho_client, self._settings)

    def complaint(self) -> str | None:
        """What the application did to the callbacks, if requests wait in vain because of it."""
        return self._listener.complaint()

    addresses: Alternatives = OneAddress()

    def open(self, *, clean_start: bool, new_round: bool = True) -> _SharedDriver:  # noqa: ARG002 - the application's
        return _SharedDriver(self._listener, self._settings)

    def settle(self, *, for_good: bool) -> None:
        """The application dials."""

    def close(self) -> None:
        """Leave the connection to the application, as it was."""
        _shared.discard(self._paho_client)
        self._listener.close()

    def reopen(self) -> None:
        """Share it again, if it was left to the application meanwhile."""
        if self._listener.is_closed:
            self._listener = self._listen()
