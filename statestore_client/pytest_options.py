"""What the fixtures of :mod:`~statestore_client.pytest_plugin` give to servers and clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from statestore_client.server import EmbeddedServer

__all__ = ["admission", "client_options", "marked"]

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
