"""What the client keeps of an MQTT session while no connection stands (MQTT 5.0, 4.1): packet identifiers, publications
without an acknowledgement, QoS 2 messages that were taken over.

Invariant: a session has at most one living connection. The broker's half may be gone when the next one stands; CONNACK
tells, and the session is emptied then.
"""

from __future__ import annotations

import attrs

from statestore_client.mqtt.qos import Delivery, Inbound, Outbound, Waiting
from statestore_client.wire.messages import OutgoingMessage

__all__ = ["ClientSession", "Publication"]


@attrs.define(eq=False)
class Publication(Delivery):
    """One publication on its way to the broker. ``message`` is kept only until it leaves: ``core`` has it, too."""

    delivery_id: int
    message: OutgoingMessage | None = None


@attrs.define(eq=False)
class ClientSession:
    """Survives connections; see the module."""

    outbound: Outbound[Publication] = attrs.field(factory=lambda: Outbound(Waiting()), init=False)
    inbound: Inbound = attrs.field(factory=Inbound, init=False)
    #: Publications that an earlier connection left without an answer and that nobody has repeated yet, by delivery id.
    repeatable: dict[int, Publication] = attrs.field(factory=dict, init=False)

    def clear(self) -> None:
        """The session is over: by a clean start, or because the broker has lost it."""
        self.outbound.reset()
        self.inbound.unreleased.clear()
        self.repeatable.clear()

    def resume(self, *, send_window: int, receive_window: int) -> list[int]:
        """A connection stands; the windows are the Receive Maximums of broker and client.

        Returns the packet identifiers of the PUBRELs to send again, in order. PUBLISHes are repeated when ``core``
        says so: those that wait here come from it again, too.
        """
        outbound = self.outbound
        outbound.waiting.clear()
        outbound.reserved.clear()
        released = outbound.resume(send_window)
        outbound.resend.clear()
        self.repeatable = {p.delivery_id: p for p in outbound.in_flight.values() if not p.is_released}
        self.inbound.resume(receive_window)
        return released

    def is_released(self, delivery_id: int) -> bool:
        """Whether the broker has taken this publication over and only PUBCOMP is missing."""
        return any(p.delivery_id == delivery_id and p.is_released for p in self.outbound.in_flight.values())

    def give_up_repeatable(self) -> None:
        """``core`` went on to new publications: nobody waits any longer for those that it did not repeat.

        The identifiers of QoS 1 are free again. Those of QoS 2 are not: the broker may have taken the message over, and
        would drop the next one under the same identifier as a duplicate.
        """
        for publication in self.repeatable.values():
            if publication.qos == 1:
                self.outbound.forget(publication)
        self.repeatable.clear()
