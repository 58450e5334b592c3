"""A server on which things go wrong on purpose."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.server_clients import NOBODY, Wire, connected_wire, faulty_server, is_cut, resumed
from support.waiting import eventually

from statestore_client import StateStoreClient
from statestore_client.errors import InvalidArgumentError
from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    PublishProperties,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    encode,
)
from statestore_client.server import EmbeddedServer
from statestore_client.server.testing.fault_injector import FaultInjection, _Injector
from statestore_client.server.testing.faults import FaultRequests, Faults
from statestore_client.server.testing.virtual_clock import VirtualClock

__all__ = ["connected_wire", "faulty_server"]


def test_a_dropped_packet_never_gets_to_the_server(server: EmbeddedServer, wire: Wire) -> None:
    """A dropped packet breaks the link before it reaches the server, and the session is there for the next
    connection."""
    fault = server.faults.drop("PUBLISH", skip=1)
    wire.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2), Publish("t", b"3"))
    with suppress(ConnectionError):  # the reset may be quicker than the PUBACK
        assert wire.rest() == [Puback(1, NOBODY)]
    server.wait_for("t")
    assert [message.text for message in server.messages] == ["1"]
    assert fault.hits == 1
    with resumed(server) as back:
        back.send(Publish("t", b"2", 1, dup=True, packet_id=2))
        assert back.receive() == Puback(2, NOBODY)


def test_a_link_can_break_before_an_acknowledgement(server: EmbeddedServer, wire: Wire) -> None:
    """After a link breaks before an acknowledgement, the server has the message."""
    server.faults.drop("PUBACK")
    wire.send(Publish("t", b"1", 1, packet_id=1))
    assert is_cut(wire)
    assert [message.text for message in server.messages] == ["1"]


def test_a_drop_with_a_reason(server: EmbeddedServer, wire: Wire) -> None:
    """A drop with a reason sends DISCONNECT first."""
    server.faults.drop("PINGREQ", reason_code=0x89)
    wire.send(Pingreq())
    assert wire.rest() == [Disconnect(0x89)]


def test_a_withheld_puback(server: EmbeddedServer, wire: Wire) -> None:
    """A PUBACK of one topic is withheld and all else goes on; the message was accepted, so its repetition is another
    one."""
    fault = server.faults.withhold("PUBACK", topic="a/#")
    wire.send(Publish("a/b", b"1", 1, packet_id=1), Publish("b", b"2", 1, packet_id=2), Pingreq())
    assert [wire.receive() for _ in range(2)] == [Puback(2, NOBODY), Pingresp()]
    assert fault.hits == 1
    wire.send(Publish("a/b", b"1", 1, packet_id=3))
    assert wire.receive() == Puback(3, NOBODY)


def test_a_withheld_acknowledgement_of_the_client(server: EmbeddedServer, wire: Wire) -> None:
    """When the client's acknowledgement is withheld, the message comes again on the next connection."""
    server.faults.withhold("PUBACK", by="client", topic="t")
    wire.send(Subscribe(1, (Subscription("t", 1),)))
    wire.receive()
    server.publish("t", "x", qos=1)
    message = wire.receive()
    assert isinstance(message, Publish)
    wire.send(Puback(message.packet_id), Pingreq())
    assert wire.receive() == Pingresp()
    assert server.sessions["c"].in_flight == 1
    wire.send(Disconnect())
    wire.rest()
    with resumed(server) as back:
        again = back.receive()
        assert isinstance(again, Publish)
        assert (again.dup, again.packet_id) == (True, message.packet_id)


def test_a_delayed_packet_comes_when_its_time_is_over(server: EmbeddedServer, wire: Wire) -> None:
    """A delayed packet, and what is behind it, comes in order when its time, by the server's clock, is over."""
    server.faults.delay("PUBACK", 60)
    wire.send(Publish("t", b"1", 1, packet_id=1), Pingreq())
    assert server.wait_for("t").text == "1"
    server.clock.advance(59, keep_alive=False)
    wire.expect_nothing()
    server.clock.advance(1)
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY), Pingresp()]


def test_a_delayed_packet_of_the_client(server: EmbeddedServer, wire: Wire) -> None:
    """A client's delayed packet, and what is behind it, reaches the server later, in real time too."""
    server.faults.delay("PUBLISH", 0.05, topic="slow")
    sent = time.monotonic()
    wire.send(Publish("slow", b"1", 1, packet_id=1), Publish("quick", b"2", 1, packet_id=2))
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY), Puback(2, NOBODY)]
    assert time.monotonic() - sent >= 0.05


def test_a_connection_that_ends_takes_its_delays_along(server: EmbeddedServer, wire: Wire) -> None:
    """The delays of a connection end with it."""
    server.faults.delay("PUBACK", 60)
    wire.send(Publish("t", b"1", 1, packet_id=1))
    server.wait_for("t")
    wire.reset()
    eventually(lambda: not server.sessions["c"].is_connected, "the client is gone")
    server.clock.advance(61)
    assert len(server.messages) == 1


