"""What :mod:`~statestore_client.pytest_plugin` has for pytest-asyncio; loaded only where that is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from statestore_client.pytest_options import admission, client_options

if TYPE_CHECKING:
    from statestore_client import AsyncStateStoreClient
    from statestore_client.server import EmbeddedServer

__all__: list[str] = []


@pytest_asyncio.fixture  # and not pytest's own: only this one works in pytest-asyncio's strict mode, too
async def _statestore_asyncio_client(
    request: pytest.FixtureRequest, statestore_server: EmbeddedServer
) -> AsyncIterator[AsyncStateStoreClient]:
    from statestore_client import AsyncStateStoreClient  # loaded only by tests that ask for it

    client = AsyncStateStoreClient(statestore_server.url, **client_options(request, statestore_server))
    async with AsyncExitStack() as stack:
        with admission():
            await stack.enter_async_context(client)
        yield client
