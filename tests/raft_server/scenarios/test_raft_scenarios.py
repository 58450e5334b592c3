"""Scenarios: dangers of Raft as text files, with all that the peers do to escape them.

A file is prose that says what the danger is and where it was described, commands, and what each one makes happen::

    Prose begins at the margin.

    > timeout 1
        1 is candidate in term 2
        ...

A line after ``>`` is a command (:mod:`scenario_commands` lists them), the lines that are indented below it are what has
to come of it, and everything else is for readers. ``RAFT_SCENARIOS=rewrite`` writes what came of them into the files
instead of comparing it: read the difference before you commit it, as nobody else will.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from scenario_commands import Scenario
from support.raft_trace_model import first_broken

from raft_client.server.node import election, follower
from raft_client.server.node.commit import Commit
from raft_client.server.node.follower import Debounce
from raft_client.server.node.log import Log
from raft_client.server.node.peer_requests import PeerRequests
from raft_client.server.node.ready import Reply
from raft_client.server.node.replication import Replication
from raft_client.server.node.state import NodeState
from raft_client.wire.configuration import ConfigChange

_FOLDER = Path(__file__).parent
_FILES = sorted(_FOLDER.glob("*.txt"))
_REWRITES = os.environ.get("RAFT_SCENARIOS") == "rewrite"
_INDENT = "    "


def _play(text: str, scenario: Scenario | None = None) -> str:
    """The same text with what the commands make happen now."""
    scenario, lines = scenario or Scenario(), list[str]()
    for line in text.splitlines():
        if not line.startswith(_INDENT):
            lines.append(line)
        if line.startswith("> "):
            lines += [_INDENT + each for each in scenario.run(line[2:])]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_what_happens_is_what_the_scenario_says(file: Path) -> None:
    """Every message, every write and every change of role, in its order."""
    text = file.read_text()
    played = _play(text)
    if _REWRITES:
        file.write_text(played)
    else:
        assert played.splitlines() == text.splitlines()


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_what_happens_keeps_the_rules_of_raft(file: Path) -> None:
    """The reference model believes every scenario, but the first half of figure 10: two leaders in a term are there."""
    scenario = Scenario()
    _play(file.read_text(), scenario)
    found = [first_broken(map(json.loads, trace)) for trace in scenario.traces]
    if file.stem == "figure_10":
        assert (found.pop(0) or "").startswith("election: 1 and 5 lead in term 2")
    assert found == [None] * len(found)


# -- nodes that are broken ---------------------------------------------------------------------------------------------


def _commits_entries_of_an_old_term(patch: pytest.MonkeyPatch) -> None:
    def settle(commit: Commit) -> None:
        if commit._state.is_leader:
            commit._state.commit_index = max(commit._state.commit_index, commit._replication.committed_index)

    patch.setattr(Commit, "settle", settle)


def _asks_the_new_members_only(patch: pytest.MonkeyPatch) -> None:
    def has_majority(change: ConfigChange, counts: Callable[[str], bool]) -> bool:
        return sum(counts(peer.id) for peer in change.new) * 2 > len(change.new)

    patch.setattr(election, "has_majority", has_majority)


def _counts_the_old_members_only(patch: pytest.MonkeyPatch) -> None:
    def committed(replication: Replication) -> int:
        change = replication._state.configuration
        matches = sorted(replication._match_of(peer.id) for peer in change.old or change.new)
        return matches[(len(matches) - 1) // 2]

    patch.setattr(Replication, "committed_index", property(committed))


def _takes_any_reply_for_the_one_it_waits_for(patch: pytest.MonkeyPatch) -> None:
    def answered(requests: PeerRequests, reply: Reply) -> object:
        link = requests.get(reply.peer_id)
        question = link.question if link else None
        return None if question is None else original(requests, attrs.evolve(reply, request_id=question.request_id))

    original = PeerRequests.answered
    patch.setattr(PeerRequests, "answered", answered)


def _listens_to_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeState, "hears_leader", False)
    patch.setattr(election.Election, "_is_stranger", lambda *_: False)


_BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "check_quorum": lambda patch: patch.setattr(Replication, "quorum_heard_at", property(lambda self: self._state.now)),
    "conflict_index": lambda patch: patch.setattr(follower, "_conflict_index", lambda _state, index: index),
    "debounce": lambda patch: patch.setattr(Debounce, "is_repeated", lambda *_: False),
    "figure_7": lambda patch: patch.setattr(Log, "truncate_after", lambda *_: None),
    "figure_8": _commits_entries_of_an_old_term,
    "figure_10": _asks_the_new_members_only,
    "figure_11": _counts_the_old_members_only,
    "late_conflict": _takes_any_reply_for_the_one_it_waits_for,
    "late_read_index": lambda patch: patch.setattr(PeerRequests, "withdraw", lambda *_: None),
    "leader_with_a_slow_disk": lambda patch: patch.setattr(NodeState, "disk_stalled", False),
    "pre_vote_on_a_bridge": lambda patch: patch.setattr(NodeState, "hears_leader", False),
    "removed_leader_dies": lambda patch: patch.setattr(
        NodeState, "takes_part", property(lambda state: state.is_member(state.id))
    ),
    "removed_server_disrupts": _listens_to_whoever_asks,
    "request_id_over_a_change_of_leader": lambda patch: patch.setattr(Log, "index_of_request", lambda *_: None),
    "stale_read": lambda patch: patch.setattr(Replication, "quorum_asked_number", 2**53),
    "transfer_that_is_given_up": lambda patch: patch.setattr(PeerRequests, "withdraw", lambda *_: None),
    "vote_waits_for_the_disk": lambda patch: patch.setattr(
        NodeState, "send_durable", lambda state, output, *_, **__: state.send(output) or 0
    ),
}


@pytest.mark.parametrize("name", _BROKEN)
def test_a_node_without_its_defence_does_something_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scenario is about something: it fails when that is taken out of the node."""
    text = (_FOLDER / f"{name}.txt").read_text()
    _BROKEN[name](monkeypatch)
    try:
        played = _play(text)
    except (AssertionError, IndexError, ValueError):  # messages that a command speaks of are not there, and the like
        return
    assert played.splitlines() != text.splitlines()


def test_a_stale_read_is_found_in_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """If questions to a former leader stay open, the reference model says which read is stale."""
    _BROKEN["late_read_index"](monkeypatch)
    scenario = Scenario()
    _play((_FOLDER / "late_read_index.txt").read_text(), scenario)
    found = first_broken(map(json.loads, scenario.traces[0]))
    assert found is not None
    assert found.startswith("reads: 2 ")


# -- the files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_a_scenario_says_its_danger_and_its_source(file: Path) -> None:
    """A file without them, or without anything that it expects, is none."""
    text = file.read_text()
    assert "\nDanger: " in text
    assert "\nSource: " in text
    assert f"\n{_INDENT}" in text


def test_every_figure_of_the_paper_that_shows_a_danger_is_there() -> None:
    """Figures 7, 8, 10 and 11 of the paper, as its authors number them."""
    assert {"figure_7", "figure_8", "figure_10", "figure_11"} <= {file.stem for file in _FILES}


def test_what_is_no_command_is_refused() -> None:
    """A misspelt line must not pass for prose."""
    with pytest.raises(ValueError, match="no command of scenarios: elekt 1"):
        Scenario().run("elekt 1")
