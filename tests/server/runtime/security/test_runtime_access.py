"""The server's access rules, as bare sockets and other people's clients see them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from support.server_clients import Paho, Wire
from support.waiting import eventually

from statestore_client.errors import SettingsError
from statestore_client.mqtt.packets import (
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    PublishProperties,
    Suback,
    Subscribe,
    Subscription,
)
from statestore_client.server import AccessRules, EmbeddedServer
from statestore_client.wire.protocol import COMMAND_TOPIC, response_topic

#: Reason codes as the standard numbers them (MQTT 5.0, 2.4).
NOT_AUTHORIZED, ADMINISTRATIVE = 0x87, 0x98

RULES = """
user pump
  read a*
  write a1
  watch a1
  publish out/#
  subscribe in/+
"""
GET, SET, WATCH = (
    b"*2\r\n$3\r\nGET\r\n$2\r\n%s\r\n",
    b"*3\r\n$3\r\nSET\r\n$2\r\n%s\r\n$1\r\nx\r\n",
    b"*2\r\n$9\r\nKEYNOTIFY\r\n$2\r\n%s\r\n",
)
DEL, SCAN = b"*2\r\n$3\r\nDEL\r\n$2\r\n%s\r\n", b"*2\r\n$4\r\nSCAN\r\n$2\r\n%s\r\n"


def command(wire: Wire, payload: bytes, *, answer_on: str | None = None, client_id: str = "c") -> bytes:
    """Send a state store command and return its answer."""
    topic = answer_on or response_topic(client_id)
    now = f"{int(time.time() * 1000):015d}:00000:{client_id}"
    properties = PublishProperties(response_topic=topic, correlation_data=payload, user_properties=(("__ts", now),))
    wire.send(Publish(COMMAND_TOPIC, payload, 1, packet_id=9, properties=properties))
    while not isinstance(packet := wire.receive(), Publish):
        assert isinstance(packet, Puback)
    return packet.payload


@pytest.mark.parametrize("dialect", ["service", "document"])
@pytest.mark.attack("MQTT", "commands, topics and answers beyond the access rules")
def test_commands_under_rules(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    """A forbidden command is answered ``not authorized`` in the document's words, is logged, and changes nothing."""
    refusal = {"service": b"-ERR not authorized\r\n", "document": b"-ERR not authorized"}[dialect]
    passwords = {"pump": "x", "boss": "y"}
    rules = AccessRules.parse(RULES + "user boss\n  read *\n  write *\n")
    with (
        EmbeddedServer(dialect=dialect, passwords=passwords, acl=rules) as server,
        Wire(server) as pump,
        Wire(server) as boss,
    ):
        pump.connect("c", username="pump", password=b"x")
        boss.connect("b", username="boss", password=b"y")
        for wire, client_id in ((pump, "c"), (boss, "b")):
            wire.send(Subscribe(1, (Subscription(response_topic(client_id), 1),)))
            assert wire.receive() == Suback(1, (1,))
        assert command(boss, SET % b"a2", client_id="b").startswith(b"+OK")
        assert command(pump, SET % b"a1").startswith(b"+OK")
        assert command(pump, GET % b"a1") == b"$1\r\nx\r\n"
        assert command(pump, WATCH % b"a1").startswith(b"+OK")
        assert command(pump, SCAN % b"a*").startswith(b"*")
        with caplog.at_level(logging.WARNING, "statestore_client.server"):
            assert command(pump, SET % b"a2") == refusal
            assert command(pump, DEL % b"a2") == refusal
            assert command(pump, GET % b"b1") == refusal
            assert command(pump, SCAN % b"b*") == refusal
            notify_refusal = refusal if dialect == "service" else b"-ERR: not authorized\r\n"
            assert command(pump, WATCH % b"a2") == notify_refusal
            eventually(lambda: len(caplog.records) == 5, "all are logged")
        lines = [record.fields for record in caplog.records]
        assert {line.pop("peer").partition(":")[0] for line in lines} == {"127.0.0.1"}
        assert lines == [
            {"client": "c", "user": "pump", "action": action, "what": what}
            for action, what in [("write", "a2"), ("write", "a2"), ("read", "b1"), ("scan", "b*"), ("watch", "a2")]
        ]
        assert command(boss, GET % b"a2", client_id="b") == b"$1\r\nx\r\n"
        assert command(boss, GET % b"b1", client_id="b") == b"$-1\r\n"


