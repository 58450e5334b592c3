"""Faults that clients ask for themselves, with user properties of their packets."""

from __future__ import annotations

import attrs
import pytest
from support.server_clients import NOBODY, Wire, connected_wire, faulty_server, is_cut, resumed
from support.waiting import eventually

from statestore_client.mqtt.packets import (
    Connack,
    Connect,
    ConnectProperties,
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
    SubscribeProperties,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from statestore_client.server import EmbeddedServer

__all__ = ["connected_wire", "faulty_server"]


def _with(*pairs: str) -> Publish:
    """A message with user properties."""
    properties = PublishProperties(user_properties=tuple(zip(pairs[::2], pairs[1::2], strict=True)))
    return Publish("t", b"x", 1, packet_id=1, properties=properties)


def test_a_client_asks_to_be_disconnected(server: EmbeddedServer, wire: Wire) -> None:
    """A client is disconnected with the code that it asks for; once, if it names its request, so that a retry
    succeeds."""
    message = _with("fault:disconnect", "137", "fault:requestid", "r1")
    wire.send(message)
    assert wire.rest() == [Disconnect(0x89)]
    assert server.messages == []
    with resumed(server) as back:
        back.send(message)
        assert back.receive() == Puback(1, NOBODY)
        server.clear()
    with Wire(server) as wire:
        wire.connect("c")
        wire.send(message)
        assert wire.rest() == [Disconnect(0x89)]


def test_a_client_asks_to_be_disconnected_later(server: EmbeddedServer, wire: Wire) -> None:
    """A client that asks to be disconnected later loses that message at once, and is served until then."""
    wire.send(_with("fault:disconnect", "0x97", "fault:delay", "30"), Pingreq())
    assert wire.receive() == Pingresp()
    server.clock.advance(30)
    assert wire.rest() == [Disconnect(0x97)]
    assert server.messages == []


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (_with("fault:rejectpublish", "151"), Puback(1, 0x97)),
        (
            Subscribe(7, (Subscription("a"),), SubscribeProperties(None, (("fault:rejectsubscribe", "135"),))),
            Suback(7, (0x87,)),
        ),
        (
            Unsubscribe(7, ("a",), SubscribeProperties(user_properties=(("fault:rejectunsubscribe", "0x83"),))),
            Unsuback(7, (0x83,)),
        ),
    ],
    ids=["publish", "subscribe", "unsubscribe"],
)
def test_a_client_asks_to_be_refused(server: EmbeddedServer, wire: Wire, packet: Packet, answer: Packet) -> None:
    """A client is refused with the code that it asks for; the names are those of the official SDKs' tests."""
    wire.send(packet)
    assert wire.receive() == answer


def test_a_client_asks_for_a_refused_connect(server: EmbeddedServer) -> None:
    """A refused CONNECT that names the same request a second time is accepted."""
    wish = ConnectProperties(user_properties=(("fault:rejectconnect", "136"), ("fault:requestid", "r")))
    codes = []
    for _ in range(2):
        with Wire(server) as wire:
            connack = wire.connect("c", properties=wish)
            assert isinstance(connack, Connack)
            codes.append(connack.reason_code)
    assert codes == [0x88, 0]


def test_a_client_asks_for_a_delay(server: EmbeddedServer, wire: Wire) -> None:
    """A delay alone holds its packet back."""
    wire.send(_with("fault:delay", "60"))
    wire.send(Publish("t", b"behind"))
    server.clock.advance(0)
    assert server.messages == []
    eventually(lambda: _jumped(server), "both arrive")
    assert [message.text for message in server.messages] == ["x", "behind"]


def _jumped(server: EmbeddedServer) -> bool:
    server.clock.advance(60, keep_alive=False)
    return len(server.messages) == 2


def test_a_client_asks_for_a_broken_link(server: EmbeddedServer, wire: Wire) -> None:
    """A link that a client asks to be broken ends without a word or an effect, and the retry succeeds."""
    message = _with("fault:drop", "1", "fault:requestid", "r")
    wire.send(message)
    assert is_cut(wire)
    assert server.messages == []
    with resumed(server) as back:
        back.send(message)
        assert back.receive() == Puback(1, NOBODY)


