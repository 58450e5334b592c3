"""One request on its way.

Life of a request (state store protocol, "Overview"; MQTT 5.0, 4.4 for what survives a reconnect)::

    QUEUED --window has room, connected--> SENT --PUBACK--> ACCEPTED --reply--> DONE
      |                                      |                 |
      +-- deadline: certainly not applied    +-- deadline, session lost: may have been applied
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import attrs

from statestore_client.errors import StateStoreError
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import OutgoingMessage

__all__ = ["InternalWaiter", "Request", "RequestSpan", "Stage"]


class Stage(Enum):
    """How far a request has come; see the module's diagram."""

    QUEUED = "queued"
    SENT = "sent"
    ACCEPTED = "accepted"
    DONE = "done"


class RequestSpan(Protocol):
    """What a trace has of one request, from when it was submitted until it is answered, fails or is given up."""

    @property
    def properties(self) -> tuple[tuple[str, str], ...]:
        """User properties by which a receiver goes on with the trace."""

    def end(self, error: StateStoreError | None) -> None:
        """It is over; ``error`` says how it failed."""


@attrs.define(eq=False)
class Request:
    """One command on its way. Made by :meth:`Exchange.submit`."""

    command: Command
    waiter: object
    deadline: float  # monotonic seconds; inf for none
    timeout: float | None  # seconds, for messages
    fencing_token: HlcTimestamp | None
    stage: Stage = Stage.QUEUED
    delivery_id: int = 0
    message: OutgoingMessage | None = None
    sent_at: float = 0.0  # monotonic seconds, on the present connection
    resent: bool = False
    is_under_way: bool = False  # left on the present connection, and is not over
    has_subscribers: bool = True
    span: RequestSpan | None = None


class InternalWaiter:
    """Base of the waiters that are not a shell's. Their answers go to :attr:`Exchange.internal`, not to the shell."""

    __slots__ = ()
