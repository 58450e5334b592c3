"""``driver="paho"``: a paho client that we make, for one connection, and whose loop the shell runs.

Two facts about paho that shape this file:

* once ``on_socket_register_write`` is set it writes only when told to (``loop_write``), so that one object serves a
  thread as well as an event loop, without a thread of paho's;
* a client that reconnects sends its unacknowledged messages again by itself. What to send again is decided in
  ``core/``, so each connection gets a new paho client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from statestore_client.clocks import monotonic
from statestore_client.mqtt.addresses import Addresses
from statestore_client.mqtt.client_connection import RECEIVE_MAXIMUM, connect_user_properties
from statestore_client.mqtt.closing import connect_failed, no_connack, protocol_violated
from statestore_client.mqtt.credentials import client_context, read_password
from statestore_client.mqtt.dialing import Dialer, Line
from statestore_client.mqtt.paho_bounds import BoundedClient, FailureKeepingSocket, through_proxy
from statestore_client.mqtt.paho_driver import PahoDriver
from statestore_client.mqtt.paho_listener import PahoListener
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Closed

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
