"""What all parts of a node share: who it is, in which term, what it knows to be committed.

Invariant: a vote, and what a follower has, was made durable before others hear of it (``send_durable``). A term alone
promises nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raft_client.errors import InvalidArgumentError
from raft_client.server.node.log import Log
from raft_client.server.node.quorum import is_member, member_peers
from raft_client.server.node.ready import Answer, Ask, HardState, Role
from raft_client.server.node.timing import Timing
from raft_client.wire.peer_messages import VoteReply
from raft_client.wire.request_id import IdFreshness

if TYPE_CHECKING:
    import random

    from raft_client.server.node.ready import Output, Request, StoredLog
    from raft_client.server.node.settings import NodeSettings
    from raft_client.wire.configuration import ConfigChange, Peers
    from raft_client.wire.frames import Message
    from raft_client.wire.log_entry import SnapshotChunk
    from raft_client.wire.request_id import RequestId

# -- what goes out, and when -------------------------------------------------------------------------------------------
# Jobs for the disk are numbered. What promises something waits for the job that makes it durable: a vote for that of
# the vote, a reply to AppendEntries for that of its entries; by default the one that is being gathered if there is
# anything in it, otherwise the one under way. While the disk works, what arrives becomes the next job: many messages,
# one sync. A job that is too long for the disk is handed out in parts, and is durable with the last of them.


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
        self.has_partial_job: bool = False
        #: When the job under way was handed out, in the node's time; None while the disk is idle.
        self.busy_since: float | None = None

    def send(self, output: Output) -> None:
        """Promises nothing: at once."""
        self._now.append(output)

    def send_durable(self, output: Output, *, dirty: bool) -> int:
        """When all that was changed is durable; ``dirty``: some of it was not handed out. The number of the job."""
        return self.send_after(self._gathering if dirty or self.has_partial_job else self._gathering - 1, output)

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
        self.has_partial_job = not is_whole
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


# -- what the parts share ----------------------------------------------------------------------------------------------


class NodeState:
    """The common state. Times are monotonic seconds, ``wall_s`` seconds since 1970.

    ``stored`` is what the disk holds, and the state machine has applied everything up to ``applied_index``. Raises
    InvalidArgumentError if the parts of ``stored`` do not belong together.
    """

    def __init__(
        self,
        settings: NodeSettings,
        stored: StoredLog,
        *,
        applied_index: int,
        rng: random.Random,
        now: float,
        wall_s: float,
    ) -> None:
        self.settings: NodeSettings = settings
        self.rng: random.Random = rng
        self.now: float = now
        self.wall_s: float = wall_s
        #: Of this peer.
        self.id: str = settings.peer_id
        self.log: Log = Log(stored)
        self.outbox: Outbox = Outbox()
        self.term: int = stored.hard_state.term
        self.voted_for: str = stored.hard_state.voted_for
        if self.log.last_term > self.term:
            raise InvalidArgumentError("the hard state is older than the log: one of them was lost or put back")
        self.leader_id: str | None = None
        #: In which this peer stood, since it was made.
        self.elections = 0
        #: How often it asked others whether they would vote for it, since it was made.
        self.suspicions = 0
        #: Of what this peer asks others; a question of an earlier one is not repeated.
        self.epoch: int = 0
        self.applied_index = applied_index
        snapshot = stored.snapshot
        self.commit_index: int = max(applied_index, snapshot.index if snapshot else 0)
        self.role = Role.FOLLOWER if self.takes_part else Role.CLIENT
        self._hard_state_dirty = False
        self._hard_state_job = 0  # it is durable when this one is done
        #: Of a snapshot that arrives; the next job for the disk writes it.
        self.chunk: SnapshotChunk | None = None
        self.timing: Timing = Timing(settings, rng, now, was_quiet=self.term > 0)
        if self.is_sole_voter:
            self.timing.election_at = now

    # -- who -----------------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> ConfigChange:
        """The newest one in the log, committed or not."""
        return self.log.configuration

    @property
    def others(self) -> Peers:
        """All members but this peer."""
        return tuple(peer for peer in member_peers(self.configuration) if peer.id != self.id)

    def is_member(self, peer_id: str) -> bool:
        """Whether it is in the configuration in force."""
        return is_member(self.configuration, peer_id)

    @property
    def takes_part(self) -> bool:
        """Whether it follows and stands for election.

        Members do; and those of the configuration before it, as long as this one is not known to be committed. They may
        hold the only copy of it, and nobody else could be elected (Raft, §4.2.2).
        """
        newest = self.log.configurations[-1]
        if is_member(newest.change, self.id):
            return True
        before = self.log.configurations[-2:-1]
        return newest.index > self.commit_index and any(is_member(each.change, self.id) for each in before)

    @property
    def is_sole_voter(self) -> bool:
        """Whether nobody else is asked for anything."""
        return self.is_member(self.id) and not self.others

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def known_leader_id(self) -> str | None:
        """For those who ask."""
        return self.id if self.is_leader else self.leader_id

    # -- terms and roles -----------------------------------------------------------------------------------------------

    def is_fresh(self, request_id: RequestId) -> bool:
        """Whether an id that is not in the log is new for certain.

        An id that is in neither the log nor what is stored is new, or so old that it was forgotten. Its first bytes say
        when it was made, so one that is older than what is remembered is refused (ØMQ Raft protocol, "RequestUpdate
        RPC"; facts §1.4).
        """
        ttl_s = self.settings.request_id_ttl_s
        return ttl_s is None or request_id.freshness(self.wall_s, ttl_s=ttl_s) is IdFreshness.FRESH

    def set_term(self, term: int, voted_for: str = "") -> None:
        """Enter a term, or vote in it."""
        if term > self.term:
            self.outbox.forget_votes()
        if (term, voted_for) != (self.term, self.voted_for):
            self.term, self.voted_for = term, voted_for
            self._hard_state_dirty = True
            self._hard_state_job = self.outbox.gathering

    def become_follower(self, term: int, leader_id: str | None = None) -> None:
        """Step down, or go on following; in a higher term the vote is free again.

        A follower keeps its time-out: a peer that can't win must not keep others from trying (Raft, §3.4).
        """
        if term > self.term:
            self.set_term(term)
        self.leader_id = leader_id
        self._become(Role.FOLLOWER if self.takes_part else Role.CLIENT)

    def become_leader(self) -> None:
        """This peer was elected."""
        self._become(Role.LEADER)
        self.leader_id = None

    def settle_membership(self) -> None:
        """A peer that takes no part has no election time-out; one that does follows."""
        if self.role is not Role.LEADER and (self.role is Role.CLIENT) is self.takes_part:
            self.become_follower(self.term, self.leader_id)

    def _become(self, role: Role) -> None:
        if role is not self.role:
            self.epoch += 1
            self.role = role
            self.timing.restart(self.now)

    def hear_leader(self, leader_id: str, term: int) -> None:
        """The leader of ``term`` sent something."""
        is_the_same = (term, leader_id) == (self.term, self.leader_id)
        self.become_follower(term, leader_id)
        self.timing.hear_leader(self.now, is_the_same=is_the_same)

    @property
    def hears_leader(self) -> bool:
        """Whether a leader may count on this peer not to vote for another one (Raft, §4.2.3 and §6.4.1)."""
        return self.is_leader or self.now < self.timing.quiet_until

    @property
    def disk_stalls_at(self) -> float:
        """When the disk has not answered for so long that this peer cannot commit anything; infinity if it is idle."""
        since = self.outbox.busy_since
        return math.inf if since is None else self.timing.put_off(since + self.settings.disk_stall_s, since)

    @property
    def disk_stalled(self) -> bool:
        """Whether that is so now."""
        return self.now >= self.disk_stalls_at

    # -- sending -------------------------------------------------------------------------------------------------------

    @property
    def is_vote_durable(self) -> bool:
        """Whether the disk has the term and the vote."""
        return self.outbox.is_durable(self._hard_state_job)

    @property
    def dirty(self) -> bool:
        """Whether there is something for the disk to do that was not handed out."""
        return self._hard_state_dirty or self.chunk is not None or self.log.dirty or self.outbox.has_partial_job

    def take_hard_state(self) -> HardState | None:
        """For the next job; None if it did not change."""
        if not self._hard_state_dirty:
            return None
        self._hard_state_dirty = False
        return HardState(self.term, self.voted_for)

    def end_job(self) -> None:
        """The job under way is done."""
        if self.outbox.busy_since is not None:
            self.timing.syncs.add(self.now - self.outbox.busy_since, self.now)
        self.outbox.end_job()

    def send(self, output: Output) -> None:
        """At once: it promises nothing that the disk must hold."""
        self.outbox.send(output)

    def send_durable(self, output: Output, up_to: int | None = None) -> int:
        """When the term, the vote and the entries up to an index, by default all that was changed, are on the disk.

        Returns the number of the job that it waits for.
        """
        if up_to is not None and up_to <= self.log.durable_index:
            return self.outbox.send_after(self._hard_state_job, output)
        return self.outbox.send_durable(output, dirty=self.dirty)

    def answer(self, request: Request, message: Message) -> None:
        """At once."""
        self.send(Answer(request.route, request.request_id, message))
