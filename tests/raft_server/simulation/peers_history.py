"""Where a schedule begins: logs as an earlier life of the cluster may have left them, with tails that disagree.

An abstract cluster without messages elects leaders that append, reach some of the others and commit what a majority
has. All that it does a Raft cluster could have done, so figure 7 and the first steps of figure 8 of the paper are among
its results, for next to no time.
"""

from __future__ import annotations

from random import Random

import attrs
from peers_audit import Audit
from peers_world import WALL_START_S
from support.raft_disks import Image, SimulatedLog

from raft_client.server.node.ready import HardState, SnapshotMeta
from raft_client.wire.log_entry import CHECKPOINT_DATA, EntryKind, LogEntry
from raft_client.wire.request_id import RequestId

__all__ = ["History", "invent_history", "is_fresh"]

#: Older than any id that a peer still remembers.
_OLD_S = 10 * 3600


@attrs.define
class History:
    """What the disks of the voters hold, and who waits for an answer still."""

    logs: dict[str, list[LogEntry]]
    hard_states: dict[str, HardState]
    applied: dict[str, int]
    commits: dict[int, tuple[int, int]]  # term of the leader -> index and term of the entry
    committed: list[LogEntry]

    def write(self, audit: Audit, logs: dict[str, SimulatedLog], random: Random) -> None:
        """Onto disks; the audit hears of it. Some peers have compacted some of what they applied."""
        audit.seeds(self.committed, len(self.committed), self.commits)
        for name, entries in self.logs.items():
            image = logs[name].durable
            audit.persisted(name, image.hard_state, self.hard_states[name])
            image.apply(self.hard_states[name])
            before = 0
            for entry in entries:
                audit.appended(name, entry, before)
                image.apply(entry)
                before = entry.term
            if random.random() < 0.3:
                _compact(image, audit, random.randint(0, self.applied[name]))
            logs[name].reopen()


def _compact(image: Image, audit: Audit, index: int) -> None:
    """Only what is so old that no client repeats it."""
    fresh = [entry.index for entry in image.entries if is_fresh(entry)]
    index = min([index, *(each - 1 for each in fresh)])
    term = image.term_at(index)
    if index > 0 and term is not None:
        data = audit.state_after(index)
        image.install(SnapshotMeta(index, term, len(data), image.start), data)


def is_fresh(entry: LogEntry) -> bool:
    """Whether a client may still repeat it."""
    return any(entry.request_id.raw) and entry.request_id.seconds > WALL_START_S - _OLD_S


def invent_history(random: Random, voters: list[str], terms: int) -> History:
    """``terms`` elections, some of which nobody wins."""
    logs: dict[str, list[LogEntry]] = {name: [] for name in voters}
    states = dict.fromkeys(voters, HardState())
    commits: dict[int, tuple[int, int]] = {}
    applied = dict.fromkeys(voters, 0)
    committed = 0
    best: list[LogEntry] = []
    fresh_from = random.randint(1, max(1, terms))
    for term in range(1, terms + 1):
        leader, electors = _hold_election(random, logs, states, term)
        if leader is None:
            continue
        log = logs[leader]
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            log.append(_entry(random, len(log) + 1, term, is_fresh=term >= fresh_from))
        for follower in random.sample(voters, random.randint(0, len(voters))):
            if follower != leader and states[follower].term <= term:
                _replicate(logs, states, leader, follower, term, random)
        index = _quorum_index(logs, log)
        if index and log[index - 1].term == term and index > committed:
            committed, best = index, log[:index]
            commits[term] = (index, term)
        for name in (leader, *electors):
            common = _common(logs[name], best)
            applied[name] = max(applied[name], random.randint(0, common))
    return History(logs, states, applied, commits, best)


def _hold_election(
    random: Random, logs: dict[str, list[LogEntry]], states: dict[str, HardState], term: int
) -> tuple[str | None, list[str]]:
    candidate = random.choice(list(logs))
    electors = random.sample(list(logs), random.randint(len(logs) // 2 + 1, len(logs)))
    if candidate not in electors:
        electors[0] = candidate
    mine = _place(logs[candidate])
    granted = [name for name in electors if _place(logs[name]) <= mine]
    for name in electors:
        states[name] = HardState(term, candidate if name in granted else "")
    return (candidate, electors) if len(granted) * 2 > len(logs) else (None, electors)


def _place(log: list[LogEntry]) -> tuple[int, int]:
    return (log[-1].term, len(log)) if log else (0, 0)


def _replicate(
    logs: dict[str, list[LogEntry]], states: dict[str, HardState], leader: str, follower: str, term: int, random: Random
) -> None:
    """Some of what the leader has, from where the two agree."""
    common = _common(logs[follower], logs[leader])
    reaches = random.randint(common, len(logs[leader]))
    if reaches > common:
        logs[follower] = logs[leader][:reaches]
    if states[follower].term < term:
        states[follower] = HardState(term)


def _common(one: list[LogEntry], other: list[LogEntry]) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left.frame != right.frame:
            return index
    return min(len(one), len(other))


def _quorum_index(logs: dict[str, list[LogEntry]], log: list[LogEntry]) -> int:
    return sorted(_common(each, log) for each in logs.values())[(len(logs) - 1) // 2]


def _entry(random: Random, index: int, term: int, *, is_fresh: bool) -> LogEntry:
    if random.random() < 0.1:
        return LogEntry.of(CHECKPOINT_DATA, term=term, kind=EntryKind.CHECKPOINT, index=index)
    seconds = int(WALL_START_S) - (5 if is_fresh else 2 * _OLD_S)
    request_id = RequestId.derive("history", random.randrange(2**32), seconds=seconds)
    return LogEntry.of(b"h%d.%d" % (term, index), term=term, request_id=request_id, index=index)
