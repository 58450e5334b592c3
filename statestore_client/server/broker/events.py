"""What clients do, told to a program that asked for it, mostly a test.

The parts of the broker tell it where they do it: an event is told after it was accepted and done, in the order in which
it was done, and in the middle of everything. The receiver may take notes, and calls nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from statestore_client.mqtt.packets import Publish
    from statestore_client.server.broker.connection import Connection

__all__ = ["BrokerEvents"]


class BrokerEvents(Protocol):
    """Receives them."""

    def connected(self, connection: Connection, client_id: str) -> None:
        """CONNECT was accepted."""

    def disconnected(self, connection: Connection, client_id: str) -> None:
        """A client that was connected is not any more; ``connection.ending`` says why."""

    def subscribed(self, client_id: str, topic_filter: str, qos: int | None) -> None:
        """One filter of a SUBSCRIBE: the granted QoS, None if it was refused."""

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """One filter of an UNSUBSCRIBE."""

    def published(self, client_id: str, packet: Publish) -> None:
        """A message of a client, or its will, was accepted. Its topic is in full, whatever alias the client used."""
