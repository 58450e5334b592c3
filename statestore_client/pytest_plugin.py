"""Fixtures for tests of programs that use the state store, or MQTT. Installed with the package; nothing to configure.

``statestore_server``
    A running :class:`~statestore_client.server.EmbeddedServer`, new and empty for each test, on which faults can be
    set; give its ``url`` away.
``statestore_client``
    A connected :class:`~statestore_client.StateStoreClient` on that server.
``mqtt_broker``
    The same server under another name, for programs that need a broker and no state store.

``@pytest.mark.statestore_server(...)`` takes arguments for the server of a test. When a test fails, the last messages
that its server saw are in the report.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from statestore_client import StateStoreClient
    from statestore_client.server import EmbeddedServer

__all__ = [
    "mqtt_broker",
    "pytest_configure",
    "pytest_runtest_makereport",
    "statestore_client",
    "statestore_server",
]

#: Messages in the report of a test that failed, and bytes of each payload.
_MOST_REPORTED: Final = 20
_MOST_BYTES: Final = 200


def pytest_configure(config: pytest.Config) -> None:
    """Announce the marker."""
    config.addinivalue_line(
        "markers", "statestore_server(**options): arguments of EmbeddedServer for the server of this test"
    )


@pytest.fixture
def statestore_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """An embedded server on a free loopback port, empty, with faults enabled."""
    from statestore_client.server import EmbeddedServer  # loaded only by tests that ask for it

    marker = request.node.get_closest_marker("statestore_server")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"@pytest.mark.statestore_server takes options by name only, not {marker.args!r}")
    options = {"faults": True} | (marker.kwargs if marker is not None else {})
    with EmbeddedServer(**options) as server:
        yield server


@pytest.fixture
def mqtt_broker(statestore_server: EmbeddedServer) -> EmbeddedServer:
    """An MQTT broker on a free loopback port: ``mqtt_broker.host``, ``mqtt_broker.port``."""
    return statestore_server


@pytest.fixture
def statestore_client(statestore_server: EmbeddedServer) -> Iterator[StateStoreClient]:
    """A client connected to ``statestore_server``."""
    from statestore_client import StateStoreClient  # loaded only by tests that ask for it

    with StateStoreClient(statestore_server.url) as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the server of a failed test saw."""
    report = yield
    server: EmbeddedServer | None = getattr(item, "funcargs", {}).get("statestore_server")
    if report.when == "call" and report.failed and server is not None:
        report.sections.append(("MQTT messages", _shown(server)))
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
