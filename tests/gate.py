"""A server that stands still until it is told to go on."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Gate"]


class Gate:
    """``EmbeddedServer(authorize=gate)`` answers no request before ``gate.open()``, or 10 seconds."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, _client_id: str, _command: Any) -> bool:
        self.reached.set()
        return self._open.wait(10)

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        """Stand still again, from the next request on."""
        self._open.clear()
