"""Flow control and resending of the client, in the bytes that a broker sees: the machine of ``core`` decides, and its
connections, one after the other, say it in MQTT (MQTT 5.0, 3.3.4, 4.4, 4.6, 4.9).
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore_client.core import actions
from statestore_client.core.connection import ClientMachine
from statestore_client.errors import ConnectionLostError, StateStoreError
from statestore_client.mqtt.client_connection import ClientConnection, ClientSession
from statestore_client.mqtt.packets import (
    MQTT_5_0,
    Connack,
    ConnackProperties,
    PacketDecoder,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    encode,
)
from statestore_client.settings import ConnectionSettings
from statestore_client.wire.commands import Set
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import Closed

#: State store protocol; "c" is the client id.
RESPONSES = "clients/c/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response"
#: The first byte of a PUBLISH with QoS 1, without and with DUP.
NEW, AGAIN = False, True


class Observer:
    """Takes every event."""

    def push(self, _event: object) -> bool:
        return True


class Connection(ClientConnection):
    __slots__ = ()

    def flush(self) -> None:
        """What is queued is looked at when everything is carried out."""


class Waiter:
    """A caller, whose outcomes are kept under its name."""

    def __init__(self, outcomes: dict[object, list[object]], name: object) -> None:
        self._outcomes = outcomes
        self._name = name

    def resolve(self, result: object) -> None:
        self._outcomes.setdefault(self._name, []).append(result)

    reject = resolve


class Client:
    """A client without a socket: what it sends is in :attr:`sent`, one packet after the other."""

    def __init__(self, *, max_in_flight: int = 64) -> None:
        self.machine = ClientMachine(
            "c",
            clock=HybridLogicalClock("c", guard=nullcontext()),
            random=Random(1),
            max_in_flight=max_in_flight,
            request_timeout=10.0,
            clean_start=False,
        )
        self.time = 1000.0
        self.outcomes: dict[object, list[object]] = {}
        self.subscribing: list[Subscribe] = []
        self.sent: list[Publish] = []  # on this connection
        self._session = ClientSession()
        self.connection = self._new_connection()
        self._decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=1_000_000)

    @property
    def now(self) -> Instant:
        return Instant(self.time, round(self.time * 1000))

    def _new_connection(self) -> Connection:
        return Connection(ConnectionSettings(host="h"), "c", session=self._session)

    def _run(self) -> None:
        while True:
            wanted, events = self.machine.take_actions(), self.connection.take_events()
            for action in wanted:
                self._perform(action)
            self.machine.receive(events, self.now)
            if not wanted and not events:
                break
        for packet in self._decoder.feed(b"".join(self.connection.outbox)):
            if isinstance(packet, Publish):
                self.sent.append(packet)
            elif isinstance(packet, Subscribe):
                self.subscribing.append(packet)
        self.connection.outbox.clear()

    def _perform(self, action: actions.Action) -> None:
        connection = self.connection
        match action:
            case actions.Open(clean_start=clean_start):
                self.connection = self.machine.output.connection = self._new_connection()
                self._decoder = PacketDecoder(version=MQTT_5_0, max_packet_size=1_000_000)
                self.sent.clear()
                self.connection.connect(self.time, clean_start=clean_start, password=None)
            case actions.Subscribe(subscribe_id=subscribe_id, topic_filters=topic_filters):
                connection.subscribe(subscribe_id, topic_filters)

    # -- the user's side -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.machine.open(self.waiter("open"))
        self._run()

    def set(self, number: int) -> None:
        self.submit(Set(b"k", b"%d" % number), number)
        self._run()

    def submit(self, command: Set, name: object) -> None:
        self.machine.request_table.submit(command, self.waiter(name), self.now, timeout=None)

    def waiter(self, name: object) -> Waiter:
        return Waiter(self.outcomes, name)

    # -- the broker's side ---------------------------------------------------------------------------------------------

    def connected(self, receive_maximum: int, *, session_present: bool = True) -> None:
        """CONNACK, and SUBACK for each SUBSCRIBE."""
        properties = ConnackProperties(receive_maximum=receive_maximum)
        self.receive(encode(Connack(session_present, 0, properties)))
        self.subacks()

    def subacks(self) -> None:
        while self.subscribing:
            packet = self.subscribing.pop()
            self.receive(encode(Suback(packet.packet_id, (1,) * len(packet.subscriptions))))

    def puback(self, packet_id: int) -> None:
        self.receive(encode(Puback(packet_id)))

    def reply(self, request: Publish) -> None:
        """The state store's answer to a SET."""
        properties = PublishProperties(correlation_data=request.properties.correlation_data)
        self.receive(encode(Publish(RESPONSES, b"+OK\r\n", qos=1, packet_id=1, properties=properties)))

    def receive(self, data: bytes) -> None:
        self.connection.receive(data, self.time)
        self._run()

    def cut(self) -> None:
        """The connection breaks, and the next one begins as soon as the machine wants it to."""
        self.connection.end(Closed(ConnectionLostError("the cable was cut")))
        self._run()
        deadline = self.machine.next_deadline()
        assert deadline is not None
        self.time = max(self.time, deadline)
        self.machine.tick(self.now)
        self._run()


