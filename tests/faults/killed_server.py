"""A durable server that is killed again and again, peers that send under load, and what they may expect afterwards.

The peers speak the protocol by hand, because they must know exactly what was acknowledged to whom, and resume what was
in flight as the standard asks for. Each peer outlives the server's lives; :meth:`Peer.meet` begins a new connection.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Protocol

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
    Disconnect,
    Packet,
    PacketDecoder,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from statestore_client.wire.commands import Condition, Del, Get, Set
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic

TIMEOUT_S = 60.0  # on a machine that does other things as well
_DAY = 86_400


class Address(Protocol):
    """Where peers connect."""

    @property
    def port(self) -> int: ...


class Server:
    """``statestore serve --data`` in a process, with more options."""

    def __init__(self, data: Path, *options: str) -> None:
        self._data = data
        self._options = options
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    async def begin(self) -> None:
        """Start, without waiting until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "statestore_client.cli", "serve", "--port", "0", "--data", str(self._data),
            *self._options,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def start(self) -> None:
        await self.begin()
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), TIMEOUT_S)
        found = re.search(rb":(\d+)$", line.strip())
        assert found is not None, line
        self.port = int(found[1])

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


class Peer:
    """One client with a session that survives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_new = True
        self.changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def meet(self, server: Address) -> None:
        """Connect, resume, and go on in the background. Raises ConnectionError."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", server.port)
        decoder = PacketDecoder(version=5, max_packet_size=1 << 20)
        self.send(self.connect())
        packets: list[Packet] = []
        while not packets:
            data = await reader.read(65536)
            if not data:
                raise ConnectionAbortedError(f"no CONNACK for {self.name}")
            packets = decoder.feed(data)
        connack, *rest = packets
        assert isinstance(connack, Connack)
        assert connack.session_present == (not self.is_new), f"the session of {self.name} is lost"
        self.resumed(is_new=self.is_new)
        for packet in rest:
            self.receive(packet)
        self._task = asyncio.ensure_future(self._listen(reader, decoder))

    async def _listen(self, reader: asyncio.StreamReader, decoder: PacketDecoder) -> None:
        try:
            while data := await reader.read(65536):
                for packet in decoder.feed(data):
                    self.receive(packet)
        except ConnectionError:
            pass

    async def part(self) -> None:
        """The server was killed: take what it had sent before, and forget the connection."""
        if self._task is not None:
            await self._task
        if self._writer is not None:
            self._writer.transport.abort()
            await asyncio.sleep(0)

    def send(self, packet: Packet) -> None:
        assert self._writer is not None
        self._writer.write(encode(packet, 5))

    async def until(self, condition: str) -> None:
        """Wait for an attribute to become true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not getattr(self, condition):
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), deadline - time.monotonic())

    def connect(self) -> Connect:
        wanted = ConnectProperties(session_expiry=_DAY, receive_maximum=100)
        return Connect(self.name, clean_start=self.is_new, properties=wanted)

    def resumed(self, *, is_new: bool) -> None:
        raise AssertionError

    def receive(self, packet: Packet) -> None:
        raise AssertionError


class Willed(Peer):
    """Dies without a goodbye. Its will is its number, to a topic of which :class:`Subscriber` takes everything."""

    TOPIC = "q/wills"

    def __init__(self, number: int) -> None:
        super().__init__(f"willed {number}")
        self._number = number

    def connect(self) -> Connect:
        return Connect(self.name, will=Will(self.TOPIC, b"%d" % self._number, 2))

    def resumed(self, *, is_new: bool) -> None:
        assert is_new

    def receive(self, packet: Packet) -> None:
        assert isinstance(packet, Disconnect)


class Publisher(Peer):
    """Publishes numbers, one after the other, some in flight. ``acknowledged`` is how many the server has taken over,
    from 0 on without a gap: it answers in order.
    """

    def __init__(self, name: str, qos: int, window: int = 8) -> None:
        super().__init__(name)
        self.qos = qos
        self.is_new = True
        self.goes_on = False
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._window = window
        self._in_flight: dict[int, int] = {}  # packet identifier: number
        self._released: dict[int, None] = {}

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._released

    def message(self, number: int, packet_id: int, *, dup: bool) -> Publish:
        return Publish(f"q/{self.name}", b"%d" % number, self.qos, False, dup, packet_id)

    def resumed(self, *, is_new: bool) -> None:
        self.is_new = False
        for packet_id in self._released:
            self.send(Pubrel(packet_id))
        for packet_id, number in self._in_flight.items():
            self.send(self.message(number, packet_id, dup=True))
        self.fill()

    def fill(self) -> None:
        while self.goes_on and len(self._in_flight) + len(self._released) < self._window:
            packet_id = self.sent % 60_000 + 1
            self._in_flight[packet_id] = self.sent
            self.send(self.message(self.sent, packet_id, dup=False))
            self.sent += 1

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Puback) and packet.packet_id in self._in_flight:  # those of GET are not
            self.taken(self._in_flight.pop(packet.packet_id))
        elif isinstance(packet, Pubrec):
            self.taken(self._in_flight.pop(packet.packet_id))
            self._released[packet.packet_id] = None
            self.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self._released.pop(packet.packet_id)
        self.fill()
        self.changed.set()

    def taken(self, number: int) -> None:
        self.acknowledged.add(number)


class Retainer(Publisher):
    """Publishes retained numbers to some topics in turn."""

    TOPICS = 10

    def message(self, number: int, packet_id: int, *, dup: bool) -> Publish:
        return Publish(f"r/{number % self.TOPICS}", b"%d" % number, 1, True, dup, packet_id)


class Subscriber(Peer):
    """Takes everything, as a good receiver of QoS 2 does: a message is taken at PUBLISH, once until PUBREL."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.taken: dict[str, list[int]] = {}
        self.wanted: dict[str, set[int]] = {}
        self._unreleased: set[int] = set()

    @property
    def has_all(self) -> bool:
        return all(numbers <= set(self.taken.get(topic, ())) for topic, numbers in self.wanted.items())

    def resumed(self, *, is_new: bool) -> None:
        if is_new:
            self.send(Subscribe(1, (Subscription("q/#", 2),)))

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Suback):
            self.is_new = False
        elif isinstance(packet, Publish):
            if packet.qos == 1:
                self._take(packet)
                self.send(Puback(packet.packet_id))
            elif packet.qos == 2:
                if packet.packet_id not in self._unreleased:
                    self._unreleased.add(packet.packet_id)
                    self._take(packet)
                self.send(Pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._unreleased.discard(packet.packet_id)
            self.send(Pubcomp(packet.packet_id))
        self.changed.set()

    def _take(self, packet: Publish) -> None:
        self.taken.setdefault(packet.topic, []).append(int(packet.payload))


class Writer(Publisher):
    """SETs with NX on keys that nobody else uses, every fifth of them deleted again, by QoS 1 requests. What is sent
    again after a crash must get the answer that it would have got: a key that was written is not *not applied*.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, 1)
        self.answers: dict[int, tuple[bytes, str]] = {}
        self.read: dict[bytes, tuple[bytes, str | None]] = {}
        self._stamps: dict[bytes, str] = {}

    @property
    def has_answers(self) -> bool:
        return self.is_idle and len(self.answers) == self.sent

    def resumed(self, *, is_new: bool) -> None:
        if is_new:
            self.send(Subscribe(60_001, (Subscription(response_topic(self.name), 1),)))
        super().resumed(is_new=is_new)

    def key(self, number: int) -> bytes:
        return b"%s/%d" % (self.name.encode(), number - 4 if number % 5 == 4 else number)

    def message(self, number: int, packet_id: int, *, dup: bool) -> Publish:
        key = self.key(number)
        value = b"%d" % number
        command = Del(key) if number % 5 == 4 else Set(key, value, Condition.NX, expiry_ms=_DAY * 1000)
        return self._request(command.encode(), b"%d" % number, packet_id, dup=dup)

    def _request(self, payload: bytes, correlation: bytes, packet_id: int, *, dup: bool) -> Publish:
        # Made once: what is sent again must be the same.
        now = HlcTimestamp(time.time_ns() // 1_000_000, 0, self.name)
        stamp = self._stamps.setdefault(correlation, str(now))
        properties = PublishProperties(
            response_topic=response_topic(self.name),
            correlation_data=correlation,
            user_properties=(("__ts", stamp), ("__ft", stamp)),
        )
        return Publish(COMMAND_TOPIC, payload, 1, False, dup, packet_id, properties)

    def receive(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self.send(Puback(packet.packet_id))
            correlation = packet.properties.correlation_data or b""
            version = dict(packet.properties.user_properties).get("__ts", "")
            if correlation.startswith(b"get "):
                self.read[correlation[4:]] = (packet.payload, version or None)
            else:
                answer = (packet.payload, version)
                assert self.answers.setdefault(int(correlation), answer) == answer, "another answer to the same request"
        super().receive(packet)

    async def get(self, number: int) -> tuple[bytes, str | None]:
        """Value and version of the key of a number, as they are now."""
        key = self.key(number)
        self.read.pop(key, None)
        self.send(self._request(Get(key).encode(), b"get " + key, 60_000 + 2 + number % 5000, dup=False))
        deadline = time.monotonic() + TIMEOUT_S
        while key not in self.read:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), deadline - time.monotonic())
        return self.read[key]


async def retained(server: Address) -> dict[str, int]:
    """What a new subscriber gets, by topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        decoder = PacketDecoder(version=5, max_packet_size=1 << 20)
        writer.write(encode(Connect("checker"), 5) + encode(Subscribe(1, (Subscription("r/#", 0),)), 5))
        # A message to oneself comes behind the retained ones.
        found: dict[str, int] = {}
        while True:
            data = await asyncio.wait_for(reader.read(65536), TIMEOUT_S)
            if not data:
                raise ConnectionAbortedError("the server has closed the connection")
            for packet in decoder.feed(data):
                if isinstance(packet, Suback):
                    writer.write(encode(Subscribe(2, (Subscription("end", 0),)), 5))
                elif isinstance(packet, Publish) and packet.topic == "end":
                    return found
                elif isinstance(packet, Publish):
                    found[packet.topic] = int(packet.payload)
                if isinstance(packet, Suback) and packet.packet_id == 2:
                    writer.write(encode(Publish("end"), 5))
    finally:
        writer.transport.abort()
