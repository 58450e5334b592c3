"""What must hold in a cluster of Raft peers, checked when something happens that could break it.

======================  ==========================================================================================
election safety         one leader in a term, elected by votes that are on the disks of a majority (of both lists)
votes                   one vote in a term, terms never go back, and no reply leaves before its disk holds it
log matching            an index and a term stand for one entry and all that is before it
leader append-only      a leader overwrites nothing
commit                  of the leader's own term, on the disks of a majority (of both lists)
leader completeness     a leader has what was committed in earlier terms
state machine safety    all apply the same, in order, and only what is committed; snapshots hold what was applied
exactly once            a request id is applied once, and its answer names the place
durability              what was acknowledged is applied in the end, by all
membership              a leader counts the members that are committed, or newer ones
reads                   a read sees all that was acknowledged, or read, before it was asked for
======================  ==========================================================================================

Source: Ongaro and Ousterhout, *In Search of an Understandable Consensus Algorithm*, figure 3; Ongaro's thesis, §4.3
(joint consensus), §6.3 (exactly once), §6.4 (reads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from zlib import crc32

from raft_client.server.node.ready import Configuration, HardState
from raft_client.wire.configuration import ConfigChange
from raft_client.wire.log_entry import EntryKind, LogEntry

__all__ = ["Audit", "has_quorum"]

#: Whether this peer counts.
Counts: TypeAlias = Callable[[str], bool]
#: The term of the entry at an index, where there is one.
TermAt: TypeAlias = Callable[[int], int | None]


def has_quorum(change: ConfigChange, counts: Counts) -> bool:
    """Whether a majority of the list counts, or of both lists during a transition."""
    lists = (change.new,) if change.old is None else (change.old, change.new)
    return all(sum(counts(peer.id) for peer in peers) * 2 > len(peers) for peers in lists)


class Audit:
    """Sees all peers. ``violations`` are sentences; the first one is what matters."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.leaders: dict[int, str] = {}  # by term
        self.votes: dict[tuple[str, int], str] = {}  # what disks hold, by voter and term
        self._known: dict[tuple[int, int], tuple[bytes, int]] = {}  # index, term -> frame, term before it
        self.committed = 0  # the highest index that a leader committed
        self._committed_terms: dict[int, int] = {}
        self._members_at = 0  # the newest CONFIG entry that is committed
        self._commits: dict[int, tuple[int, int]] = {}  # term of the leader -> highest index, its term
        self.applied: list[LogEntry] = []  # by all, in order
        self._states = [0]  # after this number of entries, as a checksum
        self._applied_ids: dict[bytes, int] = {}
        self.acknowledged: dict[bytes, int] = {}
        self._promised: dict[int, bytes] = {}  # acknowledged ids by index
        self.newest_known = 0  # the highest index that a client was told of

    def violated(self, what: str) -> None:
        if not self.violations:
            self.violations.append(what)

    # -- elections -----------------------------------------------------------------------------------------------------

    def persisted(self, peer: str, before: HardState, after: HardState) -> None:
        """A term and a vote reached the disk of a peer."""
        if after.term < before.term:
            self.violated(f"votes: {peer} goes back from term {before.term} to {after.term}")
        if after.voted_for:
            vote = self.votes.setdefault((peer, after.term), after.voted_for)
            if vote != after.voted_for:
                self.violated(f"votes: {peer} votes for {vote} and {after.voted_for} in term {after.term}")
        elif after.term == before.term and before.voted_for:
            self.violated(f"votes: {peer} forgets its vote in term {after.term}")

    def elected(self, peer: str, term: int, configuration: Configuration, has: Callable[[int, int], bool]) -> None:
        """A peer leads with this configuration; ``has`` tells whether its log has this index of this term."""
        leader = self.leaders.setdefault(term, peer)
        if leader != peer:
            self.violated(f"election safety: {leader} and {peer} lead in term {term}")
        if configuration.index < self._members_at and term >= max(self._commits, default=0):
            self.violated(
                f"membership: {peer} leads in term {term} with the members of {configuration.index}; "
                f"those of {self._members_at} are committed"
            )
        if not has_quorum(configuration.change, lambda voter: self.votes.get((voter, term)) == peer):
            self.violated(f"election safety: {peer} leads in term {term} without the votes of a majority on disk")
        for of_term, (index, entry_term) in self._commits.items():
            if of_term < term and not has(index, entry_term):
                self.violated(
                    f"leader completeness: {peer} leads in term {term} without {index}, committed in {of_term}"
                )

    def promises_vote(self, peer: str, candidate: str, term: int, on_disk: HardState) -> None:
        """A granted vote leaves."""
        if on_disk.term < term or (on_disk.term == term and on_disk.voted_for != candidate):
            self.violated(f"votes: the vote of {peer} for {candidate} in {term} leaves before it is on disk")
        vote = self.votes.setdefault((peer, term), candidate)  # its disk may be in a later term: that promises as much
        if vote != candidate:
            self.violated(f"votes: {peer} votes for {vote} and {candidate} in term {term}")

    def tells_term(self, peer: str, term: int, on_disk: HardState) -> None:
        """A reply with a term leaves: what was promised in it must outlive the process."""
        if on_disk.term < term:
            self.violated(f"votes: {peer} says that it is in term {term}, and its disk says {on_disk.term}")

    # -- logs ----------------------------------------------------------------------------------------------------------

    def appended(self, peer: str, entry: LogEntry, term_before: int | None) -> None:
        """An entry is in the log of a peer."""
        term = entry.term
        if term_before is None:
            self.violated(f"log matching: {peer} has nothing before {entry.index}")
            return
        known = self._known.setdefault((entry.index, term), (entry.frame, term_before))
        if known != (entry.frame, term_before):
            self.violated(f"log matching: {entry.index} of term {term} at {peer} is another one elsewhere")
        if term < term_before:
            self.violated(f"log matching: {entry.index} at {peer} has term {term}, and the one before it {term_before}")

    def truncated(self, peer: str, after: int, last: int, term_at: TermAt, *, is_leader: bool, applied: int) -> None:
        """A peer removes what follows ``after``; ``term_at`` tells what was there."""
        if after < last and is_leader:
            self.violated(f"leader append-only: {peer} removes what follows {after} while it leads")
        if after < applied:
            self.violated(f"state machine safety: {peer} removes what follows {after}, and has applied {applied}")
        if after < last and term_at(after + 1) == self._committed_terms.get(after + 1, 0):
            self.violated(f"durability: {peer} removes {after + 1}, which is committed")

    def promises_entries(self, peer: str, index: int, term: int, on_disk: int | None) -> None:
        """A reply to AppendEntries leaves which says that everything up to ``index`` is there."""
        if on_disk != term:
            self.violated(f"durability: {peer} says that it has {index} of term {term}; its disk has {on_disk}")

    # -- commits -------------------------------------------------------------------------------------------------------

    def commits(self, leader: str, term: int, index: int, term_at: TermAt, change: ConfigChange, has: Counts) -> None:
        """A leader counts ``index`` as committed; ``term_at`` tells the terms of its entries, ``has`` who holds it."""
        entry_term = term_at(index)
        if entry_term != term:
            self.violated(f"commit: {leader} commits {index} of term {entry_term} in term {term}")
        if not has_quorum(change, has):
            self.violated(f"commit: {leader} commits {index}, which is not on the disks of a majority")
        for each in range(self.committed + 1, index + 1):
            self._committed_terms[each] = term_at(each) or 0
        self.committed = max(self.committed, index)
        self._commits[term] = (index, entry_term or 0)

    def follows(self, peer: str, commit: int) -> None:
        """What a follower takes for committed."""
        if commit > self.committed:
            self.violated(f"commit: {peer} believes in {commit}, and the leaders only in {self.committed}")

    def is_committed(self, index: int, term: int | None) -> bool:
        """Whether the entry at ``index`` is the committed one, and not one that another leader replaced."""
        return index <= self.committed and term in (None, self._committed_terms.get(index, 0))

    # -- the state machine ---------------------------------------------------------------------------------------------

    def applies(self, peer: str, entry: LogEntry, expected: int, on_disk: int | None) -> None:
        """``expected`` is the index that has to come next at this peer."""
        if entry.index != expected:
            self.violated(f"state machine safety: {peer} applies {entry.index} instead of {expected}")
            return
        if on_disk != entry.term:
            self.violated(f"durability: {peer} applies {entry.index}, which is not on its disk")
        if entry.index > self.committed:
            self.violated(f"state machine safety: {peer} applies {entry.index}, and {self.committed} is committed")
        if entry.index <= len(self.applied):
            if self.applied[entry.index - 1].frame != entry.frame:
                self.violated(f"state machine safety: {peer} applies another {entry.index} than others")
        elif entry.index == len(self.applied) + 1:
            self._apply_first(entry)
        else:
            self.violated(f"state machine safety: {peer} applies {entry.index}, and nobody the one before")

    def _apply_first(self, entry: LogEntry) -> None:
        self.applied.append(entry)
        self._states.append(crc32(entry.frame, self._states[-1]))
        self._check_promise(entry.index)
        if entry.kind is EntryKind.CONFIG:
            self._members_at = entry.index
        name = entry.request_id.raw
        if not any(name) or entry.kind is EntryKind.CHECKPOINT:
            return
        first = self._applied_ids.setdefault(name, entry.index)
        if first != entry.index:
            self.violated(f"exactly once: {name.hex()} is applied at {first} and {entry.index}")

    def state_after(self, index: int) -> bytes:
        """What a snapshot of the state after ``index`` holds. It is as long as the state: chunks are not trivial."""
        state = self._states[index]
        return b"%d:%d;" % (index, state) + state.to_bytes(4, "big") * (16 + state % 64)

    def restores(self, peer: str, index: int, data: bytes, commit_known: int) -> None:
        """A state machine takes over a snapshot."""
        if index > len(self.applied) or self.state_after(index) != data:
            self.violated(f"state machine safety: {peer} restores a snapshot of {index} that is none")

    # -- clients -------------------------------------------------------------------------------------------------------

    def acknowledges(self, request_id: bytes, index: int) -> None:
        """A client was told that its update is at ``index``."""
        if index > self.committed:
            self.violated(f"durability: {request_id.hex()} is said to be at {index}, and {self.committed} is committed")
        self._promised[index] = request_id
        self._check_promise(index)
        self.acknowledged[request_id] = index
        self.newest_known = max(self.newest_known, index)

    def _check_promise(self, index: int) -> None:
        """When it is applied: a change of the cluster is acknowledged as soon as it is committed."""
        promised = self._promised.get(index)
        if promised is not None and index <= len(self.applied) and self.applied[index - 1].request_id.raw != promised:
            self.violated(f"exactly once: {promised.hex()} is said to be at {index}, and is not")

    def expires(self, request_id: bytes, *, is_fresh: bool) -> None:
        """A client was told that its id is too old, or too new: final."""
        if is_fresh:
            self.violated(f"exactly once: {request_id.hex()} is fresh, and refused as expired")

    def reads(self, peer: str, index: int, newest_when_asked: int) -> None:
        """A read that was asked for when a client knew of ``newest_when_asked`` is served at ``index``."""
        if index < newest_when_asked:
            self.violated(f"reads: {peer} serves a read at {index}; {newest_when_asked} was known before it was asked")
        self.newest_known = max(self.newest_known, index)

    # -- the end -------------------------------------------------------------------------------------------------------

    def ends(self, peer: str, applied: int) -> None:
        """After everything healed: what a peer has applied."""
        missing = [(index, name) for name, index in self.acknowledged.items() if index > applied]
        for index, name in sorted(missing)[:1]:
            self.violated(f"durability: {name.hex()} was acknowledged at {index}; in the end {peer} has {applied}")

    def seeds(self, entries: Iterable[LogEntry], committed: int, commits: dict[int, tuple[int, int]]) -> None:
        """The cluster begins with a history: these entries are committed."""
        for entry in entries:
            self._apply_first(entry)
            self._committed_terms[entry.index] = entry.term
        self.committed = max(self.committed, committed)
        self._commits.update(commits)
