"""What both ends of a connection need for QoS 1 and 2: packet identifiers, acknowledgements, and the receiver.

How they send differs: the broker has a queue (``server/broker/outbound``); the client publishes what ``core``
wants (:mod:`~statestore_client.mqtt.client_connection`). Source: MQTT 5.0, sections 2.2.1, 4.3.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

import attrs

#: How acknowledgements begin that say nothing but success, in either version (MQTT 5.0, 3.4.2.1).
PUBACK: Final = b"\x40\x02"
PUBREC: Final = b"\x50\x02"
PUBREL: Final = b"\x62\x02"
PUBCOMP: Final = b"\x70\x02"

#: Packet identifiers are two bytes and not 0 (MQTT 5.0, 2.2.1).
LAST_PACKET_ID: Final = 65_535


def next_packet_id(last: int, in_use: Container[int], also_in_use: Container[int] = ()) -> int:
    """The packet identifier behind ``last`` that is not in use (MQTT 5.0, 2.2.1). One has to be free."""
    while True:
        last = last + 1 if last < LAST_PACKET_ID else 1
        if last not in in_use and last not in also_in_use:
            return last


@attrs.define(eq=False)
class Inbound:
    """The receiver's half of a session.

    ``unreleased``: QoS 2 messages that were taken over and not released yet. A message itself is delivered at once (the
    first of the two methods of MQTT 5.0, 4.3.3: no stored message, only its identifier). The value tells whether this
    connection has seen its PUBLISH.

    ``used`` counts what the peer has sent on this connection and got no PUBACK or PUBCOMP for. More than ``window``,
    our receive maximum, is its mistake (3.3.4); the owner of a bounded one counts QoS 1 in and out, and checks.
    """

    window: int = attrs.field(default=LAST_PACKET_ID, init=False)
    used: int = attrs.field(default=0, init=False)
    unreleased: dict[int, bool] = attrs.field(factory=dict, init=False)

    def resume(self, window: int) -> None:
        """A new connection, on which the peer may have ``window`` messages unacknowledged."""
        self.window, self.used = window, 0
        self.unreleased = dict.fromkeys(self.unreleased, False)

    def publish(self, packet_id: int) -> bool:
        """A QoS 2 PUBLISH: True if it is new and must be delivered; answer PUBREC in either case."""
        is_counted = self.unreleased.get(packet_id)
        if not is_counted:
            self.used += 1
            self.unreleased[packet_id] = True
        return is_counted is None

    def release(self, packet_id: int) -> bool:
        """PUBREL: False when the identifier is not known. Answer PUBCOMP in either case."""
        is_counted = self.unreleased.pop(packet_id, None)
        if is_counted:
            self.used -= 1
        return is_counted is not None
