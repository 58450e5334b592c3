"""What :mod:`~statestore_client.pytest_plugin` has for pytest-asyncio; loaded only where that is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    from statestore_client import AsyncStateStoreClient
    from statestore_client.server import EmbeddedServer

__all__: list[str] = []


@pytest_asyncio.fixture  # and not pytest's own: only this one works in pytest-asyncio's strict mode, too
async def _statestore_asyncio_client(statestore_server: EmbeddedServer) -> AsyncIterator[AsyncStateStoreClient]:
    from statestore_client import AsyncStateStoreClient  # loaded only by tests that ask for it

    async with AsyncStateStoreClient(statestore_server.url) as client:
        yield client
