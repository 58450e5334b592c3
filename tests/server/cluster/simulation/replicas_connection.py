"""A client's connection to a door, and what waits to be said on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from replicas_clients import Client
    from replicas_machine import Answer, Request
    from replicas_process import Process

__all__ = ["Connection", "Staged"]


@attrs.define(eq=False)
class Connection:
    """From a client to a door, which passes it on to the owner: ``target``, None while nobody is known."""

    client: Client
    door: Process
    target: Process | None = None
    is_open: bool = True

    def open(self) -> None:
        """It arrives at the door, if that is still there."""
        if self.door.is_alive:
            self.door.connections.append(self)  # the system has accepted it, also if the process stands still
            self.door.run(self.door.accept, self)
        else:
            self.close()

    def close(self) -> None:
        """The client hears of it."""
        if self.is_open:
            self.is_open = False
            self.client.world.after(0.001, self.client.lost, self)


@attrs.define(eq=False)
class Staged:
    """An answer that waits for a batch."""

    after_batch: int
    connection: Connection
    request: Request
    answer: Answer
    done_at: float
