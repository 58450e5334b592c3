"""The simulation sees bugs: with one deliberate mistake in the machine some schedule fails, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pytest
from sites_schedule import run_schedule
from support.schedules import Mutants, seeds_near

from statestore_client.server.kvstore import area_store, members, replica
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.area_store import MergeResult
from statestore_client.server.kvstore.floods import FloodLimiter, Path
from statestore_client.server.kvstore.members import Members
from statestore_client.server.kvstore.own_keys import OwnKey, OwnKeys
from statestore_client.server.kvstore.replica import Replica
from statestore_client.server.kvstore.site import Site
from statestore_client.server.kvstore.sync import Phase, RangeSums, SyncSession
from statestore_client.wire.kvstore.messages import Hello
from statestore_client.wire.kvstore.value import NoMergeReason, Value

#: A bug that is not seen in so many schedules is not seen.
_SCHEDULES = 800
#: With what the schedule complains of, and the first one that does.
MUTANTS = Mutants()
CALM = "of calm"


@MUTANTS.instead(SyncSession, "_compared", (CALM, 464))
def changes_during_a_sync_of_equal_stores_are_not_sent(
    compared: Any, session: SyncSession, request: Any, reply: Any
) -> None:
    compared(session, request, reply)
    if reply.is_equal:
        session.phase = Phase.DONE


@MUTANTS.instead(SyncSession, "_answered", (CALM, 18))
def only_the_first_part_of_a_sync_is_asked_for(answered: Any, session: SyncSession, request: Any, reply: Any) -> None:
    answered(session, request, attrs.evolve(reply, next=None))


@MUTANTS.instead(Area, "merge", ("", 0))
def floods_of_what_is_known_already(
    merge: Any, area: Area, entries: Mapping[str, Value], sender: str | None, now: float
) -> MergeResult:
    result = merge(area, entries, sender, now)
    return MergeResult({key: entry for key, entry in entries.items() if area.get(key) is not None}, result.reasons)


@MUTANTS.instead(RangeSums, "change", ("", 12))
def sums_of_entries_that_have_expired(change: Any, sums: RangeSums, key: str, entry: Value | None) -> None:
    if entry is not None:
        change(sums, key, entry)


@MUTANTS.instead(area_store, "decide", (CALM, 0))
def of_equal_versions_the_first_one_stays(decide: Any, entry: Value, current: Value | None, sender: str | None) -> Any:
    if current is not None and entry.version == current.version and entry.originator != current.originator:
        return NoMergeReason.NO_NEED_TO_UPDATE
    return decide(entry, current, sender)


@MUTANTS.instead(FloodLimiter, "admit", ("", 80))
def merged_floods_under_the_paths_of_all(
    admit: Any, limiter: FloodLimiter, keys: Iterable[str], path: Path, now: float
) -> bool:
    for other in limiter._paths:
        path = tuple(dict.fromkeys(other + path))
    waiting = tuple(limiter._keys)
    return admit(limiter, keys, path, now) or (bool(waiting) and admit(limiter, waiting, path, now))


@MUTANTS.instead(Replica, "_due_at", (CALM, 0))
def one_side_never_syncs(due_at: Any, replica: Replica, peer: Any) -> Any:
    return due_at(replica, peer) if replica._site < peer.name else None


@MUTANTS.instead(OwnKeys, "_go_above", ("own key", 0))
def a_key_that_was_set_is_lost_to_a_former_life(
    go_above: Any, keys: OwnKeys, key: str, own: OwnKey, entry: Value, now: float
) -> None:
    if own.is_persisted:
        go_above(keys, key, own, entry, now)
    else:
        keys._lose(key, entry, now)


@MUTANTS.instead(Site, "receive", ("s old", 3))
def a_site_that_stood_still_takes_what_is_old(
    receive: Any, site: Site, link_id: Any, data: bytes, now: float, user: str | None = None
) -> None:
    link = site.members.links.get(link_id)
    if link is not None:
        link.heard_at = now
    receive(site, link_id, data, now, user)


@MUTANTS.instead(Members, "receive_hello", ("s old", 2))
def an_old_answer_to_a_hello_is_taken(
    receive_hello: Any, members: Members, link_id: Any, hello: Hello, now: float, user: str | None
) -> None:
    link = members.links.get(link_id)
    if link is not None:
        link.said_hello_at = now
    receive_hello(members, link_id, hello, now, user)


MUTANTS.replace("changes_during_a_sync_are_not_sent", Replica, "_pend", lambda *_: None, (CALM, 178))
MUTANTS.replace("lost_floods_are_not_repaired", Replica, "missed", lambda *_: None, (CALM, 95))
MUTANTS.replace(
    "no_split_horizon", Replica, "_targets", lambda replica, _: list(replica.peers.values()), ("back to", 0)
)
MUTANTS.replace("a_peer_is_never_down", members, "DOWN_S", 1e9, (CALM, 0))
MUTANTS.replace("stores_are_compared_once", replica, "CHECK_S", 1e9, (CALM, 12))


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_a_bug_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch, figures: Callable[[str], None]) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant, (complaint, known) = MUTANTS[mutant]
    plant(monkeypatch)
    for seed in seeds_near(known, near=_SCHEDULES, most=_SCHEDULES):
        outcome = run_schedule(seed)
        if any(complaint in violation for violation in outcome.violations):
            figures(f"found by schedule {seed}")
            return
    pytest.fail("no schedule saw it")