def test_a_client_asks_for_a_duplicate(server: EmbeddedServer, wire: Wire) -> None:
    """A duplicated packet is processed and answered twice."""
    wire.send(_with("fault:duplicate", "1"))
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY)] * 2
    assert [message.topic for message in server.messages] == ["t", "t"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_asks_for_a_lost_acknowledgement(server: EmbeddedServer, wire: Wire, qos: int) -> None:
    """The acknowledgement of an accepted message is lost once, and no other one."""
    message = attrs.evolve(_with("fault:withholdanswer", "1", "fault:requestid", "r"), qos=qos)
    wire.send(message, Publish("other", b"y", 1, packet_id=2), Pingreq())
    assert [wire.receive() for _ in range(2)] == [Puback(2, NOBODY), Pingresp()]
    assert [message.topic for message in server.messages] == ["t", "other"]
    wire.send(attrs.evolve(message, dup=True))
    assert wire.receive() == (Puback(1, NOBODY) if qos == 1 else Pubrec(1))


def test_a_client_asks_for_a_late_acknowledgement(server: EmbeddedServer, wire: Wire) -> None:
    """A message takes effect at once while its PUBACK comes a minute later, with all that follows it."""
    wire.send(_with("fault:delayanswer", "60"), Pingreq())
    assert server.wait_for("t").text == "x"
    server.clock.advance(59, keep_alive=False)
    wire.expect_nothing()
    server.clock.advance(1)
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY), Pingresp()]


def test_a_client_asks_for_a_link_that_breaks_in_an_acknowledgement(server: EmbeddedServer, wire: Wire) -> None:
    """A link breaks within an acknowledgement. The PUBACK of a message that nobody gets is 40 03 00 01 10."""
    wire.send(_with("fault:cutanswer", "3"))
    received = b""
    while data := wire.sock.recv(100):
        received += data
    assert received == bytes.fromhex("40 03 00")
    assert len(server.messages) == 1


def test_a_client_asks_for_other_answers(server: EmbeddedServer) -> None:
    """CONNACK, SUBACK and UNSUBACK can be asked for faults too, and an unanswered packet leaves none for the next
    one."""
    wish = (("fault:withholdanswer", "1"),)
    with Wire(server) as wire:
        wire.send(Connect("d", properties=ConnectProperties(user_properties=wish)), Pingreq())
        assert wire.receive() == Pingresp()
        asked = SubscribeProperties(user_properties=wish)
        wire.send(Subscribe(7, (Subscription("a"),), asked), Unsubscribe(8, ("b",), asked), Pingreq())
        assert wire.receive() == Pingresp()
        assert list(server.sessions["d"].subscriptions) == ["a"]
        server.faults.withhold("PUBLISH", client_id="d")
        wire.send(_with("fault:withholdanswer", "1"), Publish("t", b"x", 1, packet_id=1))
        assert wire.receive() == Puback(1, NOBODY)


def test_a_packet_that_suffers_a_fault_has_wishes_for_its_answer_all_the_same(
    server: EmbeddedServer, wire: Wire
) -> None:
    """A packet with a fault of its own has its own wishes for its answer, not those of a refused one with its
    identifier."""
    server.faults.duplicate("PUBLISH", by="client")
    wire.send(_with("fault:withholdanswer", "1"), Pingreq())
    assert [wire.receive() for _ in range(2)] == [Puback(1, NOBODY), Pingresp()]
    wire.send(_with("fault:withholdanswer", "1", "fault:rejectpublish", "151"))
    assert wire.receive() == Puback(1, 0x97)
    server.faults.duplicate("PUBLISH", by="client")
    wire.send(_with(), Pingreq())
    assert [wire.receive() for _ in range(3)] == [Puback(1, NOBODY), Puback(1, NOBODY), Pingresp()]


@pytest.mark.parametrize(
    "pairs",
    [
        ("fault:disconnect", "many"),
        ("fault:disconnect", "16"),
        ("fault:rejectpublish", "141"),
        ("fault:rejectsubscribe", "135"),
        ("fault:delay", "-1"),
        ("fault:delay", "nan"),
        ("fault:delay", "1e9"),
        ("fault:requestid", "r"),
        ("fault:drop", "yes"),
        ("fault:duplicate", "0"),
        ("fault:withholdanswer", "PUBACK"),
        ("fault:delayanswer", "-1"),
        ("fault:cutanswer", "-1"),
        ("fault:cutanswer", "half"),
    ],
)
def test_wishes_that_make_no_sense_are_ignored(server: EmbeddedServer, wire: Wire, pairs: tuple[str, str]) -> None:
    """A packet with wishes that make no sense is served."""
    wire.send(_with(*pairs))
    assert wire.receive() == Puback(1, NOBODY)


def test_a_server_without_faults_has_none() -> None:
    """A server without faults accepts none by API or by user property."""
    with EmbeddedServer() as server:
        with pytest.raises(RuntimeError, match="faults=True"):
            _ = server.faults
        with Wire(server) as wire:
            wire.connect("c")
            wire.send(_with("fault:disconnect", "137"))
            assert wire.receive() == Puback(1, NOBODY)