@pytest.mark.parametrize(
    ("packet", "code", "answer"),
    [
        (Publish("t", b"x", 1, packet_id=7), 0x97, Puback(7, 0x97)),
        (Publish("t", b"x", 2, packet_id=7), 0x97, Pubrec(7, 0x97)),
        (Subscribe(7, (Subscription("a"), Subscription("b", 1))), 0x87, Suback(7, (0x87, 0x87))),
        (Unsubscribe(7, ("a",)), 0x83, Unsuback(7, (0x83,))),
        (Publish("t", b"x"), 0x97, Disconnect(0x97)),
    ],
    ids=["qos-1", "qos-2", "subscribe", "unsubscribe", "qos-0"],
)
def test_refused_packets(server: EmbeddedServer, wire: Wire, packet: Packet, code: int, answer: Packet) -> None:
    """A refused packet is answered with the code, and the broker does not get it."""
    server.faults.refuse(type(packet).__name__.upper(), code)
    wire.send(packet)
    assert wire.receive() == answer
    assert server.messages == []
    assert server.sessions["c"].subscriptions == {}


@pytest.mark.parametrize(("version", "code", "answer"), [(5, 0x89, 0x89), (4, 0x88, 0x88), (4, 0x97, 0x88)])
def test_a_refused_connect(server: EmbeddedServer, version: int, code: int, answer: int) -> None:
    """A refused CONNECT gets the code, or the nearest of its version, and the next one is accepted."""
    server.faults.refuse("CONNECT", code, client_id="c")
    with Wire(server, version=version) as wire:
        connack = wire.connect("c")
        assert (type(connack), connack.reason_code) == (Connack, answer)
        assert wire.rest() == []
    with Wire(server, version=version) as wire:
        connack = wire.connect("c")
        assert (type(connack), connack.reason_code) == (Connack, 0)
        assert set(server.sessions) == {"c"}


def test_old_versions_hear_nothing_where_they_have_no_word(server: EmbeddedServer) -> None:
    """Where MQTT 3.1.1 has no code the link breaks, and a SUBACK has 0x80."""
    server.faults.refuse("PUBLISH", 0x97)
    server.faults.refuse("SUBSCRIBE", 0x87)
    with Wire(server, version=4) as wire:
        wire.connect("old")
        wire.send(Subscribe(1, (Subscription("a"),)))
        assert wire.receive() == Suback(1, (0x80,))
        wire.send(Publish("t", b"x", 1, packet_id=1))
        assert is_cut(wire)


def test_a_duplicate(server: EmbeddedServer, wire: Wire) -> None:
    """A duplicate to the client has DUP, and a message from it is processed twice."""
    server.faults.duplicate("PUBLISH", by="server")
    server.faults.duplicate("PUBLISH", client_id="c")
    wire.send(Subscribe(1, (Subscription("t", 1),)))
    wire.receive()
    server.publish("t", "x", qos=1)
    one, two = wire.receive(), wire.receive()
    assert isinstance(one, Publish)
    assert isinstance(two, Publish)
    assert (one.dup, two.dup, one.packet_id == two.packet_id) == (False, True, True)
    wire.send(Publish("other", b"y", 1, packet_id=1))
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY)] * 2
    assert [message.topic for message in server.messages] == ["t", "other", "other"]


def test_a_link_that_breaks_within_a_packet(server: EmbeddedServer, wire: Wire) -> None:
    """A link breaks within a packet after its first bytes. A message on t is 30 03 00 01 74 ..."""
    server.faults.cut(4, "PUBLISH", by="server")
    wire.send(Subscribe(1, (Subscription("t"),)))
    wire.receive()
    server.publish("t", "x")
    received = b""
    while data := wire.sock.recv(100):
        received += data
    assert received == bytes.fromhex("30 05 00 01")


def test_a_link_that_breaks_after_so_many_bytes(server: EmbeddedServer) -> None:
    """A link breaks after the given number of bytes of all that the server, or the client, has sent."""
    server.faults.cut(3, client_id="c")
    with Wire(server) as wire:
        wire.begin("c")
        received = b""
        while data := wire.sock.recv(100):
            received += data
        assert (len(received), received[0], received[2]) == (3, 0x20, 0)
    server.faults.cut(30, by="client")
    with Wire(server) as wire:
        wire.connect("d")
        wire.send(*[Pingreq()] * 20)
        with suppress(ConnectionError):
            assert len(wire.rest()) < 20
    with Wire(server) as wire:
        assert isinstance(wire.connect("c"), Connack)


def test_faults_count_and_can_be_ended(server: EmbeddedServer, wire: Wire) -> None:
    """A fault strikes as often as asked, or until it is cancelled, and the one that was set first comes first."""
    twice = server.faults.refuse("PUBLISH", 0x97, times=2)
    always = server.faults.refuse("PUBLISH", 0x83, times=None)

    def publish() -> int:
        wire.send(Publish("t", b"x", 1, packet_id=1))
        answer = wire.receive()
        assert isinstance(answer, Puback)
        return answer.reason_code

    assert [publish() for _ in range(4)] == [0x97, 0x97, 0x83, 0x83]
    assert (twice.hits, always.hits) == (2, 2)
    always.cancel()
    assert publish() == NOBODY
    server.faults.refuse("PUBLISH", 0x97)
    server.faults.clear()
    assert publish() == NOBODY


