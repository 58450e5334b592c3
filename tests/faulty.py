"""A server on which things go wrong on purpose, and a client of it: fixtures and helpers for the tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from runtime_tools import Wire

from statestore_client.mqtt.packets import Connack, ConnectProperties
from statestore_client.server import EmbeddedServer

NOBODY = 0x10  # the PUBACK of a message that nobody subscribed to


@pytest.fixture(name="server")
def faulty_server() -> Iterator[EmbeddedServer]:
    """With faults."""
    with EmbeddedServer(faults=True) as running:
        yield running


@pytest.fixture(name="wire")
def connected_wire(server: EmbeddedServer) -> Iterator[Wire]:
    """A client with a session that lasts."""
    with Wire(server) as connected:
        connected.connect("c", properties=ConnectProperties(session_expiry=600))
        yield connected


def is_cut(wire: Wire) -> bool:
    """Whether the link breaks without a word."""
    try:
        return wire.rest() == []
    except ConnectionError:
        return True


def resumed(server: EmbeddedServer) -> Wire:
    wire = Wire(server)
    connack = wire.connect("c", clean_start=False, properties=ConnectProperties(session_expiry=600))
    assert isinstance(connack, Connack)
    assert connack.session_present
    return wire
