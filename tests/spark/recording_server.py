"""A server that tells what happened to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from support.ports import reserved_port

from statestore_client.server import EmbeddedServer
from statestore_client.wire.commands import Command, Get, Set

__all__ = ["RecordingServer", "process_of"]


def process_of(client_id: str) -> int:
    """The id of a client in a worker ends with the worker's process id and a random number."""
    return int(client_id.split("-")[-2])


class RecordingServer(EmbeddedServer):
    """A server that remembers who asked for what. ``on_request`` is called in its thread, before the answer;
    ``allows`` says of each command whether it is carried out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(reserved_port(), authorize=self._record, **options)
        self.requests: list[tuple[str, Command]] = []
        self.on_request: Callable[[int], object] = lambda _count: None
        self.allows: Callable[[Command], bool] = lambda _command: True

    def _record(self, client_id: str, command: Command) -> bool:
        self.requests.append((client_id, command))
        self.on_request(len(self.requests))
        return self.allows(command)

    @property
    def sets(self) -> list[bytes]:
        """The keys of all SETs that arrived, refused ones too."""
        return [c.key for _, c in self.requests if isinstance(c, Set)]

    @property
    def gets(self) -> list[bytes]:
        """The keys of all GETs."""
        return [c.key for _, c in self.requests if isinstance(c, Get)]

    def restart_at(self, count: int, *, keep_state: bool) -> threading.Event:
        """Stop at the request number ``count`` and start again on the same port, empty unless ``keep_state``. The event
        tells when.
        """
        return self.restart_when(lambda _command: len(self.requests) == count, keep_state=keep_state)

    def restart_when(self, is_time: Callable[[Command], bool], *, keep_state: bool) -> threading.Event:
        """The same at the first command of which this is true."""
        restarted = threading.Event()

        def restart() -> None:
            self.restart(keep_state=keep_state)
            restarted.set()

        def watch(_seen: int) -> None:
            if is_time(self.requests[-1][1]):
                self.on_request = lambda _count: restarted.wait(0.005)  # the rest is not done before that
                threading.Thread(target=restart).start()

        self.on_request = watch
        return restarted
