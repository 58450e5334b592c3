"""What real clients see: paho and mosquitto's programs against a running server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from support.server_clients import Paho, Wire, needs_mosquitto
from support.waiting import eventually

from statestore_client.server import EmbeddedServer


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_of_every_qos(server: EmbeddedServer, version: int, qos: int) -> None:
    """A hundred messages of every QoS arrive once, in order."""
    with Paho(server, "reader", version=version) as reader, Paho(server, "writer", version=version) as writer:
        reader.subscribe("t/#", 2)
        for i in range(100):
            writer.client.publish("t/x", str(i).encode(), qos)
        got = [reader.message() for _ in range(100)]
        assert [int(m.payload) for m in got] == list(range(100))
        assert {m.qos for m in got} == {qos}


def test_a_large_message(server: EmbeddedServer) -> None:
    """A message of five megabytes arrives whole."""
    payload = bytes(range(256)) * 20_000
    with Paho(server, "reader") as reader, Paho(server, "writer") as writer:
        reader.subscribe("big", 1)
        writer.publish("big", payload, 1)
        assert reader.message().payload == payload


def test_a_will_after_a_broken_connection(server: EmbeddedServer) -> None:
    """A reset and a silent end send the will, and DISCONNECT does not."""
    with Paho(server, "watcher") as watcher:
        watcher.subscribe("wills/#", 1)
        for number, end in enumerate(["reset", "close"]):
            client = Wire(server, version=4)
            client.send(
                bytes.fromhex("101c00044d51545404060000" + "000163" + "0007") + b"wills/%d" % number + b"\0\4gone"
            )
            assert client.receive() is not None
            client.reset() if end == "reset" else client.sock.close()
            message = watcher.message()
            assert (message.topic, message.payload) == (f"wills/{number}", b"gone")
        with Paho(server, "polite", will={"topic": "wills/polite", "payload": b"x"}):
            pass
        watcher.publish("wills/last", b"last", 1)
        assert watcher.message().topic == "wills/last"


def test_a_session_is_resumed(server: EmbeddedServer) -> None:
    """After a reconnect the messages sent meanwhile arrive."""
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 60
    with Paho(server, "sleeper", properties=properties, clean_start=True) as sleeper:
        assert not sleeper.flags.session_present
        sleeper.subscribe("t", 1)
    with Paho(server, "writer") as writer:
        writer.publish("t", b"meanwhile", 1)
    with Paho(server, "sleeper", properties=properties, clean_start=False) as sleeper:
        assert sleeper.flags.session_present
        assert sleeper.message().payload == b"meanwhile"


@pytest.mark.parametrize("dialect", ["service", "document"])
def test_the_state_store_is_inside(dialect: str) -> None:
    """A SET through paho is answered on its response topic in the chosen dialect."""
    with EmbeddedServer(dialect=dialect) as server, Paho(server, "c1") as client:
        client.subscribe("clients/c1/reply", 1)
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = "clients/c1/reply"
        properties.CorrelationData = b"0123456789abcdef"
        properties.MessageExpiryInterval = 10
        properties.UserProperty = [("__ts", "000001696374425:00000:c1")]
        client.client.publish(
            "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
            b"*3\r\n$3\r\nSET\r\n$7\r\nSETKEY2\r\n$6\r\nVALUE5\r\n",
            1,
            properties=properties,
        )
        reply = client.message()
        assert reply.payload == b"+OK\r\n"
        names = [name for name, _ in reply.properties.UserProperty]
        assert ("__stat" in names) is (dialect == "service")


def test_a_publisher_that_leaves_loses_nothing(server: EmbeddedServer) -> None:
    """Acknowledged messages are delivered although their publisher hung up right after."""
    with Paho(server, "reader") as reader:
        reader.subscribe("t", 1)
        with Wire(server, version=4) as writer:
            writer.connect("writer")
            body = b"".join(
                b"\x32\x08\0\1t" + number.to_bytes(2, "big") + b"%03d" % (number % 1000) for number in range(1, 1001)
            )
            writer.send(body)
            for _ in range(1000):
                writer.receive()
            writer.reset()
        assert [int(reader.message().payload) for _ in range(1000)] == [n % 1000 for n in range(1, 1001)]


# -- mosquitto's programs ---------------------------------------------------------------------------------------------


@needs_mosquitto
@pytest.mark.interop
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub(server: EmbeddedServer, version: str, qos: str) -> None:
    """mosquitto_sub prints a line that mosquitto_pub sent."""
    common = ["-h", "127.0.0.1", "-p", str(server.port), "-V", version, "-q", qos, "-t", "some/topic"]
    with Paho(server, "watch") as watch:
        watch.subscribe("some/+", 0)
        with subprocess.Popen(
            ["mosquitto_sub", *common, "-C", "1", "-W", "10"], stdout=subprocess.PIPE, text=True
        ) as reader:
            while reader.poll() is None:  # it does not tell when it has subscribed
                subprocess.run(["mosquitto_pub", *common, "-m", "hello"], check=True, timeout=10)
            assert reader.stdout is not None
            assert (reader.returncode, reader.stdout.read()) == (0, "hello\n")
        assert watch.message().payload == b"hello"


@needs_mosquitto
@pytest.mark.interop
def test_mosquitto_sub_reads_retained_messages(server: EmbeddedServer) -> None:
    """mosquitto_sub reads a thousand retained messages and then leaves."""
    with Paho(server, "writer") as writer:
        for i in range(1000):
            writer.client.publish(f"r/{i}", str(i).encode(), 1, retain=True)
        eventually(lambda: server.counters.received_messages == 1000, "all are retained")
    run = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(server.port), "-t", "r/+", "-q", "1", "-C", "1000", "-W", "10"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert sorted(int(line) for line in run.stdout.split()) == list(range(1000))
