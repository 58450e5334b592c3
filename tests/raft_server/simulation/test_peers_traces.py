"""Traces of the simulation run through a reference model that shares nothing with the node; planted lies are found.

``tests/support/schedules.py`` says how many schedules there are, and how one is repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from itertools import count, islice
from typing import Any

import attrs
import pytest
from peers_process import SimulatedPeer
from peers_schedule import plan, run
from support.raft_trace import Trace, TracedNode
from support.raft_trace_model import first_broken
from support.schedules import SCALE, run_schedules

from raft_client.server.node import election
from raft_client.server.node.commit import Commit
from raft_client.server.node.replication import Replication

Event = dict[str, Any]


def _trace_of(seed: int) -> list[Event] | None:
    """None for a schedule with simulated Node peers: these write no traces."""
    schedule = plan(seed)
    if schedule.profile.node_peers:
        return None
    lines: list[bytes] = []
    make_node = partial(TracedNode, trace=Trace(lines.append, count().__next__))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedPeer, "make_node", staticmethod(make_node))
        run(schedule)
    return [json.loads(line) for line in lines]


def _traces() -> Iterator[tuple[int, list[Event]]]:
    found = ((seed, _trace_of(seed)) for seed in count(1))
    return ((seed, events) for seed, events in found if events is not None)


def _first_broken(seed: int) -> tuple[str | None, Counter[str]]:
    events = _trace_of(seed) or []
    return first_broken(events), Counter(event["what"] for event in events)


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_the_model_finds_nothing_in_what_the_peers_do(record_property: Callable[[str, object], None]) -> None:
    """Hundreds of schedules of failures, and every kind of event is in them."""
    totals = run_schedules(
        "traces of peers",
        _first_broken,
        record_property,
        long=20_000,
        violation=lambda outcome: outcome[0],
        counts=lambda outcome: outcome[1],
    )
    if SCALE < 1:
        return  # too few for all kinds
    kinds = {"start", "role", "hard_state", "truncated", "appended", "snapshot", "committed", "restored", "applied"}
    assert kinds | {"acknowledged", "asked", "granted"} <= totals.keys()


# -- lies --------------------------------------------------------------------------------------------------------------


@cache
def _rich_trace() -> list[Event]:
    """Of a schedule with two leaders that commit, a restart, a cut and what clients are told."""
    return next(events for _, events in _traces() if _is_rich(events))


def _is_rich(events: list[Event]) -> bool:
    kinds = Counter(event["what"] for event in events)
    leaders = [event for event in events if event["what"] == "role" and event["role"] == "leader"]
    starts = Counter(event["peer"] for event in events if event["what"] == "start")
    wanted = ("granted", "truncated", "acknowledged", "applied", "committed", "appended", "hard_state")
    has_all = all(kinds[kind] > 2 for kind in wanted) and _restart_after_a_vote(events) is not None
    return has_all and len(leaders) > 2 and len(starts) > 2


def _restart_after_a_vote(events: list[Event]) -> int | None:
    """Where a peer starts in the term in which it has voted."""
    voted: dict[str, int] = {}
    for place, event in enumerate(events):
        if event["what"] == "start" and event["vote"] and voted.get(event["peer"]) == event["term"]:
            return place
        if event["what"] == "hard_state":
            voted[event["peer"]] = event["term"]
    return None


def _find(events: list[Event], holds: Callable[[Event], Any], *, last: bool = False) -> int:
    places = [place for place, event in enumerate(events) if holds(event)]
    return places[-1 if last else 0]


def _is(what: str, **fields: Any) -> Callable[[Event], bool]:
    return lambda event: event["what"] == what and all(event.get(key) == value for key, value in fields.items())


def _after(events: list[Event], place: int, what: str, **fields: Any) -> None:
    """Insert an event of the same peer."""
    events.insert(place + 1, {"at": events[place]["at"], "peer": events[place]["peer"], "what": what, **fields})


def _leads(event: Event) -> bool:
    return event["what"] == "role" and event["role"] == "leader"


def _commits(event: Event) -> bool:
    return event["what"] == "committed" and event["members"] is not None


def _votes_twice(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "hard_state" and event["vote"])
    _after(events, place, "hard_state", term=events[place]["term"], vote="somebody else")


def _forgets_its_vote(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "hard_state" and event["vote"])
    _after(events, place, "hard_state", term=events[place]["term"], vote="")


def _goes_back_in_its_term(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "hard_state" and event["term"] > 1)
    _after(events, place, "hard_state", term=events[place]["term"] - 1, vote="")


def _starts_without_its_vote(events: list[Event]) -> None:
    """The disk has lost what was synced."""
    place = _restart_after_a_vote(events)
    assert place is not None
    events[place]["vote"] = ""


def _leads_beside_another(events: list[Event]) -> None:
    for place in (place for place, event in enumerate(events) if _leads(event)):
        others = {event["peer"] for event in events[:place]} - {events[place]["peer"]}
        if others:
            events.insert(place + 1, {**events[place], "peer": min(others)})
            return


def _leads_without_votes(events: list[Event]) -> None:
    place = _find(events, _leads)
    events[place]["term"] += 1000


def _has_another_entry(events: list[Event]) -> None:
    known: set[tuple[int, int]] = set()
    for event in events:
        for entry in event["entries"] if event["what"] == "appended" else ():
            if (entry[0], entry[1]) in known:
                entry[2] ^= 1
                return
            known.add((entry[0], entry[1]))


def _leaves_a_gap(events: list[Event]) -> None:
    events[_find(events, lambda event: event["what"] == "appended")]["entries"][0][0] += 1


def _appends_an_older_term(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "appended" and event["entries"][0][1] > 1)
    events[place]["entries"][0][1] += 1000


def _cuts_what_is_committed(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "applied" and event["entries"])
    _after(events, place, "role", role="follower", term=1, members=None)
    _after(events, place + 1, "truncated", after=events[place]["entries"][-1][0] - 1)


def _leader_cuts_its_log(events: list[Event]) -> None:
    """At a leader that has an entry of its own on its disk."""
    leads: dict[str, int] = {}
    for place, event in enumerate(events):
        if event["what"] in ("role", "start"):
            leads[event["peer"]] = event["term"] if _leads(event) else 0
        if event["what"] == "appended" and leads.get(event["peer"]):
            _after(events, place, "truncated", after=event["entries"][-1][0] - 1)
            return
    raise AssertionError("no leader appends")


def _commits_without_a_majority(events: list[Event]) -> None:
    events[_find(events, _commits)]["members"][0] += ["x", "y", "z", "u", "v", "w"]


def _commits_an_old_term(events: list[Event]) -> None:
    events[_find(events, _commits)]["in"] += 1


def _takes_back_a_commit(events: list[Event]) -> None:
    place = _find(events, _commits)
    _after(events, place, "committed", **{**_fields(events[place]), "index": events[place]["index"] - 1})


def _fields(event: Event) -> Event:
    return {key: value for key, value in event.items() if key not in ("at", "peer", "what")}


def _believes_too_much(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "committed" and event["members"] is None)
    events[place]["index"] += 1000


def _leads_without_what_is_committed(events: list[Event]) -> None:
    """Its disk is empty, its votes are given: as if voters did not compare logs."""
    place = _find(events, _commits, last=True)
    term, name = events[place]["in"] + 1000, "new"
    at, members = events[place]["at"], ["new"]
    start = {"term": 0, "vote": "", "snapshot": None, "entries": [], "committed": 0, "applied": 0}
    events[place + 1 :] = [
        {"at": at, "peer": name, "what": "start", **start},
        {"at": at, "peer": name, "what": "hard_state", "term": term, "vote": name},
        {"at": at, "peer": name, "what": "role", "role": "leader", "term": term, "members": [members]},
    ]


def _starts_without_what_is_committed(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "applied")
    peer = events[place]["peer"]
    last = [event for event in events[:place] if event["peer"] == peer and event["what"] in ("start", "hard_state")][-1]
    start = {"term": last["term"], "vote": last["vote"], "snapshot": None, "entries": [], "committed": 0, "applied": 0}
    _after(events, place, "start", **start)


def _applies_another_entry(events: list[Event]) -> None:
    events[_find(events, _is("applied"))]["entries"][0][2] ^= 1


def _skips_an_entry(events: list[Event]) -> None:
    place = _find(events, lambda event: event["what"] == "applied" and len(event["entries"]) > 1)
    del events[place]["entries"][0]


def _applies_twice(events: list[Event]) -> None:
    place = _find(events, _is("applied"))
    events.insert(place + 1, events[place])


def _acknowledges_what_is_not_there(events: list[Event]) -> None:
    events[_find(events, _is("acknowledged"))]["index"] += 1000


def _acknowledges_another_update(events: list[Event]) -> None:
    events[_find(events, _is("acknowledged"))]["id"] = "ff" * 12


def _serves_a_stale_read(events: list[Event]) -> None:
    """A read that was asked for when a client knew of an update."""
    place = _find(events, lambda event: event["what"] == "granted" and event["index"], last=True)
    events[place]["index"] = 0


def _has_a_snapshot_of_what_is_not_committed(events: list[Event]) -> None:
    place = _find(events, _is("appended"), last=True)
    _after(events, place, "snapshot", index=10**6, term=1)


_LIES = {
    "votes": [_votes_twice, _forgets_its_vote, _goes_back_in_its_term, _starts_without_its_vote],
    "election": [_leads_beside_another, _leads_without_votes],
    "log matching": [_has_another_entry, _leaves_a_gap, _appends_an_older_term],
    "append-only": [_leader_cuts_its_log],
    "commit": [
        _cuts_what_is_committed,
        _commits_without_a_majority,
        _commits_an_old_term,
        _takes_back_a_commit,
        _believes_too_much,
        _starts_without_what_is_committed,
        _has_a_snapshot_of_what_is_not_committed,
    ],
    "completeness": [_leads_without_what_is_committed],
    "state machine": [_applies_another_entry, _skips_an_entry, _applies_twice],
    "reads": [_serves_a_stale_read],
    "acknowledged": [_acknowledges_what_is_not_there, _acknowledges_another_update],
}


@pytest.mark.parametrize(("rule", "lie"), [(rule, lie) for rule, lies in _LIES.items() for lie in lies])
@pytest.mark.ci
def test_a_lie_is_found_by_the_rule_that_it_breaks(rule: str, lie: Callable[[list[Event]], None]) -> None:
    """One event of a true trace is another one, and the model says which rule that breaks."""
    events = deepcopy(_rich_trace())
    assert first_broken(events) is None
    lie(events)
    found = first_broken(events)
    assert found is not None
    assert found.startswith(f"{rule}: "), found


# -- broken nodes ------------------------------------------------------------------------------------------------------


def _votes_for_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(election.Election, "_is_up_to_date", lambda *_: True)


def _votes_in_each_term_for_all(patch: pytest.MonkeyPatch) -> None:
    def on_request_vote(self: election.Election, request: Any, message: Any) -> None:
        self._state.voted_for = ""
        original(self, request, attrs.evolve(message, leader_agrees=True))

    original = election.Election.on_request_vote
    patch.setattr(election.Election, "on_request_vote", on_request_vote)


def _commits_entries_of_an_old_term(patch: pytest.MonkeyPatch) -> None:
    def settle(commit: Commit) -> None:
        if commit._state.is_leader:
            commit._state.commit_index = max(commit._state.commit_index, commit._replication.committed_index)

    patch.setattr(Commit, "settle", settle)


def _counts_its_own_disk_too_early(patch: pytest.MonkeyPatch) -> None:
    def match_of(self: Replication, peer_id: str) -> int:
        return self._state.log.last_index if peer_id == self._state.id else original(self, peer_id)

    original = Replication._match_of
    patch.setattr(Replication, "_match_of", match_of)


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        ("completeness", _votes_for_whoever_asks),
        ("votes", _votes_in_each_term_for_all),
        ("commit", _commits_entries_of_an_old_term),
        ("commit", _counts_its_own_disk_too_early),
    ],
)
def test_the_trace_of_a_broken_node_is_found(rule: str, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The model alone says which rule it breaks: what the simulation's own audit says is not asked."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = (first_broken(events) for _, events in islice(_traces(), 300))
        assert next(filter(None, found)).startswith(f"{rule}: ")
