"""Releases of the server, of which a new one knows one more format of records than the one before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

from statestore_client.server.cluster import fence

__all__ = ["NEWEST", "know", "releases"]

#: A log begins with the one before.
NEWEST = 2


def know(newest: int) -> None:
    """The program that runs now knows formats of records up to this one. Within :func:`releases`."""
    vars(fence)["FORMAT"] = newest


def releases() -> AbstractContextManager[int]:
    """While it is open, :func:`know` says which release runs. Afterwards it is the real one again."""
    return patch.object(fence, "FORMAT", NEWEST)
