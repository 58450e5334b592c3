"""What the request machine asks its shell to do. The shell carries actions out in the order in which they come.

Invariant: an action never waits for another, and never fails. A link that cannot be made, or breaks, is reported with
``link_lost``; a SUB that cannot be made with its owner's ``cannot_listen``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from raft_client.core.connection_state import StateChanged
from raft_client.errors import RaftError
from raft_client.wire.frames import hot_value


@attrs.frozen
class Connect:
    """A new DEALER for this URL. Later report what it receives and, once, that it is lost."""

    url: str


@attrs.frozen
class SetAside:
    """Keep the DEALER of this URL under ``name``, with all that was sent and is received on it: the URL is free.

    From now on ``name`` stands for it in every action and in every report.
    """

    url: str
    name: str


@attrs.frozen
class Disconnect:
    """Close the DEALER of this URL or name; what it has not sent is dropped, what it received is not reported."""

    url: str


@attrs.frozen
class Subscribe:
    """A new SUB for this URL and topic, where ``peer`` broadcasts. What it receives is for ``owner``."""

    owner: Any  # a core.hosting.StreamRunner
    url: str
    topic: bytes
    peer: str | None  # the URL of its ROUTER


@attrs.frozen
class Unsubscribe:
    """Close the SUB that this owner has for this URL."""

    owner: Any
    url: str


@hot_value
class Send:
    """These frames, the request id first, on the DEALER of this URL or name. It is connected or connecting."""

    url: str
    frames: list[bytes]


@hot_value
class Resolve:
    """Hand ``result`` to the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    result: Any


@hot_value
class Reject:
    """Raise ``error`` for the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    error: RaftError


@hot_value
class Wake:
    """A call that streams has something new for the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here


#: A StateChanged is to be told to those who want to know, in its place among the others.
Action: TypeAlias = (
    Connect | SetAside | Disconnect | Subscribe | Unsubscribe | Send | Resolve | Reject | Wake | StateChanged
)
