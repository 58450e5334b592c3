"""A server that tells what happened to it, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recording_server import RecordingServer

from statestore_client import StateStoreClient


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    """A server of the test's own."""
    with RecordingServer() as running:
        yield running


@pytest.fixture
def store(server: RecordingServer) -> Iterator[StateStoreClient]:
    """A client of that server."""
    with StateStoreClient(server.url, client_id="test") as client:
        yield client
