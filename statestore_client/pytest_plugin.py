"""Fixtures for tests of programs that use the state store. Installed with the package; nothing to configure.

``statestore_server``
    A running :class:`~statestore_client.server.EmbeddedServer`, new and empty for each test; give its ``url`` away.
``statestore_client``
    A connected :class:`~statestore_client.StateStoreClient` on that server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from statestore_client import StateStoreClient
    from statestore_client.server import EmbeddedServer

__all__ = ["statestore_client", "statestore_server"]


@pytest.fixture
def statestore_server() -> Iterator[EmbeddedServer]:
    """An embedded server on a free loopback port, with an empty state store."""
    from statestore_client.server import EmbeddedServer  # loaded only by tests that ask for it

    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def statestore_client(statestore_server: EmbeddedServer) -> Iterator[StateStoreClient]:
    """A client connected to ``statestore_server``."""
    from statestore_client import StateStoreClient  # loaded only by tests that ask for it

    with StateStoreClient(statestore_server.url) as client:
        yield client
