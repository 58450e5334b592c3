"""An authorizer that notes what watches of prefixes do, and forbids what a test wants."""

from __future__ import annotations

from typing import Any

__all__ = ["Recorder"]


class Recorder:
    """``EmbeddedServer(authorize=recorder)``: what the server is asked, and who may not ask it."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.forbidden: Any = None

    def __call__(self, _client_id: str, command: Any) -> bool:
        self.commands.append(command)
        return bool(command != self.forbidden)
