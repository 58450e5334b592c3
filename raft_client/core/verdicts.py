"""What an answer means to the call that asked: a verdict, for the request machine to act upon."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import attrs

from raft_client.errors import RaftError
from raft_client.wire.frames import hot_value


@attrs.frozen
class Accepted:
    """The request is being worked on: wait on, with a fresh clock."""


ACCEPTED: Final = Accepted()


@hot_value
class Finished:
    """The answer is complete. ``last`` is for the peer, to say that nothing more is wanted."""

    result: Any
    last: list[bytes] | None = None


@attrs.frozen
class Failed:
    """The answer is final, and an error. ``last`` as in :class:`Finished`."""

    error: RaftError
    last: list[bytes] | None = None


@attrs.frozen
class Again:
    """Send ``last``, if any, under the present request id and then ask again, under a new one, on the same link."""

    last: list[bytes] | None = None


@attrs.frozen
class NotLeader:
    """The peer that was asked says that it is not the leader; it may know who is."""

    leader_id: str | None


@attrs.frozen
class Retry:
    """Not now: ask again after a pause of this many seconds. At the deadline ``error`` is raised.

    ``doubts_leader``: what it said proves nothing, but if another peer leads in a later term, that one is to be asked.
    """

    after_s: float
    error: RaftError
    doubts_leader: bool = False


@hot_value
class FollowUps:
    """Send these on the same link, with the same request id. ``wake``: the call's queue has something new."""

    frames: tuple[list[bytes], ...] = ()
    wake: bool = False


Verdict: TypeAlias = Accepted | Finished | Failed | NotLeader | Retry | FollowUps | Again
