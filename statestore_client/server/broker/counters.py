"""What happened, in numbers: nothing is dropped without being counted here."""

from __future__ import annotations

import attrs

__all__ = ["Counters"]


@attrs.define(eq=False)
class Counters:
    """Totals since the broker was made."""

    connects: int = 0
    refused_connects: int = 0
    takeovers: int = 0
    held_connects: int = 0  # of client identifiers that keep stealing their session
    most_clients: int = 0  # connected at the same time
    received_bytes: int = 0  # of all connections, as they came from and went to the sockets
    sent_bytes: int = 0
    received_messages: int = 0
    sent_messages: int = 0  # those sent again count again
    refused_messages: int = 0  # answered with a reason code of 0x80 or more, or by closing a 3.1.1 connection
    dropped_qos0: int = 0  # the subscriber's queue was full
    dropped_too_large: int = 0  # larger than the subscriber's maximum packet size (MQTT 5.0, 3.1.2.11.4)
    dropped_expired: int = 0
    dropped_forbidden: int = 0  # the subscriber lost the right to the topic while they waited
    dropped_full: int = 0  # QoS 1 and 2: the subscriber's queue was full, or it held most when the server was
    ended_full: int = 0  # sessions that ended because of that
    dropped_unowned: int = 0  # a reply to a full queue, where publishers are refused a will, too
    not_retained: int = 0  # QoS 0 messages delivered but, the store being full, not retained
    application_errors: int = 0
    evicted_sessions: int = 0  # ended early, to make room for a new one

    @property
    def dropped(self) -> int:
        """Messages that a subscriber did not get."""
        given_up = self.dropped_full + self.dropped_unowned
        others = self.dropped_too_large + self.dropped_expired + self.dropped_forbidden
        return given_up + self.dropped_qos0 + others