@pytest.mark.attack("MQTT", "commands, topics and answers beyond the access rules")
def test_an_answer_may_not_go_where_its_client_may_not_publish() -> None:
    """A client whose response topic it may not publish to is disconnected: the server would publish on its behalf."""
    rules = AccessRules.parse("everybody\n  read *\n  write *\n  publish out/#\n  subscribe #\n")
    with EmbeddedServer(acl=rules) as server, Wire(server) as wire, Wire(server) as valve:
        valve.connect("valve")
        valve.send(Subscribe(1, (Subscription("valves/#", 1), Subscription("out/#", 1))))
        valve.receive()
        wire.connect("c")
        wire.send(Subscribe(1, (Subscription("out/+", 1),)))
        wire.receive()
        assert command(wire, SET % b"aa", answer_on="out/answers").startswith(b"+OK")
        properties = PublishProperties(response_topic="valves/1", correlation_data=b"1")
        wire.send(Publish(COMMAND_TOPIC, GET % b"aa", 1, packet_id=5, properties=properties))
        assert wire.receive() == Puback(5)
        disconnect = wire.receive()
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, NOT_AUTHORIZED)
        message = valve.receive()
        assert isinstance(message, Publish)
        assert message.topic == "out/answers"
        valve.send(Pingreq())
        while not isinstance(packet := valve.receive(), Pingresp):
            assert isinstance(packet, Publish)
            assert packet.topic == "out/answers"


def test_topics_under_rules_for_other_clients() -> None:
    """paho gets 0x87 in SUBACK, and its forbidden message arrives nowhere."""
    rules = AccessRules.parse("everybody\n  publish out/#\n  subscribe #\n")
    with EmbeddedServer(acl=rules) as server, Paho(server, "reader") as reader, Paho(server, "writer") as writer:
        assert [code.value for code in reader.subscribe([("#", 0), ("$SYS/#", 0)])] == [0, NOT_AUTHORIZED]
        writer.publish("secret", b"1", 1)
        writer.publish("out/x", b"2", 1)
        assert reader.message().topic == "out/x"


def test_rules_change_while_the_server_runs(tmp_path: Path) -> None:
    """Within a second of a change, affected clients are disconnected with 0x98 and come back under the new rules."""
    path = tmp_path / "rules"
    path.write_text("everybody\n  subscribe in/#\n")
    with EmbeddedServer(acl=path) as server, Wire(server) as wire:
        wire.connect("c")
        wire.send(Subscribe(1, (Subscription("in/x", 1),)))
        assert wire.receive() == Suback(1, (1,))
        path.write_text("everybody\n  subscribe in/#\n  nonsense\n")
        path.write_text("everybody\n  subscribe in/y\n")
        disconnect = wire.receive()
        assert (type(disconnect), disconnect.reason_code) == (Disconnect, ADMINISTRATIVE)
        with Wire(server) as again:
            again.connect("c")
            again.send(Subscribe(1, (Subscription("in/x", 1),)))
            assert again.receive() == Suback(1, (NOT_AUTHORIZED,))


@pytest.mark.parametrize("option", ["passwords", "acl"])
def test_files_with_mistakes_at_the_start(tmp_path: Path, option: str) -> None:
    """With a mistake in its file the server does not start, and the message names file and line."""
    path = tmp_path / "file"
    path.write_text("\nnonsense")
    with pytest.raises(SettingsError, match=r"file, line 2"), EmbeddedServer(**{option: path}):
        pass
