"""The streams: what is kept of what, and under which subject.

===================  =======================================  ==========================================================
stream               subject                                  record
===================  =======================================  ==========================================================
``sessions``         client identifier                        expiry, user, will, when it ends
``subscriptions``    session number, blank, filter            what was granted
``walks``            session number, blank, filter            the place in the retained messages still to be sent
``wills``            client identifier                        will of a session that ends with its connection
``messages``         number                                   a QoS 1 or 2 message, once for several receivers
``deliveries``       number                                   who is to get which message, with what packet id
``releases``         number                                   a PUBREL that was not answered
``inbound``          session number × 65,536 + packet id      a QoS 2 message that was taken over and not released
``retained``         topic                                    the message
``losses``           client identifier                        how much it lost for lack of room, and since when
``copies``           number                                   to whom a message is still to be copied
``keys``             key                                      value, version, fencing token, expiry; or no value
``responses``        client identifier and correlation data   the answer that was given
``tokens``           ``key``                                  the key that continuation tokens are sealed with
``clock``            empty                                    the greatest version so far, and the local clock
``clock``            ``time``                                 the time of the last batch
===================  =======================================  ==========================================================

A subject has at most one record: a new one replaces it. ``messages`` has *interest* retention: a message leaves with
the last of its ``deliveries``, which are the acknowledgeable consumers of the sessions; a message that was sent at once
to one of them only is inside that delivery. Numbers grow, so a stream with
numbers is in the order in which things happened. Session numbers stand for client identifiers, which may be long.

Source: the stream layout of the NATS server's MQTT implementation, without its known issues: redelivery keeps the
order, what is in flight is finished after a reconnect, and each retained topic is a subject of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

__all__ = ["ALL_STREAMS", "Stream", "Subject"]

#: Numbers for what is many and short-lived, names for what has one.
Subject: TypeAlias = int | str | bytes


class Stream(Enum):
    """The value is the name on disk."""

    SESSIONS = "sessions"
    SUBSCRIPTIONS = "subscriptions"
    WALKS = "walks"
    WILLS = "wills"
    MESSAGES = "messages"
    DELIVERIES = "deliveries"
    RELEASES = "releases"
    INBOUND = "inbound"
    RETAINED = "retained"
    LOSSES = "losses"
    COPIES = "copies"
    KEYS = "keys"
    RESPONSES = "responses"
    TOKENS = "tokens"
    CLOCK = "clock"

    #: Members are looked up for each record. The hash that an Enum has is a function in Python.
    if not TYPE_CHECKING:  # for type checkers, a member of the base class stays what it is
        __hash__ = object.__hash__

    @property
    def is_numbered(self) -> bool:
        """Whether subjects are numbers (63 bits, not negative)."""
        return self in _NUMBERED


_NUMBERED: Final = frozenset((Stream.MESSAGES, Stream.DELIVERIES, Stream.RELEASES, Stream.INBOUND, Stream.COPIES))

ALL_STREAMS: Final = tuple(Stream)
