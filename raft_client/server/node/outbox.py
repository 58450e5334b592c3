"""What is to be sent, and what of it waits for the disk.

Jobs for the disk are numbered. What promises something waits for the job that makes it durable: a vote for that of the
vote, a reply to AppendEntries for that of its entries; by default the one that is being gathered if there is anything
in it, otherwise the one under way. While the disk
works, what arrives becomes the next job: many messages, one sync. A job that is too long for the disk is handed out in
parts, and is durable with the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raft_client.server.node.ready import Answer, Ask
from raft_client.wire.peer_messages import VoteReply

if TYPE_CHECKING:
    from raft_client.server.node.ready import Output

#: Answers that wait for a disk that stands still. More are dropped: what is asked again is answered again.
_MAX_WAITING: Final = 10_000


class Outbox:
    """Outputs in the order in which they were made, those that wait aside."""

    def __init__(self) -> None:
        self._now: list[Output] = []
        self._waiting: list[tuple[int, Output]] = []  # with the numbers of their jobs
        self._gathering = 1
        self._durable = 0
        #: Whether the gathered job was handed out in part: it needs an end, even if nothing is left of it.
        self.is_begun: bool = False
        #: When the job under way was handed out, in the node's time; None while the disk is idle.
        self.busy_since: float | None = None

    def send(self, output: Output) -> None:
        """Promises nothing: at once."""
        self._now.append(output)

    def send_durable(self, output: Output, *, dirty: bool) -> int:
        """When all that was changed is durable; ``dirty``: some of it was not handed out. The number of the job."""
        return self.send_after(self._gathering if dirty or self.is_begun else self._gathering - 1, output)

    def send_after(self, job: int, output: Output) -> int:
        """When this job is done. Its number."""
        if job <= self._durable:
            self._now.append(output)
        elif len(self._waiting) < _MAX_WAITING or not isinstance(output, Answer):
            self._waiting.append((job, output))
        return job

    def forget_asks(self, peer_id: str) -> None:
        """The connection on which they would leave is closed."""
        self._waiting = [
            (job, output)
            for job, output in self._waiting
            if not (isinstance(output, Ask) and output.peer_id == peer_id)
        ]

    def forget_votes(self) -> None:
        """They were for a term that is over: what the disk will hold is a later one, and never that vote."""
        self._waiting = [
            (job, output)
            for job, output in self._waiting
            if not (isinstance(output, Answer) and isinstance(output.message, VoteReply))
        ]

    def is_durable(self, job: int) -> bool:
        """Whether the job of this number is done."""
        return job <= self._durable

    def take(self) -> tuple[Output, ...]:
        """What leaves at once."""
        outputs, self._now = tuple(self._now), []
        return outputs

    def begin_job(self, now: float, *, is_whole: bool) -> None:
        """The gathered job, or what was left of it, is handed out; otherwise the rest of it is handed out later."""
        self._gathering += is_whole
        self.is_begun = not is_whole
        self.busy_since = now

    def end_job(self) -> None:
        """The job under way is done: what waited for it may leave."""
        self._durable = self._gathering - 1
        self.busy_since = None
        ready = [output for job, output in self._waiting if job <= self._durable]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > self._durable]
        self._now.extend(ready)

    @property
    def gathering(self) -> int:
        """The number of the job that is being gathered."""
        return self._gathering

    def clear(self) -> None:
        """Say nothing of all this."""
        self._now.clear()
        self._waiting.clear()
