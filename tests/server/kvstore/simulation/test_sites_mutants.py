"""The simulation sees bugs: with one deliberate mistake in the machine some schedule fails, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pytest
from sites_schedule import run_schedule

from statestore_client.server.kvstore import members as members_module
from statestore_client.server.kvstore import store as store_module
from statestore_client.server.kvstore.area import Area
from statestore_client.server.kvstore.flood import FloodLimiter, Path
from statestore_client.server.kvstore.range_sums import RangeSums
from statestore_client.server.kvstore.replica import Replica
from statestore_client.server.kvstore.store import MergeResult
from statestore_client.server.kvstore.sync_session import Phase, SyncSession
from statestore_client.wire.kvstore.value import NoMergeReason, Value

#: A bug that is not seen in so many schedules is not seen.
_SCHEDULES = 800

Patch = pytest.MonkeyPatch


def _pend_nothing(patch: Patch) -> None:
    patch.setattr(Replica, "_pend", lambda *_: None)


def _end_when_equal(patch: Patch) -> None:
    compared = SyncSession._compared

    def _compared(session: SyncSession, request: Any, reply: Any) -> None:
        compared(session, request, reply)
        if reply.is_equal:
            session.phase = Phase.DONE

    patch.setattr(SyncSession, "_compared", _compared)


def _take_no_notice_of_gaps(patch: Patch) -> None:
    patch.setattr(Replica, "missed", lambda *_: None)


def _ask_for_one_part(patch: Patch) -> None:
    answered = SyncSession._answered
    patch.setattr(
        SyncSession,
        "_answered",
        lambda session, request, reply: answered(session, request, attrs.evolve(reply, next=None)),
    )


def _send_back(patch: Patch) -> None:
    patch.setattr(Replica, "_targets", lambda replica, _path: list(replica.peers.values()))


def _send_on_what_is_known(patch: Patch) -> None:
    merge = Area.merge

    def merge_all(area: Area, entries: Mapping[str, Value], sender: str | None, now: float) -> MergeResult:
        result = merge(area, entries, sender, now)
        known = {key: entry for key, entry in entries.items() if area.get(key) is not None}
        return MergeResult(known, result.reasons)

    patch.setattr(Area, "merge", merge_all)


def _keep_sums_of_what_expired(patch: Patch) -> None:
    change = RangeSums.change
    patch.setattr(RangeSums, "change", lambda sums, key, entry: change(sums, key, entry) if entry else None)


def _never_miss_a_heartbeat(patch: Patch) -> None:
    patch.setattr(members_module, "DOWN_S", 1e9)


def _take_the_first_of_equals(patch: Patch) -> None:
    decide = store_module.decide

    def decide_without_names(entry: Value, current: Value | None, sender: str | None) -> Any:
        if current is not None and entry.version == current.version and entry.originator != current.originator:
            return NoMergeReason.NO_NEED_TO_UPDATE
        return decide(entry, current, sender)

    patch.setattr(store_module, "decide", decide_without_names)


def _merge_paths(patch: Patch) -> None:
    admit = FloodLimiter.admit

    def admit_under_one_path(limiter: FloodLimiter, keys: Iterable[str], path: Path, now: float) -> bool:
        for other in limiter._paths:
            path = tuple(dict.fromkeys(other + path))
        waiting = tuple(limiter._keys)
        if admit(limiter, keys, path, now):
            return True
        return admit(limiter, waiting, path, now) if waiting else False

    patch.setattr(FloodLimiter, "admit", admit_under_one_path)


def _stay_silent_until_asked(patch: Patch) -> None:
    due_at = Replica._due_at
    patch.setattr(
        Replica, "_due_at", lambda replica, peer: due_at(replica, peer) if replica._site < peer.name else None
    )


def _never_compare_again(patch: Patch) -> None:
    patch.setattr("statestore_client.server.kvstore.replica.CHECK_S", 1e9)


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        pytest.param(_pend_nothing, "of calm", id="changes during a sync are not sent"),
        pytest.param(_end_when_equal, "of calm", id="changes during a sync of equal stores are not sent"),
        pytest.param(_take_no_notice_of_gaps, "of calm", id="lost floods are not repaired"),
        pytest.param(_ask_for_one_part, "of calm", id="only the first part of a sync is asked for"),
        pytest.param(_send_back, "back to", id="no split horizon"),
        pytest.param(_send_on_what_is_known, "", id="floods of what is known already"),
        pytest.param(_keep_sums_of_what_expired, "", id="sums of entries that have expired"),
        pytest.param(_never_miss_a_heartbeat, "of calm", id="a peer is never down"),
        pytest.param(_take_the_first_of_equals, "of calm", id="of equal versions the first one stays"),
        pytest.param(_merge_paths, "", id="merged floods under the paths of all"),
        pytest.param(_stay_silent_until_asked, "of calm", id="one side never syncs"),
        pytest.param(_never_compare_again, "of calm", id="stores are compared once"),
    ],
)
def test_a_bug_is_seen(
    mutate: Callable[[Patch], None], complaint: str, monkeypatch: Patch, figures: Callable[[str], None]
) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    mutate(monkeypatch)
    for seed in range(_SCHEDULES):
        outcome = run_schedule(seed)
        if any(complaint in violation for violation in outcome.violations):
            figures(f"after {seed + 1} schedules")
            return
    pytest.fail("no schedule saw it")
