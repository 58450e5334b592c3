"""A server with WebSocket, and a bare client of it: fixtures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.server_clients import serves
from support.waiting import eventually
from support.websocket_wire import RawWebSocket

from statestore_client.server import BrokerLimits, EmbeddedServer


@pytest.fixture(name="server")
def web_server() -> Iterator[EmbeddedServer]:
    limits = BrokerLimits(packet_bytes=200_000, connect_timeout_s=1.0, queued_bytes=2_000_000, when_full="refuse")
    with EmbeddedServer(ws_port=0, broker_limits=limits) as running:
        yield running
        assert serves(running)  # whatever happened
        driver = running._running()._driver
        assert driver is not None
        eventually(lambda: driver.unfinished_bytes == 0, "nothing is unfinished")


def ws_port(server: EmbeddedServer) -> int:
    port = server._running().endpoints.ws_port
    assert port is not None
    return port


@pytest.fixture(name="raw")
def raw_websocket(server: EmbeddedServer) -> Iterator[RawWebSocket]:
    with RawWebSocket(ws_port(server)) as web:
        yield web
