"""The simulation is worth something: peers that are broken in the ways of published bugs are found.

Each mutant is one mistake that a Raft implementation has had, or that somebody could make in ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from peers_process import SimulatedPeer
from peers_schedule import plan, run, shrink
from support.raft_disks import DamagedLogError, Image, SimulatedLog
from support.schedules import seeds_near

from raft_client.server.node import follower, quorum, reads
from raft_client.server.node.commit import Commit
from raft_client.server.node.election import Election
from raft_client.server.node.follower import Debounce
from raft_client.server.node.log import Log
from raft_client.server.node.membership import Membership
from raft_client.server.node.peer_requests import PeerRequests
from raft_client.server.node.reads import Reads
from raft_client.server.node.ready import Output, Role
from raft_client.server.node.replication import Replication
from raft_client.server.node.state import NodeState, Outbox
from raft_client.server.node.timing import Timing
from raft_client.server.node.transfer import Transfer

_LIMIT = 4000
#: Deviations that are left of a schedule that finds a mutant: few enough to be read.
_SHRUNK = 10
Plant = Callable[[pytest.MonkeyPatch], None]


# -- elections ---------------------------------------------------------------------------------------------------------


def _heartbeat_of_a_higher_term_beside_the_main_loop(patch: pytest.MonkeyPatch) -> None:
    """hashicorp/raft 695: the term is taken over without being written."""

    def set_term(state: NodeState, term: int, voted_for: str = "") -> None:
        if voted_for or term <= state.term:
            original(state, term, voted_for)
        else:
            state.term, state.voted_for = term, voted_for

    original = NodeState.set_term
    patch.setattr(NodeState, "set_term", set_term)


def _followers_stick_to_a_leader_that_reaches_nobody(patch: pytest.MonkeyPatch) -> None:
    """openraft 2080: who hears a leader votes for nobody else, and that leader never doubts itself."""
    patch.setattr(Replication, "quorum_heard_at", property(lambda self: self._state.now))


def _does_not_learn_the_term_from_a_pre_vote(patch: pytest.MonkeyPatch) -> None:
    """After a restart in a lower term it asks for one that the others have passed, for ever."""

    def on_pre_vote_reply(election: Election, link: Any, question: Any, reply: Any) -> None:
        original(election, link, question, attrs.evolve(reply, term=0))

    original = Election.on_pre_vote_reply
    patch.setattr(Election, "on_pre_vote_reply", on_pre_vote_reply)


def _votes_from_the_page_cache(patch: pytest.MonkeyPatch) -> None:
    """What was written counts, before it is synced."""

    def send_durable(outbox: Outbox, output: Output, *, dirty: bool) -> int:
        outbox.send(output)
        return outbox.gathering if dirty else outbox.gathering - 1

    patch.setattr(Outbox, "send_durable", send_durable)
    patch.setattr(Outbox, "send_after", lambda outbox, job, output: outbox.send(output) or job)


def _votes_for_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    """However short the candidate's log is."""
    patch.setattr(Election, "_is_up_to_date", lambda *_: True)


def _counts_its_own_vote_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    def settle(election: Election) -> bool:
        election._votes.setdefault(election._state.id, True)
        return original(election)

    original = Election.settle
    patch.setattr(Election, "settle", settle)


# -- logs and commits --------------------------------------------------------------------------------------------------


def _commits_entries_of_an_old_term(patch: pytest.MonkeyPatch) -> None:
    """Figure 8 of the paper."""

    def settle(commit: Commit) -> None:
        state = commit._state
        if state.is_leader:
            state.commit_index = max(state.commit_index, commit._replication.committed_index)

    patch.setattr(Commit, "settle", settle)


def _counts_its_own_disk_too_early(patch: pytest.MonkeyPatch) -> None:
    """The leader's own entries count before they are durable."""

    def match_of(self: Replication, peer_id: str) -> int:
        return self._state.log.last_index if peer_id == self._state.id else original(self, peer_id)

    original = Replication._match_of
    patch.setattr(Replication, "_match_of", match_of)


