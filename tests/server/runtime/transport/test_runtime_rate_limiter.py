"""Rates: who sends too fast is not read for a while; nothing is lost, nobody else waits."""

from __future__ import annotations

import time

import pytest
from support.server_clients import Paho, Wire
from support.websocket_wire import RawWebSocket

from statestore_client.mqtt.packets import Disconnect, Pingreq, Pingresp, Puback, Publish
from statestore_client.server import BrokerLimits, EmbeddedServer
from statestore_client.server.runtime.fairness import RateLimiter


@pytest.mark.parametrize("is_web", [False, True])
def test_messages_per_second(is_web: bool) -> None:
    """Of a hundred messages in one write twenty come at once and the others at their rate, all in order."""
    with (
        EmbeddedServer(ws_port=0, broker_limits=BrokerLimits(received_messages_per_s=80)) as server,
        Paho(server, "watcher") as watcher,
    ):
        watcher.subscribe("t", 1)
        with Wire(server) if not is_web else RawWebSocket(server._running().endpoints.ws_port or 0) as sender:
            sender.connect("sender")
            began = time.monotonic()
            sender.send(*(Publish("t", b"%d" % number, 1, packet_id=number) for number in range(1, 161)), Pingreq())
            got = [watcher.message().payload for _ in range(160)]
            took_s = time.monotonic() - began
            assert got == [b"%d" % number for number in range(1, 161)]
            assert 0.9 < took_s < 20
            for number in range(1, 161):
                assert sender.receive() == Puback(number)
            assert isinstance(sender.receive(), Pingresp)


@pytest.mark.ci
def test_bytes_per_second() -> None:
    """A client that sends too many bytes fills its own socket, and others are served at once."""
    with (
        EmbeddedServer(broker_limits=BrokerLimits(received_bytes_per_s=400_000)) as server,
        Wire(server) as sender,
        Wire(server) as innocent,
    ):
        sender.connect("sender")
        innocent.connect("innocent")
        began = time.monotonic()
        for _ in range(20):
            sender.send(Publish("t", bytes(100_000)))
        for _ in range(50):
            innocent.send(Pingreq())
            assert isinstance(innocent.receive(), Pingresp)
        assert time.monotonic() - began < 3
        sender.send(Pingreq())
        assert isinstance(sender.receive(), Pingresp)
        assert 3 < time.monotonic() - began < 20


@pytest.mark.ci
def test_resting_is_not_silence() -> None:
    """A client's keep-alive does not run out while its messages wait for the rate, and does afterwards."""
    with EmbeddedServer(broker_limits=BrokerLimits(received_messages_per_s=10)) as server, Wire(server) as sender:
        sender.connect("sender", keep_alive=1)
        sender.send(*(Publish("t", b"", 1, packet_id=number) for number in range(1, 36)))
        for number in range(1, 36):
            assert sender.receive() == Puback(number, 0x10)
        assert isinstance(sender.receive(), Disconnect)


def test_the_books_of_a_meter() -> None:
    """A meter lets a second's worth through at once, then its rate; 0 is no limit."""
    meter = RateLimiter(1000, 0)
    assert meter.wait_s(100.0) < 0
    meter.took_bytes(1000, 100.0)
    assert meter.wait_s(100.0) == 0
    meter.took_bytes(500, 100.0)
    assert meter.wait_s(100.0) == 0.5
    assert len(list(RateLimiter(1000, 0).count(iter([Publish("t")] * 5000), 100.0))) == 5000
    assert len(list(RateLimiter(0, 10).count(iter([Publish("t")] * 5000), 100.0))) == 11
    assert RateLimiter.of(BrokerLimits()) is None
