"""``over()``: connections of a paho client that belongs to the application, which connects it and runs its loop.

What comes in is queued in the thread that runs paho's loop. How much paho itself takes in, how long it tries to connect
and when it acknowledges is the application's choice, and none of our bounds holds for it.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from statestore_client.clocks import monotonic
from statestore_client.errors import (
    BusyError,
    CallbackReplacedError,
    ConnectionLostError,
    InvalidArgumentError,
    SettingsError,
)
from statestore_client.mqtt.paho_driver import PahoDriver
from statestore_client.mqtt.paho_listener import PahoListener
from statestore_client.settings import ConnectionSettings, SharedOptions
from statestore_client.wire.messages import Alternatives, Closed, Event, OneAddress

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