def _promises_after_the_first_part_of_a_job(patch: pytest.MonkeyPatch) -> None:
    """What does not fit into one job for the disk is still to be written."""

    def begin_job(outbox: Outbox, now: float, *, is_whole: bool) -> None:
        del is_whole
        original(outbox, now, is_whole=True)

    original = Outbox.begin_job
    patch.setattr(Outbox, "begin_job", begin_job)


def _takes_any_reply_for_the_one_it_waits_for(patch: pytest.MonkeyPatch) -> None:
    """openraft 1501: a delayed conflict is taken for a log that was reverted, and a delayed success for a new one."""

    def answered(requests: PeerRequests, reply: Any) -> Any:
        link = requests.get(reply.peer_id)
        if link is None or link.question is None:
            return None
        return original(requests, attrs.evolve(reply, request_id=link.question.request_id))

    original = PeerRequests.answered
    patch.setattr(PeerRequests, "answered", answered)


def _no_debounce(patch: pytest.MonkeyPatch) -> None:
    """An old copy of a question is carried out again, and cuts what came after it, as Node peers would."""

    def append_to_log(state: NodeState, message: Any) -> Any:
        log = state.log
        if log.term_at(message.prev_index) == message.prev_term and message.prev_index >= state.commit_index:
            log.truncate_after(message.prev_index)
        return original(state, message)

    original = follower._append_to_log
    patch.setattr(Debounce, "is_repeated", lambda debounce, peer_id, request: _remember(debounce, peer_id, request))
    patch.setattr(follower, "_append_to_log", append_to_log)


def _remember(debounce: Debounce, peer_id: str, request: Any) -> bool:
    debounce._last.pop(peer_id, None)
    return False


def _appends_without_looking_back(patch: pytest.MonkeyPatch) -> None:
    """The term before the entries is not compared."""

    def append_to_log(state: NodeState, message: Any) -> Any:
        here = state.log.term_at(message.prev_index)
        return original(state, attrs.evolve(message, prev_term=message.prev_term if here is None else here))

    original = follower._append_to_log
    patch.setattr(follower, "_append_to_log", append_to_log)


def _forgets_request_ids(patch: pytest.MonkeyPatch) -> None:
    """A repeated update is appended again."""
    patch.setattr(Log, "index_of_request", lambda _log, _request_id: None)


# -- disks -------------------------------------------------------------------------------------------------------------


def _retries_a_sync_that_failed(patch: pytest.MonkeyPatch) -> None:
    """The second try succeeds, because the page cache has forgotten what it was about."""

    def fail(peer: SimulatedPeer, life: int, share: float) -> None:
        if life == peer._lives and peer._job is not None:
            peer.log.write(peer._job)
            job, peer._job = peer._job, None
            peer.log.sync(job, 0.0)
            peer.node.advance(peer.clock.now)
            peer._pump()

    patch.setattr(SimulatedPeer, "_fail", fail)


def _leads_with_a_disk_that_is_stuck(patch: pytest.MonkeyPatch) -> None:
    """etcd 15247: heartbeats go on, and nothing can be committed."""
    patch.setattr(NodeState, "disk_stalled", property(lambda _state: False))
    patch.setattr(NodeState, "disk_stalls_at", math.inf)


