"""One network connection as the pure broker sees it: what is known of the peer, and the bytes that wait for its
socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import attrs

from statestore_client.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Connack,
    ConnackProperties,
    Disconnect,
    DisconnectProperties,
    ReasonCode,
    connack_return_code,
    encode,
)
from statestore_client.mqtt.qos import PUBACK
from statestore_client.server.broker.quotas.memory_budget import LARGE_BYTES
from statestore_client.wire.messages import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from statestore_client.mqtt.packets import Packet, Publish
    from statestore_client.server.broker.admission import Verification
    from statestore_client.server.broker.message import Message
    from statestore_client.server.broker.quotas.memory_budget import MemoryBudget
    from statestore_client.server.broker.session.aliases import OutgoingAliases
    from statestore_client.server.broker.session.inflight import MessageDelivery
    from statestore_client.server.broker.session.session import Session
    from statestore_client.server.broker.timers import Timer
    from statestore_client.wire.instant import Instant

__all__ = ["Connection", "Ending"]


@attrs.frozen
class Ending:
    """Why a connection ends. ``by_peer``: it said DISCONNECT or went away; otherwise the broker ended it."""

    reason_code: int
    reason: str
    by_peer: bool = False


@attrs.define(eq=False)
class Connection:
    """Written by the broker, emptied by the runtime.

    The runtime takes ``outbox`` with :meth:`take` and writes it in one go; once ``ending`` is set it closes the socket
    after that. ``is_congested`` is the runtime's word that the socket takes no more for now.
    Invariant: nothing is added to the outbox after ``ending`` was set.
    """

    peer: str
    _dirty: list[Connection] = attrs.field(repr=False)
    _outbox_limit: int
    _budget: MemoryBudget = attrs.field(repr=False)
    last_received: float  # monotonic seconds
    opened_at: float = attrs.field(init=False)
    version: int = MQTT_5_0
    client_id: str = ""  # that it asked for
    session: Session | None = None
    outbox: list[bytes | memoryview] = attrs.field(factory=list, repr=False)
    outbox_bytes: int = 0
    shared: int = 0  # pieces in the outbox that may lie in others, too
    pending: int = 0  # jobs that it caused
    is_congested: bool = False
    ending: Ending | None = None
    maximum_packet_size: int = MAX_PACKET_SIZE
    topic_aliases: dict[int, str] = attrs.field(factory=dict, repr=False)  # the peer's
    aliases: OutgoingAliases | None = None  # those that the peer takes; None for none
    alias_bytes: int = 0  # of the topics of all aliases
    silence_s: float = 0.0  # one and a half keep-alives; 0 for no keep-alive
    timer: Timer | None = None
    was_refused: bool = False
    wants_reasons: bool = False  # asked for problem information, by name
    receive_maximum: int = 0  # what it was told: QoS 2 messages that it may leave unreleased
    counted_for: tuple[str | None, str | None] = (None, None)  # user and network
    certificate: str | None = None  # the name in the peer's certificate, which TLS has verified
    method: str | None = None  # of enhanced authentication
    verification: Verification | None = None
    held: deque[tuple[Publish, float]] | None = None  # see quotas/backpressure.py; with the moments since when
    held_bytes: int = 0  # of those

    def __attrs_post_init__(self) -> None:
        self.opened_at = self.last_received

    @property
    def is_full(self) -> bool:
        """Whether what can wait should wait in the session's queue."""
        return self.is_congested or self.outbox_bytes >= self._outbox_limit

    @property
    def has_backlog(self) -> bool:
        """Whether messages wait for this connection, or packets of it, so that :meth:`Broker.drained` has something to
        do.
        """
        session = self.session
        return session is not None and bool(
            self.held
            or session.waiting0.items
            or session.outbound.waiting.items
            or session.outbound.resend
            or session.walks
        )

    @property
    def is_held(self) -> bool:
        """Whether its next packet has to wait: what it caused is not done yet, or its credentials are being verified.

        When it no longer has to, the connection is among the dirty ones.
        """
        return self.pending > 0 or (self.verification is not None and self.session is None)

    def job_done(self) -> None:
        """One job that it caused is done."""
        self.pending -= 1
        if not self.pending:
            self._dirty.append(self)

    def write(self, frame: bytes | memoryview) -> None:
        """Append encoded bytes to the outbox."""
        if self.ending is not None:
            return
        outbox = self.outbox
        if not outbox:
            self._dirty.append(self)
        outbox.append(frame)
        self.outbox_bytes += len(frame)

    def send(self, packet: Packet) -> None:
        """Send anything but PUBLISH. A packet larger than the peer accepts, a SUBACK of a thousand codes for example,
        cannot be left out: the connection ends (MQTT-3.1.2-24).
        """
        frame = encode(packet, self.version)
        if len(frame) <= self.maximum_packet_size:
            self.write(frame)
        else:
            self.disconnect(ReasonCode.PACKET_TOO_LARGE, "the answer is larger than the maximum packet size")

    def acknowledge(self, packet_id: int, kind: bytes = PUBACK) -> None:
        """Send an acknowledgement with success, the most frequent packet of all: four bytes."""
        self.write(kind + packet_id.to_bytes(2, "big"))

    def publish(self, delivery: MessageDelivery, now: Instant) -> bool:
        """Send a PUBLISH. False if it is larger than the peer accepts: it was not sent."""
        if self.aliases is not None and self._publish_aliased(self.aliases, delivery, now, dup=0):
            return True
        frame = delivery.message.frame(
            self.version, delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id, now
        )
        return self._put(delivery.message, frame)

    def publish_again(self, delivery: MessageDelivery, now: Instant) -> bool:
        """Send a PUBLISH that an earlier connection may have seen, with DUP set. False as in :meth:`publish`."""
        if self.aliases is not None and self._publish_aliased(self.aliases, delivery, now, dup=8):
            return True
        frame = delivery.message.duplicate(
            self.version, delivery.qos, delivery.retain, delivery.subscription_ids, delivery.packet_id, now
        )
        return self._put(delivery.message, frame)

    def _publish_aliased(self, aliases: OutgoingAliases, delivery: MessageDelivery, now: Instant, *, dup: int) -> bool:
        """Send a PUBLISH with a topic alias. False if there is none left for its topic, or if it would be too large."""
        message = delivery.message
        alias = aliases.of(message.topic)
        if alias is None:
            return False
        flags = dup | delivery.qos << 1 | delivery.retain
        frame = message.aliased(flags, delivery.subscription_ids, delivery.packet_id, now, alias=alias)
        if not self._put(message, frame):
            return False
        if not alias.is_known:
            self.alias_bytes += aliases.remember(message.topic, alias)
        return True

    def _put(self, message: Message, frame: bytes) -> bool:
        payload = message.payload
        if len(frame) < LARGE_BYTES > len(payload):
            if len(frame) > self.maximum_packet_size:
                return False
            self.write(frame)
            return True
        return self._put_large(frame, payload if message.is_large else b"")

    def _put_large(self, frame: bytes, payload: bytes) -> bool:
        if len(frame) + len(payload) > self.maximum_packet_size:
            return False
        if len(frame) < LARGE_BYTES:
            self.write(frame)
        else:
            self._write_shared(frame)
        if payload:
            self._write_shared(payload)
        return True

    def _write_shared(self, piece: bytes) -> None:
        """Append bytes that may lie in many outboxes. Invariant: memoryviews in the outbox are in the budget, and
        ``shared`` is their number.
        """
        if self.ending is None:
            self.shared += 1
            self._budget.share(piece)
            self.write(memoryview(piece))

    def pieces(self) -> Iterable[bytes | memoryview]:
        """All that waits to be written, in order."""
        return self.outbox

    def take(self) -> bytes:
        """Empty the outbox."""
        outbox = self.outbox
        data = bytes(outbox[0]) if len(outbox) == 1 else b"".join(outbox)
        self.discard()
        return data

    def take_some(self, at_most: int) -> bytes | memoryview:
        """Take up to this many bytes out of the outbox. A large payload is not copied."""
        outbox = self.outbox
        size = pieces = 0
        for piece in outbox:
            if size + len(piece) > at_most:
                break
            size += len(piece)
            pieces += 1
        data: bytes | memoryview
        if pieces:
            data = b"".join(outbox[:pieces])
            self._let_go(outbox[:pieces])
            del outbox[:pieces]
        else:
            first = outbox[0]
            data, outbox[0] = first[:at_most], first[at_most:]
            size = at_most
        self.outbox_bytes -= size
        return data

    def discard(self) -> None:
        """Throw away what is in the outbox."""
        self._let_go(self.outbox)
        self.outbox.clear()
        self.outbox_bytes = 0

    def _let_go(self, pieces: Iterable[bytes | memoryview]) -> None:
        if not self.shared:
            return
        for piece in pieces:
            if isinstance(piece, memoryview):
                self.shared -= 1
                self._budget.unshare(cast("bytes", piece.obj))  # of a part: the whole

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, ending: Ending) -> None:
        """Close after what is in the outbox. The first reason counts."""
        if self.ending is None:
            if not self.outbox:
                self._dirty.append(self)
            self.ending = ending

    def disconnect(self, reason_code: int, reason: str) -> None:
        """End the connection with a reason, in the way that the peer's version and state allow.

        MQTT 5.0: CONNACK before the session is there, DISCONNECT after. 3.1.1 has no DISCONNECT from servers: just a
        close.
        """
        if self.session is None:
            self.refuse(reason_code, reason)
            return
        if self.version == MQTT_5_0 and self.ending is None:
            frame = encode(Disconnect(reason_code, DisconnectProperties(reason_string=self._told(reason))), MQTT_5_0)
            if len(frame) > self.maximum_packet_size:
                # The reason string must not be the cause of a packet that is too large (MQTT-3.14.2-3).
                frame = encode(Disconnect(reason_code), MQTT_5_0)
            if len(frame) <= self.maximum_packet_size:
                self.write(frame)
        self.close(Ending(reason_code, reason))

    def refuse(self, reason_code: int, reason: str) -> None:
        """Answer CONNECT with a refusal and close. 3.1.1 has codes for a few reasons only; for the others, a close."""
        if self.ending is not None:
            return
        self.was_refused = True
        if self.version == MQTT_5_0:
            frame = encode(Connack(False, reason_code, ConnackProperties(reason_string=self._told(reason))))
            if len(frame) > self.maximum_packet_size:
                frame = encode(Connack(False, reason_code))  # MQTT-3.2.2-19
            if len(frame) <= self.maximum_packet_size:
                self.write(frame)
        elif connack_return_code(reason_code) is not None:
            self.send(Connack(False, reason_code))
        self.close(Ending(reason_code, reason))

    def refuse_broken(self, reason_code: int, reason: str, version: int | None) -> None:
        """Answer what was to be a CONNECT and is none. ``version`` is what the decoder has read of it."""
        if version is not None:
            self.version = version
            self.refuse(reason_code, reason)
        elif reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            # The versions that are asked for and not supported are older ones: they understand the old CONNACK.
            self.version = MQTT_3_1_1
            self.refuse(reason_code, reason)
        else:
            # No MQTT at all, perhaps: say nothing.
            self.close(Ending(reason_code, reason))

    def detail(self, code: ReasonCode) -> ReasonCode:
        """A reason code that changes nothing, for those who asked for details: to the others it is a success."""
        return code if self.wants_reasons else ReasonCode.SUCCESS

    def _told(self, reason: str) -> str | None:
        """Reasons in words go to those who asked for them: some small clients cannot read such a packet."""
        return reason if self.wants_reasons else None
