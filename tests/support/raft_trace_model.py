"""A small Raft that only looks: it reads the traces of all peers and says which line cannot be.

It shares nothing with the node: what it knows are the rules, and the lines of :mod:`support.raft_trace`.

===============  =====================================================================================================
votes            one in a term, on the disk, also over restarts; terms do not go back
election         one leader in a term, with the votes of a majority (of both lists in a transition)
log matching     an index and a term stand for one entry, and for the same one before it; logs have no gaps
append-only      a leader cuts nothing
commit           by a leader: of its own term, on the disks of a majority; by others: what a leader committed. It never
                 goes back, and what is committed is neither cut, nor lost at a restart, nor another entry elsewhere
completeness     a leader has what was committed in the terms before its own
state machine    all apply what is committed, in order, each request id once
acknowledged     what a client is told is committed, with its id, and at one place
reads            a read sees what was acknowledged before it was asked for, and what is applied where it is served
===============  =====================================================================================================

``python tests/support/raft_trace_model.py FILE ...`` checks the traces that ``raft_trace.py`` wrote, one for each
peer.

Source: Ongaro and Ousterhout, *In Search of an Understandable Consensus Algorithm*, figure 3; Ongaro's thesis, §4.3.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import attrs

__all__ = ["TraceModel", "first_broken", "read_traces"]

Event: TypeAlias = dict[str, Any]
#: Term, CRC-32, request id.
Entry: TypeAlias = tuple[int, int, str]


class _BrokenError(Exception):
    """A line that cannot be."""


def _broken(rule: str, what: str) -> NoReturn:
    raise _BrokenError(f"{rule}: {what}")


@attrs.define(eq=False)
class _Peer:
    """What the trace has said of a peer: its disk, and what it believes in this life."""

    term: int = 0
    vote: str = ""
    base: int = 0  # the last index of its snapshot, and the term there
    base_term: int = 0
    log: dict[int, Entry] = attrs.field(factory=dict)
    committed: int = 0
    applied: int = 0
    leads_in: int | None = None

    @property
    def last(self) -> int:
        return self.base + len(self.log)

    def term_at(self, index: int) -> int | None:
        return self.base_term if index == self.base else self.log[index][0] if index in self.log else None

    def has(self, index: int, term: int) -> bool:
        return index < self.base or self.term_at(index) == term


class TraceModel:
    """``take`` one event after the other; it raises for the first that breaks a rule."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._leaders: dict[int, str] = {}
        self._known: dict[tuple[int, int], tuple[Entry, int]] = {}  # with the term before it
        self._committed = 0
        self._entries: dict[int, Entry] = {}  # that are committed, as far as any log has shown them
        self._committed_in: dict[int, int] = {}  # the term of the leader
        self._ids: dict[str, int] = {}  # of what was applied
        self._told: dict[str, int] = {}  # what was acknowledged
        self._newest_told = 0
        self._reads: dict[tuple[str, int], int] = {}  # what was acknowledged when they were asked for
        self._rules: dict[str, Callable[[str, _Peer, Event], None]] = {
            "hard_state": self._hard_state,
            "truncated": self._truncated,
            "appended": self._appended,
            "snapshot": self._snapshot,
            "role": self._role,
            "committed": self._commit,
            "applied": self._apply,
            "restored": self._restore,
            "acknowledged": self._acknowledge,
            "asked": self._ask,
            "granted": self._grant,
        }

    def take(self, event: Event) -> None:
        """Raises for an event that cannot have happened after those before it."""
        name = event["peer"]
        if event["what"] == "start":
            self._start(name, event)
        else:
            self._rules[event["what"]](name, self._peers[name], event)

    # -- disks ---------------------------------------------------------------------------------------------------------

    def _start(self, name: str, event: Event) -> None:
        before = self._peers.get(name)
        peer = self._peers[name] = _Peer() if before is None else _Peer(before.term, before.vote)
        self._hard_state(name, peer, event)
        if event["snapshot"] is not None:
            peer.base, peer.base_term = event["snapshot"]
        self._append(name, peer, event["entries"])
        peer.committed, peer.applied = event["committed"], event["applied"]
        if before is None:
            self._begins_with(name, peer)
        else:
            self._starts_again(name, before, peer)

    def _begins_with(self, name: str, peer: _Peer) -> None:
        """What was committed before the trace began: a leader of no later term than the peer's did it."""
        for index in range(peer.base + 1, peer.committed + 1):
            if self._entries.setdefault(index, peer.log[index]) != peer.log[index]:
                _broken("commit", f"{name} begins with another {index} than is committed")
            self._committed_in.setdefault(index, peer.term)
        self._committed = max(self._committed, peer.committed)

    def _starts_again(self, name: str, before: _Peer, peer: _Peer) -> None:
        if peer.base < before.base:
            _broken("commit", f"{name} starts without its snapshot of {before.base}")
        if peer.committed > self._committed:
            _broken("commit", f"{name} starts with {peer.committed}, and {self._committed} is committed")
        for index, entry in before.log.items():
            if index > peer.base and peer.log.get(index) != entry and self._entries.get(index) == entry:
                _broken("commit", f"{name} starts without {index}, which was on its disk and is committed")

    def _hard_state(self, name: str, peer: _Peer, event: Event) -> None:
        term, vote = event["term"], event["vote"]
        if term < peer.term:
            _broken("votes", f"{name} goes back from term {peer.term} to {term}")
        if term == peer.term and peer.vote and vote != peer.vote:
            _broken("votes", f"{name} voted for {peer.vote} in term {term}, and now for {vote or 'nobody'}")
        peer.term, peer.vote = term, vote
        if vote:
            self._votes[name, term] = vote

    def _truncated(self, name: str, peer: _Peer, event: Event) -> None:
        cut = [index for index in peer.log if index > event["after"]]
        if cut and peer.leads_in is not None:
            _broken("append-only", f"{name} leads in term {peer.leads_in} and cuts its log after {event['after']}")
        for index in cut:
            entry = peer.log.pop(index)
            if self._entries.get(index) == entry:
                _broken("commit", f"{name} cuts {index}, which is committed")

    def _appended(self, name: str, peer: _Peer, event: Event) -> None:
        self._append(name, peer, event["entries"])

    def _append(self, name: str, peer: _Peer, entries: list[tuple[int, int, int, str]]) -> None:
        for index, term, crc, request_id in entries:
            before = peer.term_at(peer.last) or 0
            if index != peer.last + 1:
                _broken("log matching", f"{name} has {index} after {peer.last}")
            if not before <= term <= peer.term:
                _broken("log matching", f"{name} has {index} of term {term} after term {before}, in term {peer.term}")
            entry = (term, crc, request_id)
            if self._known.setdefault((index, term), (entry, before)) != (entry, before):
                _broken("log matching", f"{index} of term {term} at {name} is another one elsewhere")
            peer.log[index] = entry

    def _snapshot(self, name: str, peer: _Peer, event: Event) -> None:
        index, term = event["index"], event["term"]
        if index > self._committed:
            _broken("commit", f"{name} has a snapshot of {index}, and {self._committed} is committed")
        if index in self._entries and self._entries[index][0] != term:
            _broken("commit", f"{name} has a snapshot that ends with {index} of term {term}, which is not committed")
        stays = peer.term_at(index) == term
        peer.log = {each: entry for each, entry in peer.log.items() if stays and each > index}
        peer.base, peer.base_term = index, term

    # -- leaders -------------------------------------------------------------------------------------------------------

    def _role(self, name: str, peer: _Peer, event: Event) -> None:
        term = event["term"]
        peer.leads_in = term if event["role"] == "leader" else None
        if peer.leads_in is None:
            return
        leader = self._leaders.setdefault(term, name)
        if leader != name:
            _broken("election", f"{leader} and {name} lead in term {term}")
        for members in event["members"]:
            if sum(self._votes.get((each, term)) == name for each in members) * 2 <= len(members):
                _broken("election", f"{name} leads in term {term} without the votes of a majority of {members}")
        for index, entry in self._entries.items():
            if index > peer.base and self._committed_in[index] < term and peer.log.get(index) != entry:
                _broken("completeness", f"{name} leads in term {term} without {index}, which is committed")

    def _commit_as_leader(self, name: str, event: Event) -> None:
        index, term = event["index"], event["term"]
        if term != event["in"] or self._leaders.get(term) != name:
            _broken("commit", f"{name} commits {index} of term {term} in term {event['in']}")
        for members in event["members"]:
            holders = [self._peers[each] for each in members if each in self._peers]
            holders = [each for each in holders if each.has(index, term)]
            if len(holders) * 2 <= len(members):
                _broken("commit", f"{name} commits {index}, which is not on the disks of a majority of {members}")
            for each in range(self._committed + 1, index + 1):
                entry = next((holder.log[each] for holder in holders if each in holder.log), None)
                if entry is not None:
                    self._entries[each], self._committed_in[each] = entry, term
        self._committed = max(self._committed, index)

    def _commit(self, name: str, peer: _Peer, event: Event) -> None:
        index, term = event["index"], event["term"]
        if index < peer.committed:
            _broken("commit", f"{name} goes back from {peer.committed} to {index}")
        if event["members"] is not None:
            self._commit_as_leader(name, event)
        if index > self._committed:
            _broken("commit", f"{name} believes in {index}, and {self._committed} is committed")
        if term is not None and index in self._entries and self._entries[index][0] != term:
            _broken("commit", f"{name} takes {index} of term {term} for committed, which it is not")
        peer.committed = index

    # -- state machines and clients ------------------------------------------------------------------------------------

    def _apply(self, name: str, peer: _Peer, event: Event) -> None:
        for index, *rest in event["entries"]:
            entry = tuple(rest)
            if index != peer.applied + 1:
                _broken("state machine", f"{name} applies {index} after {peer.applied}")
            if index > min(self._committed, peer.committed) or self._entries.get(index, entry) != entry:
                _broken("state machine", f"{name} applies {index}, which is not what is committed")
            if peer.log.get(index) != entry:
                _broken("state machine", f"{name} applies {index}, which is not on its disk")
            peer.applied = index
            request_id = rest[2]
            if int(request_id, 16) and self._ids.setdefault(request_id, index) != index:
                _broken("state machine", f"{request_id} is applied at {self._ids[request_id]} and {index}")

    def _restore(self, name: str, peer: _Peer, event: Event) -> None:
        if not peer.applied < event["index"] <= min(peer.base, self._committed):
            _broken("state machine", f"{name} restores {event['index']} after {peer.applied}")
        peer.applied = event["index"]

    def _acknowledge(self, name: str, peer: _Peer, event: Event) -> None:
        index, request_id = event["index"], event["id"]
        entry = self._entries.get(index)
        if index > min(self._committed, peer.committed) or (entry is not None and entry[2] != request_id):
            _broken("acknowledged", f"{name} says that {request_id} is at {index}, where it is not committed")
        if self._told.setdefault(request_id, index) != index:
            _broken("acknowledged", f"{request_id} is said to be at {self._told[request_id]} and {index}")
        self._newest_told = max(self._newest_told, index)

    def _ask(self, name: str, _peer: _Peer, event: Event) -> None:
        self._reads[name, event["read"]] = self._newest_told

    def _grant(self, name: str, peer: _Peer, event: Event) -> None:
        newest, index = self._reads.pop((name, event["read"])), event["index"]
        if index is not None and not newest <= index <= peer.applied:
            _broken("reads", f"{name} has applied {peer.applied} and reads at {index} what was at {newest} when asked")


def first_broken(events: Iterable[Event]) -> str | None:
    """The first event that cannot be, and why; None if all can."""
    model = TraceModel()
    for number, event in enumerate(events, 1):
        try:
            model.take(event)
        except _BrokenError as error:
            return f"{error} (event {number}: {json.dumps(event)})"
    return None


def read_traces(files: Iterable[Path]) -> list[Event]:
    """The lines of all peers, in the order in which they were written."""
    events = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
    return sorted(events, key=lambda event: event["at"])


if __name__ == "__main__":
    found = first_broken(read_traces(map(Path, sys.argv[1:])))
    print(found or "all that the peers did can be")  # noqa: T201 - a program for people
    sys.exit(found is not None)
