"""A connection on which things go wrong on purpose.

It stands between the socket and an ordinary connection, in both directions: it cuts the bytes into packets, looks
whether one of them is to suffer something, and hands on what is left. Bytes that are not packets pass as they are: what
to say to them is the ordinary connection's business. A server without faults has none of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import attrs

from statestore_client.errors import PacketError
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    PacketDecoder,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    connack_return_code,
    encode,
)
from statestore_client.mqtt.packets.primitives import decode_variable
from statestore_client.mqtt.packets.types import DISCONNECT_CODES
from statestore_client.server.runtime.transport.connection import LINGER_S, ServerConnection
from statestore_client.server.testing.faults import Delay, Drop, Duplicate, Refuse, Withhold
from statestore_client.wire.protocol import MAX_PACKET_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.mqtt.packets import Packet
    from statestore_client.server.runtime.broker_driver import BrokerDriver
    from statestore_client.server.testing.faults import Action, FaultRequests, Faults, Side
    from statestore_client.server.testing.virtual_clock import VirtualClock, VirtualTimer

_ANY_ALIAS: Final = 65_535

#: What may wait behind a packet that is held back.
_MOST_HELD_BYTES: Final = 64 * 1024 * 1024

_DUP: Final = 0x08


#: An answer by its kind and packet identifier, 0 for none.
_Key: TypeAlias = tuple[type, int]

#: A packet of the client, and how it is answered; with QoS 2, a PUBLISH by PUBREC.
_ANSWERS: Final[dict[type, type]] = {Connect: Connack, Publish: Puback, Subscribe: Suback, Unsubscribe: Unsuback}


def _key_of(answer: Packet) -> _Key:
    return type(answer), getattr(answer, "packet_id", 0)


@attrs.frozen
class FaultInjection:
    """What is to go wrong on a server, and the clock for what is to go wrong later."""

    faults: Faults
    requests: FaultRequests
    clock: VirtualClock


class FaultyConnection(ServerConnection):
    """An ordinary connection behind a :class:`_Injector`."""

    __slots__ = ("_injection", "_injector")

    def __init__(self, driver: BrokerDriver, injection: FaultInjection) -> None:
        super().__init__(driver)
        self._injection = injection
        self._injector: _Injector | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self._injector = _Injector(stream, super().data_received, self._injection)
        super().connection_made(cast("asyncio.Transport", _FaultyTransport(stream, self._injector)))

    def data_received(self, data: bytes) -> None:
        if self._injector is not None:
            self._injector.from_client.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._injector is not None:
            self._injector.close()
        super().connection_lost(exc)


class _FaultyTransport:
    """The transport, as the ordinary connection sees it."""

    def __init__(self, transport: asyncio.Transport, injector: _Injector) -> None:
        self._transport = transport
        self._injector = injector

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._injector.to_client.feed(bytes(data))

    def writelines(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._injector.to_client.when_idle(self._transport.write_eof)

    def close(self) -> None:
        self._injector.to_client.when_idle(self._transport.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Stream:
    """One direction: bytes in, packets looked at, bytes out.

    Invariant: while a packet is held back (``_is_held``), everything behind it is in ``_waiting``, in order.
    """

    def __init__(self, by: Side, injector: _Injector, forward: Callable[[bytes], object], version: int | None) -> None:
        self.by: Side = by
        self._injector = injector
        self._forward = forward
        self._decoder = PacketDecoder(version=version, max_packet_size=MAX_PACKET_SIZE, topic_alias_maximum=_ANY_ALIAS)
        self._unfinished = b""
        self._is_raw = False  # no packets: pass on what comes
        self._is_held = False
        self._waiting = b""
        self._at_end: Callable[[], object] | None = None
        self._sent = 0

    def feed(self, data: bytes) -> None:
        """Bytes of this side."""
        if self._injector.is_broken:
            return
        if self._is_held:
            self._waiting += data
            if len(self._waiting) > _MOST_HELD_BYTES:
                self._injector.drop()
            return
        data, self._unfinished = self._unfinished + data, b""
        at = 0
        while (end := self._end_of(data, at)) is not None:
            self._look_at(data[at:end])
            at = end
        self._keep(data[at:])

    def _keep(self, rest: bytes) -> None:
        if self._is_held:
            self._waiting = rest
        elif self._is_raw:
            self.pass_on(rest)
        else:
            self._unfinished = rest

    def _end_of(self, data: bytes, at: int) -> int | None:
        """Where the packet ends that begins there; None if there is no whole one, or nobody is to look at it now."""
        if self._is_held or self._is_raw or self._injector.is_broken:
            return None
        try:
            found = decode_variable(data, at + 1, len(data))
        except PacketError:
            self._is_raw = True
            return None
        if found is None:
            return None
        length, body = found
        return body + length if body + length <= len(data) else None

    def _look_at(self, frame: bytes) -> None:
        try:
            (packet,) = self._decoder.feed(frame)
        except (PacketError, ValueError):
            self._is_raw = True
            self.pass_on(frame)
            return
        action = self._injector.action_for(packet, self.by)
        if action is None:
            self.pass_on(frame)
        else:
            self._apply(action, frame, packet)

    def _apply(self, action: Action, frame: bytes, packet: Packet) -> None:
        injector = self._injector
        if isinstance(action, Withhold):
            return
        if isinstance(action, Drop):
            injector.after(action.after_s, lambda: injector.drop(action.reason_code))
        elif isinstance(action, Refuse):
            injector.after(action.after_s, lambda: injector.refuse(packet, action.reason_code))
        elif isinstance(action, Delay):
            self._is_held = True
            injector.after(action.seconds, lambda: self._go_on(frame))
        elif isinstance(action, Duplicate):
            self.pass_on(frame)
            is_message = isinstance(packet, Publish) and packet.qos
            self.pass_on(bytes((frame[0] | _DUP,)) + frame[1:] if is_message else frame)
        else:
            self.pass_on(frame[: action.after_bytes])
            injector.break_off(self.by)

    def _go_on(self, frame: bytes) -> None:
        """The time of a packet that was held back is over; it does not suffer a second time."""
        self._is_held = False
        waiting, self._waiting = self._waiting, b""
        self.pass_on(frame)
        self.feed(waiting)
        at_end, self._at_end = self._at_end, None
        if at_end is not None:
            self.when_idle(at_end)

    def pass_on(self, data: bytes) -> None:
        """On its way, unless the link is to break at one of these bytes."""
        injector, total = self._injector, self._sent + len(data)
        after = injector.cut_before(self.by, total)
        if after is not None:
            data = data[: max(0, after - self._sent)]
        self._sent += len(data)
        if data and not injector.is_broken:
            self._forward(data)
        if after is not None:
            injector.break_off(self.by)

    def when_idle(self, action: Callable[[], object]) -> None:
        """Do something behind all that was fed."""
        if self._is_held:
            self._at_end = action
        else:
            action()


class _Injector:
    """Both directions of one connection, and what is known of its client."""

    def __init__(
        self, transport: asyncio.Transport, deliver: Callable[[bytes], object], injection: FaultInjection
    ) -> None:
        self._transport = transport
        self._injection = injection
        self._version = MQTT_5_0
        self._client_id: str | None = None
        self._topics: dict[tuple[Side, int], str] = {}  # of messages by their sender and packet identifier
        self._wishes: dict[_Key, Action] = {}  # what a client asked for an answer that it did not get yet
        self._timers: dict[VirtualTimer, None] = {}  # in the order of making
        self._lingering: asyncio.TimerHandle | None = None
        self.is_broken = False
        self.from_client = _Stream("client", self, deliver, None)
        self.to_client = _Stream("server", self, transport.write, MQTT_5_0)

    # -- what is to happen ---------------------------------------------------------------------------------------------

    def action_for(self, packet: Packet, by: Side) -> Action | None:
        """What a packet has to suffer."""
        self._learn(packet, by)
        name = type(packet).__name__.upper()
        action = self._injection.faults.find(name, by, self._client_id, self._topics_of(packet, by))
        if by == "client":
            wish = self._wish_of(packet)  # looked at in any case: it also says what its answer has to suffer
        else:
            wish = self._wishes.pop(_key_of(packet), None) if self._wishes else None
        return action or wish

    def _wish_of(self, packet: Packet) -> Action | None:
        """What a packet of the client asks for itself. What it asks for its answer waits for that."""
        action, of_answer = self._injection.requests.find(packet)
        answer = _ANSWERS.get(type(packet))
        if answer is None:
            return action
        key = (Pubrec if isinstance(packet, Publish) and packet.qos == 2 else answer, getattr(packet, "packet_id", 0))
        if of_answer is None:
            self._wishes.pop(key, None)  # of a packet before it that was not answered
        else:
            self._wishes[key] = of_answer
        return action

    def cut_before(self, by: Side, total: int) -> int | None:
        return self._injection.faults.find_cut(by, self._client_id, total)

    def _learn(self, packet: Packet, by: Side) -> None:
        if isinstance(packet, Connect):
            self._client_id, self._version = packet.client_id or None, packet.version
            if packet.version != MQTT_5_0:
                self.to_client = _Stream("server", self, self._transport.write, packet.version)
        elif isinstance(packet, Connack) and packet.properties.assigned_client_id:
            self._client_id = packet.properties.assigned_client_id
        elif isinstance(packet, Publish) and packet.qos:
            self._topics[by, packet.packet_id] = packet.topic

    def _topics_of(self, packet: Packet, by: Side) -> tuple[str, ...]:
        if isinstance(packet, Publish):
            return (packet.topic,)
        if isinstance(packet, Subscribe):
            return tuple(subscription.topic_filter for subscription in packet.subscriptions)
        if isinstance(packet, Unsubscribe):
            return packet.topic_filters
        if isinstance(packet, Pubrel):
            return tuple(filter(None, (self._topics.get((by, packet.packet_id)),)))
        if isinstance(packet, (Puback, Pubrec, Pubcomp)):
            other: Side = "server" if by == "client" else "client"
            return tuple(filter(None, (self._topics.get((other, packet.packet_id)),)))
        return ()

    # -- what happens --------------------------------------------------------------------------------------------------

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do it now, or when the server's clock has gone on."""
        if not seconds:
            action()
            return
        clock = self._injection.clock

        def act() -> None:
            self._timers.pop(timer, None)
            action()

        timer = clock.call_at(clock().monotonic + seconds, act)
        self._timers[timer] = None

    def drop(self, reason_code: int | None = None) -> None:
        """Break the link."""
        if reason_code is None or self._version != MQTT_5_0:
            self.is_broken = True
            self._transport.abort()
        else:
            self._send(Disconnect(reason_code))
            self.half_close()

    def break_off(self, by: Side) -> None:
        """One side got so far, and no further."""
        if by == "client":
            self.drop()
        else:
            self.half_close()

    def half_close(self) -> None:
        """End the link behind what was sent. The peer closes when it has read that, or we do a little later."""
        if self.is_broken:
            return
        self.is_broken = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)
        else:
            self._transport.close()

    def refuse(self, packet: Packet, reason_code: int) -> None:
        """Answer a packet of the client with a reason code, where the version has one for it."""
        if isinstance(packet, Connect):
            if packet.version == MQTT_5_0 or connack_return_code(reason_code) is not None:
                self._send(Connack(False, reason_code))
            self.half_close()
        elif isinstance(packet, Subscribe):
            self._send(Suback(packet.packet_id, (reason_code,) * len(packet.subscriptions)))
        elif self._version != MQTT_5_0:
            self.drop()
        elif isinstance(packet, Unsubscribe):
            self._send(Unsuback(packet.packet_id, (reason_code,) * len(packet.topic_filters)))
        elif isinstance(packet, Publish) and packet.qos:
            answer = Puback if packet.qos == 1 else Pubrec
            self._send(answer(packet.packet_id, reason_code))
        else:
            self.drop(reason_code if reason_code in DISCONNECT_CODES else None)

    def _send(self, packet: Packet) -> None:
        """Behind all that was sent; nothing happens to it."""
        if not self.is_broken:
            self._transport.write(encode(packet, self._version))

    def close(self) -> None:
        """The connection is gone."""
        self.is_broken = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._lingering is not None:
            self._lingering.cancel()