def _takes_damage_for_the_end_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost what it had acknowledged votes, and may lead."""

    def reopen(log: SimulatedLog) -> None:
        try:
            original(log)
        except DamagedLogError:
            assert log.damaged_at is not None
            log.durable.apply(log.damaged_at - 1)
            log.damaged_at = None
            original(log)

    original = SimulatedLog.reopen
    patch.setattr(SimulatedLog, "reopen", reopen)


# -- snapshots ---------------------------------------------------------------------------------------------------------


def _a_snapshot_keeps_a_tail_that_conflicts(patch: pytest.MonkeyPatch) -> None:
    """hashicorp/raft 697: what follows the snapshot's end stays, whatever stands before it."""

    def install(image: Image, meta: Any, data: bytes) -> None:
        if image.before < meta.index < image.last_index:
            entry = image.entries[meta.index - image.before - 1]
            image.entries[meta.index - image.before - 1] = type(entry).of(b"?", term=meta.term, index=meta.index)
        original(image, meta, data)

    original = Image.install
    patch.setattr(Image, "install", install)

    def install_in_memory(log: Log, meta: Any) -> None:
        if log.snapshot is None and meta.index < log.last_index:
            patched = log.term_at
            log.term_at = lambda index: meta.term if index == meta.index else patched(index)  # type: ignore[method-assign]
            original_in_memory(log, meta)
            del log.term_at  # type: ignore[method-assign]
        else:
            original_in_memory(log, meta)

    original_in_memory = Log.install
    patch.setattr(Log, "install", install_in_memory)


def _a_snapshot_keeps_stale_members(patch: pytest.MonkeyPatch) -> None:
    """openraft 1808: the log is compacted beyond its last CONFIG entry, and the snapshot has an older one."""
    patch.setattr(Membership, "prepare_compaction", lambda membership: membership._state.applied_index)
    patch.setattr(Log, "configuration_for", lambda log, _index: log.configurations[0])
    original = SimulatedLog.compact

    def compact(log: SimulatedLog, meta: Any, data: bytes) -> None:
        original(log, attrs.evolve(meta, configuration=log.configurations[0]), data)

    patch.setattr(SimulatedLog, "compact", compact)


def _compacts_what_may_be_repeated(patch: pytest.MonkeyPatch) -> None:
    """A snapshot takes the place of entries whose request ids are fresh: who is given it does not know them."""
    patch.setattr(SimulatedLog, "prune_index", property(lambda log: log.last_index))


def _believes_its_clock_when_it_starts(patch: pytest.MonkeyPatch) -> None:
    """A machine that shows tomorrow when it boots forgets what is fresh when its clock is right again."""
    patch.setattr(SimulatedLog, "newest_request_s", lambda _log: math.inf)


# -- changes of the cluster, transfers, reads --------------------------------------------------------------------------


def _one_majority_decides_during_a_transition(patch: pytest.MonkeyPatch) -> None:
    """The new members decide alone."""
    patch.setattr(quorum, "_lists", lambda change: iter((change.new,)))


def _a_removed_leader_leaves_too_early(patch: pytest.MonkeyPatch) -> None:
    """openraft 2091: who is not in the newest configuration gives up, though it is not committed, and then crashes."""

    def settle_membership(state: NodeState) -> None:
        if not state.is_member(state.id) and state.role is not Role.STOPPED:
            state.role = Role.CLIENT
        else:
            original(state)

    original = NodeState.settle_membership
    patch.setattr(NodeState, "settle_membership", settle_membership)


def _a_transfer_outlives_its_leadership(patch: pytest.MonkeyPatch) -> None:
    """hashicorp/raft 696: it is interrupted by a step-down, and the next time updates wait for ever."""

    def settle(transfer: Transfer) -> None:
        transfer.ends_at = math.inf
        may_tell = transfer._state.is_leader and not transfer._told
        if transfer.target in transfer._replication.followers and may_tell:
            transfer._tell(transfer.target)

    patch.setattr(Transfer, "settle", settle)
    patch.setattr(Transfer, "_end", lambda _transfer: None)


def _a_read_is_confirmed_by_the_answer_to_an_older_question(patch: pytest.MonkeyPatch) -> None:
    """A repetition's answer says nothing about now."""

    def begin(reads: Reads, read: Any) -> None:
        read.number = -1
        original(reads, read)

    original = Reads._begin
    patch.setattr(Reads, "_begin", begin)


