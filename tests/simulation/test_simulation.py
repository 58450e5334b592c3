"""Thousands of schedules of failures, each from its seed: nothing that must hold is broken, and bugs would be seen.

``tests/support/schedules.py`` says how many there are, and how one is repeated; one alone prints what happens in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from sim_schedule import Outcome, run_schedule
from support.schedules import SCALE, printed_by_two_processes, run_schedules

from statestore_client.core import locks, watches
from statestore_client.core.locks import LockTerms
from statestore_client.core.watches import WatchTable
from statestore_client.server.service.response_cache import ResponseCacheLimits
from statestore_client.server.store import store

#: A bug that is not seen in so many schedules is not seen.
_MUTANT_SCHEDULES = 400


def _run(seed: int) -> Outcome:
    return run_schedule(seed, trace=SCALE == 0)


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


def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from sim_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(30)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1


# -- the checker sees bugs ---------------------------------------------------------------------------------------------


def _no_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockTerms, "valid_until", lambda terms, sent: sent + terms.lease)


def _count_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    grant = locks._grant
    patch.setattr(locks, "_grant", lambda terms, answer: grant(terms, attrs.evolve(answer, started=answer.finished)))


def _check_no_token(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store, "pass_fence", lambda _mark, token: token)


def _never_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatchTable, "notifying", lambda table, key: table._activate(key, table._keys[key]))


def _take_any_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(watches, "_is_outdated", lambda *_: False)


def _forget_answers(patch: pytest.MonkeyPatch) -> None:
    forgetful = ResponseCacheLimits(max_entries=0)
    patch.setattr("sim_schedule.ResponseCacheLimits", lambda: forgetful)


@pytest.mark.parametrize(
    ("mutate", "complaint"),
    [
        pytest.param(_no_margin, "after its lease", id="client without a safety margin"),
        pytest.param(_count_from_the_answer, "after its lease", id="lease that counts from the answer"),
        pytest.param(_check_no_token, "was applied under", id="server that checks no token"),
        pytest.param(_never_read_again, "last saw", id="watch that reads nothing after a reconnect"),
        pytest.param(_take_any_version, " saw ", id="watch that takes what comes again for news"),
        pytest.param(_forget_answers, "was applied twice", id="server that forgets its answers"),
    ],
)
def test_a_bug_is_seen(mutate: Callable[[Any], None], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    mutate(monkeypatch)
    for seed in range(_MUTANT_SCHEDULES):
        outcome = run_schedule(seed)
        if any(complaint in violation for violation in outcome.violations):
            return
    pytest.fail("no schedule saw it")
