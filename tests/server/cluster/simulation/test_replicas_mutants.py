"""The simulation sees mistakes: with one in the core, or in what a server does with it, some schedule fails.

Each mutant is a mistake of the list in the plan of the replicated server, or one that was nearly made here. The
search begins at the schedule that is known to find the mutant; in the long run at the first one, and 2,000 may be
needed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replicas_mutants import (
    a_forced_claim_brings_its_format,
    a_forced_claim_speaks_at_once,
    a_lease_after_a_hand_over,
    a_lease_from_receipt,
    a_piece_is_taken_for_a_batch,
    acknowledges_what_is_in_the_log,
    claims_by_name,
    claims_that_compare_nothing,
    copies_of_batches_count,
    does_not_wait,
    gaps_are_accepted,
    hands_over_while_silent,
    newer_formats_are_taken_for_known_ones,
    pieces_of_a_deposed_owner_stay,
    speaks_without_a_lease,
    waits_as_if_clocks_had_one_rate,
    waits_for_its_own_lease_only,
)
from replicas_mutants_of_state import (
    a_hung_owner_gives_signs_of_life,
    a_removal_without_its_version,
    a_snapshot_is_whole_with_its_first_part,
    a_snapshot_without_rows_that_wait,
    a_stuck_owner_gives_signs_of_life,
    active_before_it_has_read_everything,
    answers_are_not_heard,
    challenges_are_not_answered,
    clocks_that_sleep_with_the_machine,
    deposed_keeps_its_machine,
    listeners_hear_no_time,
    log_time_ahead,
    log_time_behind_the_own_claim,
    log_time_of_former_owners,
    log_time_stands_still,
    no_grace_for_wills,
    nothing_is_sent_again,
    parts_overwrite_newer_rows,
    signs_of_life_from_the_event_loop,
    splices_survive_an_epoch,
    standbys_expire_keys,
    uncommitted_rows_in_a_snapshot,
    wall_clocks_as_deadlines,
)
from replicas_schedule import run_schedule
from support.schedules import SCALE, SEED

from statestore_client.server.cluster.codec import UnreadableLogError

Patch = pytest.MonkeyPatch

#: In the long run the search begins at the first seed.
_LIMIT = 2000 if SCALE >= 10 else 0
#: A change of the core or of the simulation changes what a seed gives: look a little further.
_NEAR = 400


#: Mutant -> the first schedule that finds it.
MUTANTS: dict[Callable[[Patch], None], int] = {
    claims_that_compare_nothing: 113,
    claims_by_name: 2,
    gaps_are_accepted: 2,
    pieces_of_a_deposed_owner_stay: 21,
    a_piece_is_taken_for_a_batch: 2,
    copies_of_batches_count: 2,
    acknowledges_what_is_in_the_log: 2,
    newer_formats_are_taken_for_known_ones: 55,
    a_forced_claim_brings_its_format: 543,
    a_lease_from_receipt: 86,
    a_lease_after_a_hand_over: 137,
    speaks_without_a_lease: 2,
    a_forced_claim_speaks_at_once: 4,
    hands_over_while_silent: 4,
    waits_for_its_own_lease_only: 518,
    waits_as_if_clocks_had_one_rate: 81,
    does_not_wait: 3,
    deposed_keeps_its_machine: 2,
    splices_survive_an_epoch: 2,
    active_before_it_has_read_everything: 10,
    log_time_of_former_owners: 832,
    log_time_behind_the_own_claim: 6,
    listeners_hear_no_time: 105,
    a_snapshot_is_whole_with_its_first_part: 10,
    standbys_expire_keys: 3,
    wall_clocks_as_deadlines: 3,
    parts_overwrite_newer_rows: 10,
    no_grace_for_wills: 2,
    a_removal_without_its_version: 10,
    challenges_are_not_answered: 143,
    answers_are_not_heard: 49,
    nothing_is_sent_again: 2,
    log_time_ahead: 2,
    log_time_stands_still: 3,
    a_stuck_owner_gives_signs_of_life: 41,
    signs_of_life_from_the_event_loop: 1655,
    a_hung_owner_gives_signs_of_life: 401,
    clocks_that_sleep_with_the_machine: 15,
    uncommitted_rows_in_a_snapshot: 961,
    a_snapshot_without_rows_that_wait: 40,
}


def _found(seed: int) -> str | None:
    """What goes wrong. That a server stops is wrong, too."""
    try:
        violations = run_schedule(seed, compares=False).violations
    except (UnreadableLogError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    return violations[0] if violations else None


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_the_simulation_finds(
    plant: Callable[[Patch], None], monkeypatch: Patch, figures: Callable[[str], None]
) -> None:
    """With one deliberate mistake some schedule fails, and says why."""
    plant(monkeypatch)
    first = SEED if _LIMIT else MUTANTS[plant]
    for seed in range(first, first + (_LIMIT or _NEAR)):
        if (violation := _found(seed)) is not None:
            figures(f"found by schedule {seed}: {violation}")
            return
    pytest.fail("no schedule saw it")
