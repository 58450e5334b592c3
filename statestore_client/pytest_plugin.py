"""Fixtures for tests of programs that use the state store, or MQTT. Installed with the package; nothing to configure.

``statestore_server``
    A running :class:`~statestore_client.server.EmbeddedServer`, new and empty for each test, on which faults can be
    set; give its ``url`` away.
``statestore_sync_client``
    A connected :class:`~statestore_client.StateStoreClient` on that server.
``statestore_async_client``
    A connected :class:`~statestore_client.AsyncStateStoreClient` on that server, in the event loop of the test: with
    pytest-asyncio, or with the plugin of anyio and its asyncio backend.
``statestore_broker``
    The same server under another name, for programs that need a broker and no state store.
``statestore_session_server``
    A server for all tests of the session, for programs that are started once. It is wiped after each test: keys,
    sessions and messages are gone, and connections end. Open clients for each test: to one that outlives the test
    this is a broker that went away and kept nothing.
``statestore_session_options``
    The arguments for that server, a dictionary: define a fixture of this name and of scope ``session`` in conftest.py.

``@pytest.mark.statestore_server(...)`` takes arguments for the server of a test, and
``@pytest.mark.statestore_client(...)`` settings for the clients that fixtures give it. Without these, a client is the
first user of the server's dictionary of passwords, if it has one, and trusts the server's certificate. When a test
fails, the last messages that its server saw are in the report.
``-p no:statestore_client`` turns all of it off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    from statestore_client import AsyncStateStoreClient, StateStoreClient
    from statestore_client.server import EmbeddedServer

__all__ = [
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "statestore_async_client",
    "statestore_broker",
    "statestore_server",
    "statestore_session_options",
    "statestore_session_server",
    "statestore_sync_client",
]

# -- options of servers and clients, by markers ------------------------------------------------------------------------

#: Settings that say who a client is: who says one of them says it all.
_WHO: Final = frozenset({"username", "password", "password_file", "sat_file", "tls_cert_file"})


def marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """What the closest marker of this name says."""
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return {}
    if marker.args:
        raise pytest.UsageError(f"@pytest.mark.{name} takes options by name only, not {marker.args!r}")
    return dict(marker.kwargs)


def client_options(request: pytest.FixtureRequest, server: EmbeddedServer) -> dict[str, Any]:
    """What the marker of the test says, and the rest of what lets a client in, as far as the server knows it."""
    found = marked(request, "statestore_client")
    known = dict(server.client_options)
    if _WHO & found.keys():
        known = {name: value for name, value in known.items() if name not in _WHO}
    return known | found


@contextmanager
def admission() -> Iterator[None]:
    """A client that is not let in is told how to say who it is."""
    from statestore_client import TransportError  # loaded only by tests that ask for it

    try:
        yield
    except TransportError as error:
        if error.fatal:
            error.add_note("settings for the client of a fixture: @pytest.mark.statestore_client(username=..., ...)")
        raise


# -- fixtures ---------------------------------------------------------------------------------------------------------

#: Messages in the report of a test that failed, and bytes of each payload.
_MOST_REPORTED: Final = 20
_MOST_BYTES: Final = 200

_SESSION_SERVER: Final = pytest.StashKey["EmbeddedServer"]()


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line(
        "markers", "statestore_server(**options): arguments of EmbeddedServer for the server of this test"
    )
    config.addinivalue_line(
        "markers", "statestore_client(**settings): settings of the clients that fixtures give this test"
    )
    if config.pluginmanager.hasplugin("asyncio"):
        # Not before all plugins are loaded: pytest complains of those that are imported before their turn.
        config.pluginmanager.import_plugin("statestore_client.pytest_asyncio_fixtures")


@pytest.fixture
def statestore_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """An embedded server on a free loopback port, empty, with faults enabled."""
    from statestore_client.server import EmbeddedServer  # loaded only by tests that ask for it

    with EmbeddedServer(**({"faults": True} | marked(request, "statestore_server"))) as server:
        yield server


@pytest.fixture(scope="session")
def statestore_session_options() -> dict[str, Any]:
    """Arguments of ``statestore_session_server``; override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def statestore_session_server(
    request: pytest.FixtureRequest, statestore_session_options: dict[str, Any]
) -> Iterator[EmbeddedServer]:
    """One embedded server for all tests, with faults enabled; it is wiped after each test."""
    from statestore_client.server import EmbeddedServer  # loaded only by tests that ask for it

    with EmbeddedServer(**({"faults": True} | statestore_session_options)) as server:
        request.config.stash[_SESSION_SERVER] = server
        yield server
        del request.config.stash[_SESSION_SERVER]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Wipe the server of the session, after the fixtures of the test, which may still need what is there."""
    try:
        yield
    finally:
        server = item.config.stash.get(_SESSION_SERVER, None)
        if server is not None:
            server.clear()


@pytest.fixture
def statestore_broker(statestore_server: EmbeddedServer) -> EmbeddedServer:
    """An MQTT broker on a free loopback port: ``statestore_broker.host``, ``statestore_broker.port``."""
    return statestore_server


@pytest.fixture
def statestore_sync_client(
    request: pytest.FixtureRequest, statestore_server: EmbeddedServer
) -> Iterator[StateStoreClient]:
    """A client connected to ``statestore_server``."""
    from statestore_client import StateStoreClient  # loaded only by tests that ask for it

    client = StateStoreClient(statestore_server.url, **client_options(request, statestore_server))
    with ExitStack() as stack:
        with admission():
            stack.enter_context(client)
        yield client


@pytest.fixture
def statestore_async_client(request: pytest.FixtureRequest) -> AsyncStateStoreClient:
    """A client connected to ``statestore_server``, in the event loop of the test."""
    if "anyio_backend" in request.fixturenames:
        runner = "anyio"
    elif request.config.pluginmanager.hasplugin("asyncio"):
        runner = "asyncio"
    else:
        raise pytest.UsageError(
            "statestore_async_client needs a plugin that runs coroutines: pip install pytest-asyncio, "
            "or mark the test with @pytest.mark.anyio"
        )
    return cast("AsyncStateStoreClient", request.getfixturevalue(f"_statestore_{runner}_client"))


@pytest.fixture
async def _statestore_anyio_client(
    request: pytest.FixtureRequest,
    anyio_backend: object,  # noqa: ARG001 - makes it a fixture of anyio's
    statestore_server: EmbeddedServer,
) -> AsyncIterator[AsyncStateStoreClient]:
    from statestore_client import AsyncStateStoreClient  # loaded only by tests that ask for it

    client = AsyncStateStoreClient(statestore_server.url, **client_options(request, statestore_server))
    async with AsyncExitStack() as stack:
        with admission():
            await stack.enter_async_context(client)
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the servers of a failed test saw."""
    report = yield
    if report.when == "call" and report.failed:
        arguments: dict[str, Any] = getattr(item, "funcargs", {})
        for name in ("statestore_server", "statestore_session_server"):
            if name in arguments:
                report.sections.append(("MQTT messages", _shown(arguments[name])))
    return report


def _shown(server: EmbeddedServer) -> str:
    try:
        messages = server.messages
    except RuntimeError:  # the server of this test records none
        return "not recorded"
    lines = [
        f"{message.client_id or 'the server'}: {message.topic} {message.payload[:_MOST_BYTES]!r}"
        for message in messages[-_MOST_REPORTED:]
    ]
    return "\n".join(lines) or "none"
