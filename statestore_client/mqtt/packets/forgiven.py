"""What a broker does wrong and a client lets pass, because it harms nobody. A server forgives its clients nothing.

A client that ends the connection for such a thing meets it again on the next one, and is cut off for ever.

=====================================================================  ================================================
let pass, counted                                                      what is made of it
=====================================================================  ================================================
a reason code that does not belong to an acknowledgement, or to        success below 0x80, otherwise refused with that
DISCONNECT                                                             code
a code from 0x80 on that does not belong to CONNACK                    refused with that code
CONNACK: reserved flags; a session beside a refusal                    not looked at
0x91 in SUBACK: a packet identifier in use that is free                another one is tried
DUP with QoS 0; a PUBREL without its flags                             not looked at
a remaining length in more bytes than it needs                         its value
a property of other packets                                            skipped
Receive Maximum, Maximum Packet Size, Subscription Identifier or       as if it were not there
Topic Alias 0
a flag other than 0 and 1; a response topic with wildcards             as it is: a client uses neither
a topic alias, although none was allowed, beside the topic             the topic
=====================================================================  ================================================

What makes the stream, or what it means, ambiguous stays an error: other flags in the first byte (by them a client sees
that somebody speaks HTTP), lengths that contradict each other, properties that nobody knows, or that come twice, bytes
behind a packet's end, packet identifier 0, QoS 3, text that is not UTF-8, topic names with wildcards, an alias alone,
another number of reason codes than of filters, a CONNACK of MQTT 3.1.1 (codes 1 to 5), anything about authentication,
and everything that a bound is there for.
"""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Forgiven:
    """What was let pass on one connection.

    ``count``: since the client was last told. ``first``: the very first of them, in words.
    """

    count: int = 0
    first: str = ""

    def note(self, what: str) -> None:
        """Count one more."""
        self.count += 1
        if not self.first:
            self.first = what