def _a_lease_lasts_longer_than_an_election(patch: pytest.MonkeyPatch) -> None:
    """Somebody else may lead when it ends."""
    patch.setattr(reads, "_LEASE_SHARE", 3.0)


def _a_lease_from_the_time_out_of_the_leader(patch: pytest.MonkeyPatch) -> None:
    """Rather than from what its voters promise, whose time-outs are shorter."""
    patch.setattr(PeerRequests, "quiet_s", lambda requests, _peer: requests._state.settings.election_timeout_min_s)


def _a_voter_is_not_quiet(patch: pytest.MonkeyPatch) -> None:
    """It gives its vote away as soon as it suspects its leader, or is asked."""

    def hear_leader(timing: Timing, now: float, *, is_the_same: bool) -> None:
        original(timing, now, is_the_same=is_the_same)
        timing.quiet_until = now

    original = Timing.hear_leader
    patch.setattr(Timing, "hear_leader", hear_leader)


def _a_lease_begins_with_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Rather than with the question, which may be much older."""
    patch.setattr(Replication, "quorum_asked_at", Replication.quorum_heard_at)


def _a_read_sees_the_commit_index_of_a_new_leader(patch: pytest.MonkeyPatch) -> None:
    """Before anything of its own term is committed, it may be old."""
    patch.setattr(Commit, "is_current", property(lambda _commit: True))


#: With the first schedule that is known to find each.
MUTANTS: dict[Plant, int] = {
    _heartbeat_of_a_higher_term_beside_the_main_loop: 1,
    _followers_stick_to_a_leader_that_reaches_nobody: 6,
    _does_not_learn_the_term_from_a_pre_vote: 145,
    _votes_from_the_page_cache: 1,
    _votes_for_whoever_asks: 9,
    _counts_its_own_vote_before_it_is_on_disk: 10,
    _commits_entries_of_an_old_term: 2,
    _counts_its_own_disk_too_early: 6,
    _promises_after_the_first_part_of_a_job: 1,
    _takes_any_reply_for_the_one_it_waits_for: 4,
    _no_debounce: 39,
    _appends_without_looking_back: 1,
    _forgets_request_ids: 1,
    _retries_a_sync_that_failed: 34,
    _leads_with_a_disk_that_is_stuck: 37,
    _takes_damage_for_the_end_of_the_log: 7,
    _a_snapshot_keeps_a_tail_that_conflicts: 1541,
    _a_snapshot_keeps_stale_members: 10,
    _compacts_what_may_be_repeated: 120,
    _believes_its_clock_when_it_starts: 118,
    _one_majority_decides_during_a_transition: 11,
    _a_removed_leader_leaves_too_early: 11,
    _a_transfer_outlives_its_leadership: 6,
    _a_read_is_confirmed_by_the_answer_to_an_older_question: 33,
    _a_lease_lasts_longer_than_an_election: 376,
    _a_lease_from_the_time_out_of_the_leader: 755,
    _a_voter_is_not_quiet: 229,
    _a_lease_begins_with_the_answer: 277,
    _a_read_sees_the_commit_index_of_a_new_leader: 806,
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", MUTANTS, ids=[plant.__name__.strip("_") for plant in MUTANTS])
@pytest.mark.turns(3)
@pytest.mark.ci
def test_the_simulation_finds(plant: Plant, monkeypatch: pytest.MonkeyPatch, figures: Callable[[str], None]) -> None:
    """Within a few thousand schedules; and the one that finds it is cut down to what it needs."""
    plant(monkeypatch)
    for seed in seeds_near(MUTANTS[plant], near=_LIMIT, most=_LIMIT):
        outcome = run(plan(seed))
        if outcome.violation is not None:
            shrunk = shrink(plan(seed))
            figures(f"found by schedule {seed}, {len(shrunk.deviations)} deviations: {outcome.violation}")
            assert len(shrunk.deviations) <= _SHRUNK
            assert run(shrunk).violation is not None
            return
    pytest.fail(f"{_LIMIT} schedules saw nothing")
