"""What the machines of subscriptions and watches ask their runner to do, and how fresh they say they are.

A runner carries actions out in the order in which they come; it owns the requests and the sockets.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, TypeAlias

import attrs

from raft_client.core.calls import Call

# -- how fresh they are ------------------------------------------------------------------------------------------------


class Freshness(StrEnum):
    """What is known of the distance to the end of the log."""

    FRESH = "fresh"  # all that was broadcast is in the queue
    STALE = "stale"  # entries are missing and being fetched
    SILENT = "silent"  # nothing is heard, and the leader is being looked for: what was seen may be out of date


@attrs.frozen
class SubscriptionState:
    """``missing`` is how many entries are known to exist and were not received yet."""

    freshness: Freshness
    missing: int = 0


# -- what the runner does, in this order -------------------------------------------------------------------------------


@attrs.frozen
class Submit:
    """Submit the call to the leader, without a deadline; report its end with ``finished`` or ``failed``."""

    call: Call


@attrs.frozen
class FollowUp:
    """Send follow-ups of a call that was submitted."""

    call: Call
    frames: tuple[list[bytes], ...]


@attrs.frozen
class Restart:
    """Ask a call that was submitted again, on the same link, after its ``last`` word."""

    call: Call
    last: list[bytes] | None


@attrs.frozen
class Cancel:
    """Forget a call that was submitted; do not report its end."""

    call: Call
    last: list[bytes] | None = None


@attrs.frozen
class Listen:
    """A SUB socket to this URL, for the cluster's ident; report what comes with ``receive_broadcast``."""

    url: str


@attrs.frozen
class StopListening:
    """Close it."""

    url: str


StreamAction: TypeAlias = Submit | FollowUp | Restart | Cancel | Listen | StopListening


# -- who waits for them ------------------------------------------------------------------------------------------------


class Consumer(Protocol):
    """The shell's own: it takes from a queue, and sleeps while that is empty."""

    def notify(self) -> None:
        """There is something to take, or nothing more will come."""
