"""One request of a client, and the counters of all."""

from __future__ import annotations

from typing import Any

import attrs

from raft_client.core.calls import Call
from raft_client.errors import RaftError
from raft_client.wire.request_id import REQUEST_ID_BYTES, RequestId


@attrs.define(eq=False)
class Request:
    """One call on its way. Made by :meth:`RequestMachine.submit`."""

    call: Call
    waiter: Any  # the shell's own, opaque here
    request_id: bytes
    deadline: float  # monotonic seconds; inf for none
    timeout: float | None  # seconds, for messages
    target: str | None  # URL of the one peer to ask; None for the leader
    in_doubt: bool  # whether an earlier send may take effect, or an earlier call with this id
    sent_to: str | None = None  # the link, by its URL or name; None while it waits
    asked: str | None = None  # the link on which it was sent last, as long as there is that link
    heard_at: float = 0.0  # when it was sent or last answered
    silence_factor: float = 1.0  # how many response time-outs it may be silent
    was_missed: bool = False  # half of that time is over, and so the leader was asked whether it lives
    has_slot: bool = False  # counts in max_in_flight
    not_before: float = 0.0  # monotonic seconds; a pause asked for by the cluster
    was_sent: bool = False
    is_done: bool = False
    pause_error: RaftError | None = None

    @property
    def stays(self) -> bool:
        """Whether it is bound to the link on which it was sent: sent once, or to one peer."""
        return not self.call.repeatable or self.target is not None

    def heard(self, now: float) -> None:
        """It was sent, or there is news of it: it may be silent for its time again."""
        self.heard_at = now
        self.was_missed = False


@attrs.define
class RequestStats:
    """Counters since the client was made."""

    requests: int = 0
    repeated: int = 0
    searches: int = 0
    stale_answers: int = 0


def about(request: Request, error: RaftError, *, refused: bool = False) -> RaftError:
    """Say which append the error is about, and whether it may have been applied all the same.

    ``refused``: the last send was answered, and not done. Only the first send of an id that was made for this call can
    then, or while it was not sent at all, be the whole truth: a peer that accepted an entry may lose the lead and still
    have it, and what an earlier send or an earlier call did nobody says.
    """
    if request.call.changes:
        error.may_have_been_applied = request.in_doubt or (request.was_sent and not refused)
        raw = request.call.request_id
        if raw is not None and len(raw) == REQUEST_ID_BYTES:
            error.request_id = RequestId(raw)
    return error