def test_a_client_of_ours_survives_all_of_it(server: EmbeddedServer) -> None:
    """Our client survives all faults, and every SET is applied or says that it may not have been."""
    with StateStoreClient(server.url) as store:
        store.set("k", "0")
        server.faults.drop("PUBACK")
        server.faults.drop("PUBLISH", by="server", skip=2)
        server.faults.duplicate("PUBLISH", by="server", times=3)
        server.faults.cut(2, "PUBACK", skip=3)
        for number in range(1, 20):
            store.set("k", str(number))
        assert store.get("k").value == b"19"


def test_packets_in_pieces(server: EmbeddedServer) -> None:
    """A client that sends byte by byte is served."""
    server.faults.refuse("PUBLISH", 0x97)
    with Wire(server) as wire:
        whole = bytes.fromhex("101000044d5154540502003c032100140000")
        for byte in whole + bytes.fromhex("32 08 00 01 74 00 07 00 78 79 c0 00"):
            wire.send(bytes((byte,)))
        assert [type(wire.receive()), wire.receive(), wire.receive()] == [Connack, Puback(7, 0x97), Pingresp()]


def test_a_connect_in_the_middle(server: EmbeddedServer, wire: Wire) -> None:
    """A duplicated CONNECT is a protocol error."""
    server.faults.duplicate("CONNECT")
    with Wire(server) as other:
        other.send(Connect("d"))
        assert isinstance(other.receive(), Connack)
        (goodbye,) = other.rest()
        assert (type(goodbye), goodbye.reason_code) == (Disconnect, 0x82)


@pytest.mark.parametrize(
    ("impossible", "complaint"),
    [
        (lambda faults: faults.drop("PUBAK"), "'PUBAK' is not a packet of MQTT; there are CONNECT, CONNACK, PUBLISH"),
        (lambda faults: faults.withhold("CONNACK", by="client"), "CONNACK"),
        (lambda faults: faults.refuse("PINGREQ", 0x87), "CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE have"),
        (lambda faults: faults.refuse("PUBLISH", 0x8D), "0x8d does not belong"),
        (lambda faults: faults.refuse("CONNECT", 0), "reason code 0x00 refuses nothing"),
        (lambda faults: faults.drop("PUBLISH", reason_code=0x10), "0x10"),
        (lambda faults: faults.drop("PUBLISH", topic="a#"), "a#"),
        (lambda faults: faults.drop("PUBLISH", client="c"), "unknown option client; known: by, client_id, topic,"),
        (lambda faults: faults.drop("PUBLISH", by="broker"), "by must be 'client' or 'server', not 'broker'"),
        (lambda faults: faults.drop("PUBLISH", times=0), "times must be a whole number of at least 1, not 0"),
        (lambda faults: faults.drop("PUBLISH", skip=-1), "skip must be a whole number of at least 0, not -1"),
        (lambda faults: faults.delay("PUBLISH", -1), "a delay must be a number of seconds of at least 0, .* not -1"),
        (lambda faults: faults.cut(-1), "after_bytes must be a whole number of at least 0, not -1"),
    ],
)
def test_a_fault_that_would_never_strike(server: EmbeddedServer, impossible: Any, complaint: str) -> None:
    """A fault that could never strike is refused, because a test with it would prove nothing."""
    with pytest.raises(InvalidArgumentError, match=complaint):
        impossible(server.faults)


# -- bytes pass the place where faults strike unchanged, as long as none does ------------------------------------------

PACKETS = [
    Pingreq(),
    Publish("t", b"x" * 200, 1, packet_id=1),
    Publish("t", b"", properties=PublishProperties(topic_alias=1, user_properties=(("fault:delay", "no"),))),
    Publish("", b"y", properties=PublishProperties(topic_alias=1)),
    Publish("", b"y", properties=PublishProperties(topic_alias=9)),  # of no topic: a mistake that is not ours to find
    Subscribe(1, (Subscription("a/+"),)),
]


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


@given(
    st.lists(st.sampled_from(PACKETS) | st.binary(max_size=12), max_size=12),
    st.lists(st.integers(1, 60), max_size=30),
    st.sampled_from([4, 5]),
)
def test_everything_passes(stream: list[Any], cuts: list[int], version: int) -> None:
    """Without a fault all bytes pass both ways unchanged in pieces of any size; a beginning of a packet waits for its
    end."""
    data = encode(Connect("c", version=version)) + b"".join(
        item if isinstance(item, bytes) else encode(item, version)
        for item in stream
        if version == 5 or isinstance(item, (bytes, Pingreq))
    )
    pipe: Any = Pipe()
    delivered = Pipe()
    injector = _Injector(pipe, delivered.write, FaultInjection(Faults(), FaultRequests(), VirtualClock()))
    for direction, end in ((injector.from_client, delivered), (injector.to_client, pipe)):
        rest = data
        for cut in cuts:
            direction.feed(rest[:cut])
            rest = rest[cut:]
        direction.feed(rest)
        passed = b"".join(end.written)
        assert passed + direction._unfinished == data
