"""Every order of what can happen to a key of two sites ends as people were told, and mistakes in that are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import Any

import attrs
import pytest
from own_key_model import STEPS, STEPS_OF_ONE, every_order, random_steps, random_violations, violations
from support.schedules import SCALE, Mutants, run_schedules

from statestore_client.server.kvstore import own_keys
from statestore_client.server.kvstore.own_keys import OwnKey, OwnKeys
from statestore_client.wire.kvstore.value import Value

#: Steps of the orders that are all tried.
_MOST = 3 if SCALE < 1 else 4 if SCALE < 10 else 5
MUTANTS = Mutants()


def test_every_order_ends_as_people_were_told() -> None:
    """However sites set, persist, unset, start again, part, meet and wait: nobody loses a key to itself, what is kept
    alive is everywhere, and what is not ends.
    """
    _check(every_order(1, _MOST))


@pytest.mark.ci
def test_every_longer_order_of_one_site_ends_as_people_were_told() -> None:
    """The same, one step longer, where the other site only listens."""
    _check(every_order(_MOST + 1, _MOST + 1, STEPS_OF_ONE))


def _check(orders: Iterable[tuple[str, ...]]) -> None:
    wrong = {steps: found for steps in orders if (found := violations(steps))}
    assert not wrong, f"{len(wrong)} orders, the first of them {next(iter(wrong.items()))}"


def test_the_orders_are_all_of_them() -> None:
    """Nothing is left out but what begins with a step that does nothing."""
    assert len(STEPS) == 12
    assert len(set(every_order(1, 3))) == 6 * (1 + 12 + 12 * 12)


@pytest.mark.ci
def test_long_orders_within_batches_and_with_wrong_clocks(record_property: Callable[[str, object], None]) -> None:
    """The same for longer orders, whose steps join a batch now and then, and where wall clocks are set wrong."""
    run_schedules(
        "keys of two sites",
        random_violations,
        record_property,
        long=200_000,
        violation=lambda found: found[0] if found else None,
        explain=lambda seed: f"seed {seed}: {', '.join(random_steps(seed))}",
    )


def test_a_key_that_is_set_goes_above_a_former_life() -> None:
    """The site sets it with the line down after a start, and does not lose it to itself when the line stands again."""
    assert violations(("set a", "set a", "restart a", "set a", "sync", "expiry")) == []


# -- mistakes ----------------------------------------------------------------------------------------------------------


@MUTANTS.instead(OwnKeys, "changed")
def a_key_that_was_set_is_lost_to_a_former_life(
    changed: Any, keys: OwnKeys, key: str, entry: Value, now: float
) -> None:
    own = keys.get(key)
    if own is not None and not own.is_persisted and entry.version > own.entry.version:
        keys._lose(key, entry, now)
    else:
        changed(keys, key, entry, now)


@MUTANTS.instead(OwnKeys, "changed")
def a_key_that_was_set_is_defended_like_one_that_is_persisted(
    changed: Any, keys: OwnKeys, key: str, entry: Value, now: float
) -> None:
    own = keys.get(key)
    if own is not None:
        own.is_persisted = True
    changed(keys, key, entry, now)


@MUTANTS.instead(OwnKeys, "_go_above")
def an_override_is_answered_with_its_own_version(
    go_above: Any, keys: OwnKeys, key: str, own: OwnKey, entry: Value, now: float
) -> None:
    go_above(keys, key, own, attrs.evolve(entry, version=entry.version - 1), now)


@MUTANTS.instead(OwnKeys, "_repeat_last_word")
def a_last_word_is_defended_against_other_sites(repeat: Any, keys: OwnKeys, key: str, entry: Value, now: float) -> None:
    repeat(keys, key, attrs.evolve(entry, originator=keys.site), now)


@MUTANTS.instead(OwnKeys, "_schedule_refresh")
def keys_are_refreshed_when_their_time_is_over(schedule: Any, keys: OwnKeys, key: str, own: OwnKey, now: float) -> None:
    schedule(keys, key, own, now + own.entry.ttl_ms / 1000)


MUTANTS.replace("a_last_word_is_said_once", OwnKeys, "minds", OwnKeys.guards)
MUTANTS.replace("an_override_is_not_answered", OwnKeys, "_pend", lambda *_: None)
MUTANTS.replace("a_wrong_clock_is_taken_for_another_site", own_keys, "_NAMESAKE_ANSWERS", 1)


def _found() -> Iterator[list[str]]:
    yield from map(violations, every_order(1, 3))
    yield from map(violations, islice(every_order(5, 5, STEPS_OF_ONE), 300))
    yield from map(random_violations, islice(count(1), 300))


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_a_mistake_is_seen(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With it some order ends otherwise than people were told."""
    plant, _ = MUTANTS[mutant]
    plant(monkeypatch)
    assert any(_found())
