"""The border between the shells and an MQTT library: what every driver does, and nothing about how.

A driver object is one network connection, from the TCP connect to the close, and is never used again after that.
Reconnecting, back-off, what to subscribe and what to send again are decided in ``core/``. What a driver has to remember
from one connection to the next is kept by its connector, of which each client has one.

Events (:mod:`statestore_client.wire.messages`) come out in the order in which they happened. ``Closed`` is the last one
and comes exactly once, also when connecting fails. Calls never block and never raise for a broken connection: that is
what ``Closed`` tells.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from statestore_client.wire.messages import Alternatives, Event, OutgoingMessage

if TYPE_CHECKING:
    import asyncio


#: ``open_socket(host, port, timeout_s)`` returns a connected socket: through a proxy, say, or with options of its own.
OpenSocket: TypeAlias = Callable[[str, int, float], socket.socket]

# When the shells flush.

#: A few acknowledgements wait this long (seconds) for a request to go out with: a caller that got its answer is about
#: to send the next request, and a separate write can cost as much as a request. A broker usually has more messages
#: than these in flight, so that it need not wait.
ACK_DELAY_S: Final = 0.001
MAX_WAITING_ACKS: Final = 8


class Driver(Protocol):
    """What both kinds of drivers take. QoS 1 everywhere."""

    def publish(self, delivery_id: int, message: OutgoingMessage, again: bool = False) -> None:
        """Queue a PUBLISH; ``Published(delivery_id)`` follows with its PUBACK.

        ``again``: it was published on an earlier connection of this session and not acknowledged there.
        """

    def subscribe(self, subscribe_id: int, topic_filters: Sequence[str]) -> None:
        """Queue a SUBSCRIBE; ``Subscribed(subscribe_id)`` follows with its SUBACK."""

    def acknowledge(self, ack_id: int) -> None:
        """Queue the PUBACK of a received message."""

    @property
    def heard_at(self) -> float | None:
        """When the last byte came from the broker (monotonic seconds). None where nobody sees that."""

    @property
    def url(self) -> str:
        """Whose connection it is, for messages."""

    def ping(self) -> None:
        """Queue a PINGREQ; some byte is to come in answer. Does nothing where :attr:`heard_at` is None."""

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it. Calls since the last flush go out together."""

    def disconnect(self) -> None:
        """Queue a DISCONNECT that ends the session at once, then close."""

    def abort(self) -> None:
        """Close without a DISCONNECT, releasing this process's file descriptor only: safe in a forked child."""


class SyncDriver(Driver, Protocol):
    """Driven by a thread with a selector. Not thread-safe: the shell that owns it serialises the calls."""

    def connect(self) -> None:
        """Resolve, connect, shake hands and queue CONNECT. Blocks up to the connect timeout."""

    def fileno(self) -> int | None:
        """What to wait for; None once closed."""

    @property
    def wants_write(self) -> bool:
        """Whether to wait for the socket to become writable as well."""

    def next_deadline(self) -> float:
        """When :meth:`poll` has something to do even if the socket is quiet, in monotonic seconds."""

    def poll(self) -> Sequence[Event]:
        """Read and write what is possible without blocking, keep the link alive, and return what happened."""


class AioDriver(Driver, Protocol):
    """Driven by the event loop; reports by callback."""

    async def connect(self) -> None:
        """Resolve, connect, shake hands and send CONNECT."""


class Connector(Protocol):
    """Makes the drivers of one client, one after the other, and keeps what they have in common."""

    @property
    def addresses(self) -> Alternatives:
        """Where the next driver may connect to."""

    def complaint(self) -> str | None:
        """What the application did to a connection of its own, if requests wait in vain because of it."""

    def settle(self, *, for_good: bool) -> None:
        """Requests can leave, or, ``for_good``, the client has ended: whatever else is being dialled is given up."""

    def close(self) -> None:
        """The client was closed: no driver is opened, unless it is for :meth:`reopen`."""

    def reopen(self) -> None:
        """The client has ended and is opened again. Raises BusyError if another one uses its connection now."""


class SyncConnector(Connector, Protocol):
    """For a thread."""

    def open(self, *, clean_start: bool, new_round: bool = True) -> SyncDriver:
        """A driver that is not connected yet. ``new_round``: it may try each address again."""


class AioConnector(Connector, Protocol):
    """For an event loop."""

    def check_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises BusyError if this kind of driver cannot work in that loop."""

    def open(
        self, *, clean_start: bool, new_round: bool = True, on_events: Callable[[AioDriver, Sequence[Event]], None]
    ) -> AioDriver:
        """A driver that is not connected yet. ``new_round``: it may try each address again. ``on_events`` is called in
        the running loop, with the driver.
        """
