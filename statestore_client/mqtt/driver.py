"""The border between the shells and an MQTT library: what every driver does, and nothing about how.

A driver object is one network connection, from the TCP connect to the close, and is never used again after that.
Sessions, reconnecting, back-off, what to subscribe and what to send again are decided in ``core/``.

Events (:mod:`statestore_client.wire.messages`) come out in the order in which they happened. ``Closed`` is the last one
and comes exactly once, also when connecting fails. Calls never block and never raise for a broken connection: that is
what ``Closed`` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from statestore_client.settings import ConnectionSettings
from statestore_client.wire.messages import Event, OutgoingMessage

__all__ = ["AioDriver", "Driver", "SyncDriver", "open_aio_driver", "open_sync_driver"]


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

    def disconnect(self) -> None:
        """Queue a DISCONNECT that ends the session at once, then close."""

    def abort(self) -> None:
        """Close without a word, releasing this process's file descriptor only: safe in a forked child."""


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

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it. Calls since the last flush go out together."""

    def poll(self) -> Sequence[Event]:
        """Read and write what is possible without blocking, keep the link alive, and return what happened."""


class AioDriver(Driver, Protocol):
    """Driven by the event loop; reports by callback."""

    async def connect(self) -> None:
        """Resolve, connect, shake hands and send CONNECT."""

    def flush(self) -> None:
        """Write what is queued. Calls since the last flush go out together."""


def open_sync_driver(settings: ConnectionSettings, *, client_id: str, clean_start: bool) -> SyncDriver:
    """A driver for a thread, of the kind that the settings name; not connected yet."""
    from statestore_client.mqtt.paho_driver import PahoSyncDriver  # paho takes 80 ms to import

    return PahoSyncDriver(settings, client_id=client_id, clean_start=clean_start)


def open_aio_driver(
    settings: ConnectionSettings,
    *,
    client_id: str,
    clean_start: bool,
    on_events: Callable[[Sequence[Event]], None],
) -> AioDriver:
    """A driver for the running event loop, of the kind that the settings name; not connected yet."""
    from statestore_client.mqtt.paho_driver import PahoAioDriver  # paho takes 80 ms to import

    return PahoAioDriver(settings, client_id=client_id, clean_start=clean_start, on_events=on_events)
