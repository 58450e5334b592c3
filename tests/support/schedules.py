"""How much a run does, and simulated schedules: as many as the run has time for, from a seed that can be given.

``STATESTORE_TEST_SCALE`` is the one knob: 0.05 (the default) for a quick run, 1 for CI, 10 for the long run. It scales
schedules, kills, fuzzed inputs and crowds. ``STATESTORE_TEST_SEED`` is the first seed. With a scale of 0 there is one
of each: one schedule from its seed, say.

CI begins at another seed each day. What takes turns (marker ``turns``) goes by that day, too: with the seed that a run
of CI has printed, the same tests run.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

SCALE = float(os.environ.get("STATESTORE_TEST_SCALE", "0.05"))
SEED = int(os.environ.get("STATESTORE_TEST_SEED", "1"))
#: Of CI, which moves the first seed on by so much each day.
DAY = SEED // 100_000

#: Of the processor, for the schedules of one kind at scale 1.
_BUDGET_S = 6.0
_CHUNK = 50
_SHOWN = 5

T = TypeVar("T")


def scaled(ci: int, long: int) -> int:
    """How often: ``ci`` times at scale 1, ``long`` times at scale 10, in proportion in between; at least once."""
    return max(1, round(ci * SCALE if SCALE <= 1 else ci + (long - ci) * (SCALE - 1) / 9))


def seeds_for(run: Callable[[int], T], *, long: int, here: bool = False) -> Iterator[tuple[int, T]]:
    """Run the schedules of one kind: seed and outcome of each, in the order of the seeds.

    Up to scale 1 they run in this process until their share of the budget is used. Above, there are ``long`` of them at
    scale 10, on all cores; ``run`` must then be a function that other processes can import, or all run ``here``.
    """
    seeds = range(SEED, SEED + (scaled(0, long) if SCALE > 1 else long))
    if SCALE > 1 and not here:
        # Not forked: threads of other tests may hold locks.
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            yield from zip(seeds, pool.map(run, seeds, chunksize=_CHUNK), strict=True)
        return
    ends = time.thread_time() + _BUDGET_S * SCALE if SCALE <= 1 else math.inf
    for seed in seeds:
        yield seed, run(seed)
        if time.thread_time() >= ends:
            return


def run_schedules(
    kind: str,
    run: Callable[[int], T],
    record_property: Callable[[str, object], None],
    *,
    long: int,
    violation: Callable[[T], str | None],
    counts: Callable[[T], Mapping[str, int]] = lambda _outcome: {},
    explain: Callable[[int], str] = "seed {}".format,
    here: bool = False,
) -> Counter[str]:
    """Run the schedules of one kind, and put a row into the table at the end of the run (``tests/conftest.py``).

    Returns the sums of what ``counts`` gives. Raises AssertionError if a schedule has a violation.
    """
    began = time.monotonic()
    totals: Counter[str] = Counter()
    failed: dict[int, str] = {}
    done = 0
    for seed, outcome in seeds_for(run, long=long, here=here):
        done += 1
        totals.update(counts(outcome))
        if (found := violation(outcome)) is not None:
            failed[seed] = found
    row = [kind, done, f"{SEED} to {SEED + done - 1}", round(time.monotonic() - began), len(failed), dict(totals)]
    record_property("schedules", json.dumps(row))
    shown = "\n".join(f"{explain(seed)}: {found}" for seed, found in [*failed.items()][:_SHOWN])
    replay = "alone with STATESTORE_TEST_SCALE=0 STATESTORE_TEST_SEED=N"
    assert not failed, f"{len(failed)} of {done} schedules failed; each runs {replay}\n{shown}"
    return totals


Plant = Callable[[pytest.MonkeyPatch], object]


class Mutants(dict[str, tuple[Plant, Any]]):
    """Deliberate mistakes, each of which a simulation must find: name -> what plants it, and what a test notes."""

    def plant(self, note: Any = None) -> Callable[[Plant], Plant]:
        """The function plants it."""

        def register(plant: Plant) -> Plant:
            self[plant.__name__.strip("_")] = plant, note
            return plant

        return register

    def instead(self, target: object, method: str, note: Any = None) -> Callable[[T], T]:
        """The function is called instead of the method, which is its first argument."""

        def register(by: Any) -> Any:
            original = getattr(target, method)
            self.replace(by.__name__, target, method, lambda *args, **options: by(original, *args, **options), note)
            return by

        return register

    def replace(self, name: str, target: object, attribute: str, by: object, note: Any = None) -> None:
        """The value is in the place of another one."""
        self[name.strip("_")] = lambda patch: patch.setattr(target, attribute, by), note


def seeds_near(known: int, *, near: int, most: int) -> range:
    """Of the search for a mutant: it begins at the first schedule that is known to find it, and looks a little further,
    as a change of what is simulated changes what a seed gives. In the long run it begins at the first seed.
    """
    return range(SEED, SEED + most) if SCALE >= 10 else range(known, known + near)


def printed_by_two_processes(folder: Path, program: str) -> set[bytes]:
    """What a program that imports from this folder prints: one text, if other hashes (and so other orders in sets) make
    no difference.
    """
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": str(n), "PYTHONPATH": path},
            capture_output=True,
            check=True,
        ).stdout
        for n in range(2)
    }
