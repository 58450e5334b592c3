"""One request of a client, and the counters of all."""

from __future__ import annotations

from typing import Any

import attrs

from raft_client.core.calls import Call
from raft_client.errors import RaftError
from raft_client.wire.request_id import RequestId

__all__ = ["Request", "RequestStats", "about"]


@attrs.define(eq=False)
class Request:
    """One call on its way. Made by :meth:`RequestMachine.submit`."""

    call: Call
    waiter: Any  # the shell's own, opaque here
    request_id: bytes
    deadline: float  # monotonic seconds; inf for none
    timeout: float | None  # seconds, for messages
    target: str | None  # URL of the one peer to ask; None for the leader
    sent_to: str | None = None  # URL; None while it waits
    heard_at: float = 0.0  # when it was sent or last answered
    patience: float = 1.0  # in response time-outs
    not_before: float = 0.0  # monotonic seconds; a pause asked for by the cluster
    was_sent: bool = False
    is_done: bool = False
    pause_error: RaftError | None = None


@attrs.define
class RequestStats:
    """Counters since the client was made."""

    requests: int = 0
    repeated: int = 0
    searches: int = 0
    stale_answers: int = 0


def about(request: Request, error: RaftError) -> RaftError:
    """Say which append the error is about: with its id it can be repeated safely."""
    if request.call.request_id is not None:
        error.request_id = RequestId(request.call.request_id)
    return error
