"""What :mod:`~statestore_client.pytest_plugin` has for pytest-asyncio; loaded only where that is installed.

A fixture of pytest-asyncio names one loop when it is made, and tests choose theirs one by one. So there is a client for
each loop that a test can run in, and a test gets that of its own: a client works in the loop that opened it alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import pytest
import pytest_asyncio

from statestore_client.pytest_plugin import admission, client_options

if TYPE_CHECKING:
    from statestore_client import AsyncStateStoreClient
    from statestore_client.server import EmbeddedServer

__all__: list[str] = []

_NAME: Final = "_statestore_asyncio_client_{}"


@pytest.fixture
def _statestore_asyncio_client(request: pytest.FixtureRequest) -> AsyncStateStoreClient:
    return cast("AsyncStateStoreClient", request.getfixturevalue(_NAME.format(_loop_scope(request))))


def _loop_scope(request: pytest.FixtureRequest) -> str:
    """Which loop the test runs in, as its marker or the configuration says."""
    marker = request.node.get_closest_marker("asyncio")
    named = None if marker is None else marker.kwargs.get("loop_scope")
    try:
        return str(named or request.config.getini("asyncio_default_test_loop_scope") or "function")
    except ValueError:  # pytest-asyncio before 1.0 does not have it
        return "function"


def _client_in(loop_scope: Literal["function", "class", "module", "package", "session"]) -> Any:
    # Not with pytest's own decorator: only this one works in pytest-asyncio's strict mode, too.
    @pytest_asyncio.fixture(loop_scope=loop_scope, name=_NAME.format(loop_scope))
    async def client(
        request: pytest.FixtureRequest, statestore_server: EmbeddedServer
    ) -> AsyncIterator[AsyncStateStoreClient]:
        from statestore_client import AsyncStateStoreClient  # loaded only by tests that ask for it

        opened = AsyncStateStoreClient(statestore_server.url, **client_options(request, statestore_server))
        async with AsyncExitStack() as stack:
            with admission():
                await stack.enter_async_context(opened)
            yield opened

    return client


_of_function, _of_class, _of_module = _client_in("function"), _client_in("class"), _client_in("module")
_of_package, _of_session = _client_in("package"), _client_in("session")
