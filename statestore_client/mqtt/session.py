"""What the client keeps of an MQTT session while no connection stands (MQTT 5.0, 4.1): which publication has which
packet identifier, and the QoS 2 messages that were taken over.

How much may be under way, and what is sent again in which order, is decided in
:mod:`statestore_client.core.request_table`.

Invariant: packet identifiers in use are unique and not 0 (2.2.1).
Invariant: a session has at most one living connection. The broker's half may be gone when the next one stands; CONNACK
tells, and the session is emptied then.
"""

from __future__ import annotations

import attrs

from statestore_client.mqtt.qos import Inbound, next_packet_id

__all__ = ["ClientSession"]


@attrs.define(eq=False)
class ClientSession:
    """Survives connections; see the module."""

    inbound: Inbound = attrs.field(factory=Inbound, init=False)
    #: Packet identifier to delivery id of each publication without PUBACK, in the order in which they left first.
    in_flight: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Delivery id to packet identifier of those that an earlier connection left behind, and that were not repeated yet.
    repeatable: dict[int, int] = attrs.field(factory=dict, init=False)
    #: Packet identifier to subscribe id and number of filters, of this connection's SUBSCRIBEs without SUBACK.
    subscriptions: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _last_id: int = attrs.field(default=0, init=False)

    def resume(self, *, is_present: bool, receive_window: int) -> None:
        """A connection stands, and the broker has the session or not; ``receive_window`` is our Receive Maximum.

        One that an earlier process left behind goes on; this process has nothing in flight there. [MQTT-3.2.2-4] would
        have us close, but a user who sets ``clean_start=False`` wants the messages that wait there.
        """
        if not is_present:
            self.clear()
        self.subscriptions.clear()
        self.repeatable = {delivery_id: packet_id for packet_id, delivery_id in self.in_flight.items()}
        self.inbound.resume(receive_window)

    def clear(self) -> None:
        """The session is over: we ended it, or the broker has lost it."""
        self.in_flight.clear()
        self.repeatable.clear()
        self.inbound.unreleased.clear()

    def new_id(self) -> int:
        """A packet identifier that is not in use. ``core`` publishes no more than leaves some free."""
        self._last_id = packet_id = next_packet_id(self._last_id, self.in_flight, self.subscriptions)
        return packet_id

    def give_up_repeatable(self) -> None:
        """``core`` went on to new publications: nobody waits any longer for those that it did not repeat."""
        for packet_id in self.repeatable.values():
            del self.in_flight[packet_id]
        self.repeatable.clear()
