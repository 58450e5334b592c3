"""The audit complains of bad histories, each of which breaks one promise; and of a good one it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from peers_audit import Audit, has_quorum
from peers_profile import peers_of

from raft_client.server.node.ready import Configuration, HardState
from raft_client.wire.configuration import ConfigChange, encode_config
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.request_id import RequestId

_THREE = ConfigChange(peers_of(["1", "2", "3"]))


def _entry(index: int, term: int, data: bytes = b"x") -> LogEntry:
    request_id = RequestId.derive(data, index, seconds=1_709_164_800)
    return LogEntry.of(data, term=term, request_id=request_id, index=index)


def _elect(
    audit: Audit, leader: str, term: int, voters: str, log: dict[int, int] | None = None, members_at: int = 0
) -> None:
    for voter in voters:
        audit.persisted(voter, HardState(term - 1), HardState(term, leader))
    audit.elected(leader, term, Configuration(members_at, _THREE), lambda index, of: (log or {}).get(index) == of)


def _commit(
    audit: Audit, leader: str, term: int, index: int, holders: str = "12", entry_term: int | None = None
) -> None:
    audit.commits(leader, term, index, lambda _index: entry_term or term, _THREE, lambda name: name in holders)


def _two_leaders(audit: Audit) -> None:
    _elect(audit, "1", 2, "12")
    audit.elected("3", 2, Configuration(0, _THREE), lambda _index, _term: True)


def _leads_without_votes(audit: Audit) -> None:
    _elect(audit, "1", 2, "1")


def _votes_twice(audit: Audit) -> None:
    audit.persisted("1", HardState(1), HardState(2, "2"))
    audit.persisted("1", HardState(2, "2"), HardState(2, "3"))


def _forgets_its_vote(audit: Audit) -> None:
    audit.persisted("1", HardState(2, "2"), HardState(2))


def _goes_back(audit: Audit) -> None:
    audit.persisted("1", HardState(3), HardState(2))


def _votes_from_the_cache(audit: Audit) -> None:
    audit.promises_vote("1", "2", 5, HardState(4))


def _answers_in_a_term_that_is_not_on_disk(audit: Audit) -> None:
    audit.tells_term("1", 5, HardState(4))


def _other_entry(audit: Audit) -> None:
    audit.appended("1", _entry(1, 1, b"a"), 0)
    audit.appended("2", _entry(1, 1, b"b"), 0)


def _other_past(audit: Audit) -> None:
    audit.appended("1", _entry(3, 3), 2)
    audit.appended("2", _entry(3, 3), 1)


def _gap(audit: Audit) -> None:
    audit.appended("1", _entry(3, 3), None)


def _leader_removes(audit: Audit) -> None:
    audit.truncated("1", 3, 5, {4: 1}.get, is_leader=True, applied=0)


def _removes_what_it_applied(audit: Audit) -> None:
    audit.truncated("1", 3, 5, {4: 1}.get, is_leader=False, applied=4)


def _removes_what_is_committed(audit: Audit) -> None:
    _commit(audit, "1", 2, 4)
    audit.truncated("2", 3, 5, {4: 2}.get, is_leader=False, applied=0)


def _acknowledges_what_it_has_not(audit: Audit) -> None:
    audit.promises_entries("2", 4, 2, 1)


def _commits_an_old_term(audit: Audit) -> None:
    _commit(audit, "1", 4, 2, entry_term=2)


def _commits_without_a_majority(audit: Audit) -> None:
    _commit(audit, "1", 4, 2, holders="1")


def _leads_without_what_was_committed(audit: Audit) -> None:
    _commit(audit, "1", 2, 3)
    _elect(audit, "3", 3, "23", {1: 1, 2: 1})


def _leads_with_members_of_the_past(audit: Audit) -> None:
    change = LogEntry.of(encode_config(_THREE), term=1, kind=EntryKind.CONFIG, index=1)
    _commit(audit, "1", 1, 1)
    audit.applies("1", change, 1, 1)
    _elect(audit, "2", 2, "23", {1: 1})


def _follows_too_far(audit: Audit) -> None:
    audit.follows("2", 1)


def _applies_what_is_not_committed(audit: Audit) -> None:
    audit.applies("1", _entry(1, 1), 1, 1)


def _applies_what_is_not_on_disk(audit: Audit) -> None:
    _commit(audit, "1", 1, 1)
    audit.applies("1", _entry(1, 1), 1, None)


def _applies_another_entry(audit: Audit) -> None:
    _commit(audit, "1", 1, 1)
    audit.applies("1", _entry(1, 1, b"a"), 1, 1)
    audit.applies("2", _entry(1, 1, b"b"), 1, 1)


def _leaves_one_out(audit: Audit) -> None:
    _commit(audit, "1", 1, 2)
    audit.applies("1", _entry(2, 1), 1, 1)


def _applies_an_id_twice(audit: Audit) -> None:
    _commit(audit, "1", 1, 2)
    first = _entry(1, 1)
    for index in (1, 2):
        audit.applies("1", LogEntry(index, first.frame), index, 1)


def _acknowledges_the_wrong_place(audit: Audit) -> None:
    _commit(audit, "1", 1, 1)
    audit.applies("1", _entry(1, 1), 1, 1)
    audit.acknowledges(_entry(2, 1).request_id.raw, 1)


def _acknowledges_what_is_not_committed(audit: Audit) -> None:
    audit.acknowledges(_entry(1, 1).request_id.raw, 1)


def _loses_what_it_acknowledged(audit: Audit) -> None:
    _commit(audit, "1", 1, 1)
    audit.applies("1", _entry(1, 1), 1, 1)
    audit.acknowledges(_entry(1, 1).request_id.raw, 1)
    audit.ends("2", 0)


def _restores_something_else(audit: Audit) -> None:
    _commit(audit, "1", 1, 1)
    audit.applies("1", _entry(1, 1), 1, 1)
    audit.restores("2", 1, b"nothing", 0)


def _reads_the_past(audit: Audit) -> None:
    audit.reads("1", 4, 5)


def _expires_what_is_fresh(audit: Audit) -> None:
    audit.expires(bytes(12), is_fresh=True)


@pytest.mark.parametrize(
    ("history", "complaint"),
    [
        (_two_leaders, "election safety: 1 and 3 lead"),
        (_leads_without_votes, "without the votes"),
        (_votes_twice, "votes for 2 and 3"),
        (_forgets_its_vote, "forgets its vote"),
        (_goes_back, "goes back"),
        (_votes_from_the_cache, "before it is on disk"),
        (_answers_in_a_term_that_is_not_on_disk, "its disk says"),
        (_other_entry, "is another one elsewhere"),
        (_other_past, "is another one elsewhere"),
        (_gap, "nothing before"),
        (_leader_removes, "leader append-only"),
        (_removes_what_it_applied, "has applied"),
        (_removes_what_is_committed, "which is committed"),
        (_acknowledges_what_it_has_not, "its disk has"),
        (_commits_an_old_term, "of term 2 in term 4"),
        (_commits_without_a_majority, "not on the disks of a majority"),
        (_leads_without_what_was_committed, "leader completeness"),
        (_leads_with_members_of_the_past, "leads in term 2 with the members of 0"),
        (_follows_too_far, "the leaders only in"),
        (_applies_what_is_not_committed, "is committed"),
        (_applies_what_is_not_on_disk, "not on its disk"),
        (_applies_another_entry, "another 1 than others"),
        (_leaves_one_out, "instead of 1"),
        (_applies_an_id_twice, "exactly once"),
        (_acknowledges_the_wrong_place, "is said to be at 1, and is not"),
        (_acknowledges_what_is_not_committed, "and 0 is committed"),
        (_loses_what_it_acknowledged, "was acknowledged at 1"),
        (_restores_something_else, "restores a snapshot"),
        (_reads_the_past, "reads:"),
        (_expires_what_is_fresh, "refused as expired"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_bad_history_is_a_violation(history: Callable[[Audit], None], complaint: str) -> None:
    """One step too many, and the audit says which promise it breaks."""
    audit = Audit()
    history(audit)
    assert complaint in audit.violations[0]


def test_a_good_history_is_none() -> None:
    """Two leaders after each other, an entry that comes everywhere, a read and a snapshot."""
    audit = Audit()
    _elect(audit, "1", 1, "12")
    entry = _entry(1, 1)
    for name in "12":
        audit.appended(name, entry, 0)
    audit.promises_entries("2", 1, 1, 1)
    _commit(audit, "1", 1, 1)
    audit.applies("1", entry, 1, 1)
    audit.acknowledges(entry.request_id.raw, 1)
    _elect(audit, "2", 2, "23", {1: 1})
    audit.truncated("3", 0, 0, {}.get, is_leader=False, applied=0)
    audit.appended("3", entry, 0)
    audit.follows("3", 1)
    audit.applies("3", entry, 1, 1)
    audit.reads("2", 1, audit.newest_known)
    audit.restores("3", 1, audit.state_after(1), 1)
    for name in "123":
        audit.ends(name, 1)
    assert audit.violations == []


def test_a_transition_needs_both_majorities() -> None:
    """Joint consensus: neither list decides alone."""
    joint = ConfigChange(new=peers_of(["3", "4", "5"]), old=peers_of(["1", "2", "3"]))
    assert has_quorum(joint, lambda name: name in "134")
    assert not has_quorum(joint, lambda name: name in "123")
    assert not has_quorum(joint, lambda name: name in "345")
