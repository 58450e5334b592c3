"""Thousands of schedules of failures, each from its seed: nothing that must hold is broken, and bugs would be seen.

``tests/support/schedules.py`` says how many there are, and how one is repeated; one alone prints what happens in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import sim_schedule
from sim_schedule import Outcome, run_schedule
from support.schedules import SCALE, Mutants, printed_by_two_processes, run_schedules

from statestore_client.core import edits, locks, watches
from statestore_client.core.arguments import value_bytes
from statestore_client.core.edits import Claims, Edit
from statestore_client.core.leases import LeaseView, guarded
from statestore_client.core.locks import LockTerms
from statestore_client.core.results import Item
from statestore_client.core.watches import WatchTable
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.store import store
from statestore_client.wire.commands import Get, Set
from statestore_client.wire.hlc import HlcTimestamp

#: A bug that is not seen in so many schedules is not seen.
_MUTANT_SCHEDULES = 400


def _run(seed: int) -> Outcome:
    return run_schedule(seed, trace=SCALE == 0)


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_all_schedules_keep_what_must_hold(record_property: Callable[[str, object], None]) -> None:
    """In every schedule tokens grow, no write is late, no belief is wrong, nothing is done twice, and every watcher is
    up to date in the end."""
    run_schedules(
        "clients and a store",
        _run,
        record_property,
        long=100_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda outcome: {
            "commands": outcome.commands,
            "grants": outcome.grants,
            "refused writes": outcome.refused_writes,
            **outcome.faults,
        },
    )


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from sim_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(15)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1


# -- the checker sees bugs ---------------------------------------------------------------------------------------------


#: With what the schedule complains of.
MUTANTS = Mutants()
_LOST = "an update was lost"


@MUTANTS.instead(locks, "_grant", "after its lease")
def lease_that_counts_from_the_answer(grant: Any, terms: LockTerms, answer: Any) -> Any:
    return grant(terms, attrs.evolve(answer, started=answer.finished))


MUTANTS.replace(
    "client_without_a_safety_margin",
    LockTerms,
    "valid_until",
    lambda terms, sent: sent + terms.lease,
    "after its lease",
)
MUTANTS.replace("server_that_checks_no_token", store, "pass_fence", lambda _mark, token: token, "was applied under")
MUTANTS.replace(
    "watch_that_reads_nothing_after_a_reconnect", WatchTable, "notifying",
    lambda table, key: table._activate(key, table.keys[key]), "last saw",
)  # fmt: skip
MUTANTS.replace("watch_that_takes_what_comes_again_for_news", watches, "_is_outdated", lambda *_: False, " saw ")
MUTANTS.replace("store_that_reads_without_a_claim", Claims, "_covers", lambda *_: True, _LOST)
MUTANTS.replace("store_that_writes_over_what_was_missing", Claims, "to_send", lambda _claims, command: command, _LOST)


@MUTANTS.instead(edits, "_edit", _LOST)
def edit_that_fences_its_write_only(_edit: Any, lease: LeaseView, work: Edit, token: HlcTimestamp) -> Any:
    item = (yield from guarded(lease, Get(work.key), work.timeout, None)).value
    value = value_bytes(work.change(None if item is None else item.value))
    answer = yield from guarded(lease, Set(work.key, value), work.timeout, token)
    return Item(value, answer.value.version)


_FORGETFUL = ResponseCacheLimits(max_entries=0)
MUTANTS.replace(
    "server_that_forgets_its_answers", sim_schedule, "ResponseCacheLimits", lambda: _FORGETFUL, "was applied twice"
)


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_a_bug_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant, complaint = MUTANTS[mutant]
    plant(monkeypatch)
    for seed in range(_MUTANT_SCHEDULES):
        outcome = run_schedule(seed)
        if any(complaint in violation for violation in outcome.violations):
            return
    pytest.fail("no schedule saw it")