def value(packet: Publish) -> int:
    """The number that this SET writes."""
    return int(packet.payload.rsplit(b"\r\n", 2)[1])


def seen(client: Client) -> list[tuple[bool, int, int]]:
    """DUP, packet identifier and value of each publication since the last look."""
    packets = [(packet.dup, packet.packet_id, value(packet)) for packet in client.sent]
    client.sent.clear()
    return packets


def connected(receive_maximum: int, **options: int) -> Client:
    client = Client(**options)
    client.open()
    client.connected(receive_maximum, session_present=False)
    return client


def test_the_brokers_window_holds() -> None:
    """With Receive Maximum 2 the third publication waits for the first PUBACK, and repetitions come before it."""
    client = connected(2)
    for number in range(4):
        client.set(number)
    assert seen(client) == [(NEW, 2, 0), (NEW, 3, 1)]  # SUBSCRIBE had 1
    client.puback(3)
    assert seen(client) == [(NEW, 4, 2)]
    client.cut()
    client.connected(1)
    assert seen(client) == [(AGAIN, 2, 0)]
    client.puback(2)
    assert seen(client) == [(AGAIN, 4, 2)]
    client.puback(4)
    assert seen(client) == [(NEW, 5, 3)]


@pytest.mark.ci
def test_a_subscription_finds_a_packet_identifier_however_much_is_under_way() -> None:
    """The largest Receive Maximum and the largest window leave a packet identifier for the SUBSCRIBE of the first
    watch."""
    client = connected(65_535, max_in_flight=65_535)
    for number in range(65_535):
        client.submit(Set(b"k", b"v"), number)
    client.machine.watch(b"k", Observer(), client.waiter("watch"), client.now, actions.WatchOptions())
    client._run()
    assert len(client.subscribing) == 1
    assert not client.outcomes.get("watch")
    assert len(client.sent) == 65_520


_steps = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "read", "read", "puback", "puback", "reply", "cut"]),
        st.integers(0, 5),
        st.integers(1, 4),
    ),
    max_size=60,
)


@settings(max_examples=200)  # shared machines pause
@given(_steps, st.integers(1, 4), st.integers(1, 6))
def test_nothing_is_lost_and_the_window_holds(
    steps: list[tuple[str, int, int]], receive_maximum: int, max_in_flight: int
) -> None:
    """Whenever the connection breaks, each request arrives, in the order of the calls apart from repetitions. No more
    are unacknowledged than the broker takes, nor unanswered than the window has, and what is sent again has DUP and its
    old packet identifier.
    """
    client = connected(receive_maximum, max_in_flight=max_in_flight)
    calls = 0
    identifiers: dict[int, int] = {}  # value -> packet identifier
    arrived: list[int] = []
    taken: list[Publish] = []  # on this connection, no PUBACK yet
    owed: dict[int, Publish] = {}  # no answer yet
    read = 0  # of what was sent on this connection

    def take_one() -> None:
        nonlocal read
        packet = client.sent[read]
        read += 1
        number = value(packet)
        assert packet.dup is (number in identifiers)
        assert identifiers.setdefault(number, packet.packet_id) == packet.packet_id
        arrived.append(number)
        taken.append(packet)
        owed.setdefault(number, packet)

    def reply(index: int) -> None:
        client.reply(owed.pop(list(owed)[index % len(owed)]))

    for name, index, size in steps:
        if name == "set":
            client.set(calls)
            calls += 1
        elif name == "read" and read < len(client.sent):
            take_one()
        elif name == "puback" and taken:
            client.puback(taken.pop(index % len(taken)).packet_id)
        elif name == "reply" and owed:
            reply(index)
        elif name == "cut":
            while read < len(client.sent):  # all arrives; what the broker says to it is lost
                take_one()
            taken.clear()
            receive_maximum, read = size, 0
            client.cut()
            client.connected(receive_maximum)
        assert len(client.sent) - read + len(taken) <= receive_maximum
        assert client.machine.request_table.in_flight <= max_in_flight
    while len(client.outcomes) <= calls and (owed or taken or read < len(client.sent)):
        while read < len(client.sent):
            take_one()
        if owed:
            reply(0)
        if taken:
            client.puback(taken.pop(0).packet_id)
    assert list(dict.fromkeys(arrived)) == list(range(calls))
    assert [len(client.outcomes[number]) for number in range(calls)] == [1] * calls
    assert not any(isinstance(client.outcomes[number][0], StateStoreError) for number in range(calls))
