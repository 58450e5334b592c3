"""Schedules in which bits flip under the real log of a peer that runs or is down.

The peer notices, and serves and votes from nothing else than what was written; the others lose nothing. What is damaged
and not read is noticed by nobody. ``tests/support/schedules.py`` says how many schedules there
are, and how one is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from types import ModuleType, SimpleNamespace

import attrs
import pytest
from peers_deviations import Deviation
from peers_disk import FILE_KINDS, DiskBackedLog
from peers_schedule import Outcome, Plan, run
from support.schedules import SCALE, run_schedules
from test_peers_disks import plan_with_failures

from raft_client.server.runtime.storage import directory, segment_format, segment_index, snapshots

#: Within these each mutant is found.
_LIMIT = 4000
_FLIPS = 3
#: How often bits of each kind of file flip: a damaged log is the rule.
_KINDS = ("log", "log", "log", "index", "index", "snapshot", "snapshot", "meta")


def plan_with_flips(seed: int, kinds: Sequence[str] = _KINDS) -> Plan | None:
    """The schedule of this seed with failing disks, and some bits of one peer that flip, often while it is down.

    None where the others would not be enough.
    """
    schedule = plan_with_failures(seed)
    profile = attrs.evolve(schedule.profile, lasting="")
    voters = [name for name in profile.voters if name in profile.python_peers]
    if len(profile.voters) < 3 or not voters:
        return None
    chances = Random(seed)
    one = chances.choice(voters)
    flips: list[Deviation] = []
    for _ in range(_FLIPS):
        at = round(chances.uniform(0.0, profile.length_s), 3)
        kind = chances.choice(kinds)
        place = (chances.randrange(1000), chances.randrange(1_000_000), chances.randrange(8))
        if kind == "snapshot":
            flips.append(Deviation(round(at - 0.05, 3), "compact", (one,)))
        if chances.random() < 0.5:
            flips.append(Deviation(round(at - 0.001, 4), "crash", (one, "0.050", "1.0")))
        flips.append(Deviation(at, "flip", (one, kind, *map(str, place))))
    deviations = tuple(sorted([*schedule.deviations, *flips]))
    return attrs.evolve(schedule, profile=profile, deviations=deviations)


def _run_with_flips(seed: int, kinds: Sequence[str] = _KINDS) -> Outcome | None:
    schedule = plan_with_flips(seed, kinds)
    return None if schedule is None else run(schedule)


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_what_a_damaged_peer_says_is_what_was_written(
    logs: list[DiskBackedLog], record_property: Callable[[str, object], None], figures: Callable[[str], None]
) -> None:
    """Nothing that was acknowledged is lost, the rules of Raft hold, and the other peers go on."""
    run_schedules(
        "peers with flipped bits",
        _run_with_flips,
        record_property,
        long=10_000,  # half of them have peers enough
        violation=lambda outcome: None if outcome is None else outcome.violation,
        here=True,  # ``logs`` are of this process
    )
    flipped = sum((log.flipped for log in logs), Counter[str]())
    noticed = sum((log.noticed for log in logs), Counter[str]())
    figures(f"bits {dict(flipped)}; ended at {dict(noticed)}")
    if SCALE < 1:
        return  # too few for all kinds
    assert set(flipped) == set(FILE_KINDS)
    assert {"start log", "start meta"} <= set(noticed)
    assert any(each.startswith("read ") for each in noticed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "kind", "begin"),
    [(segment_format, "log", 1), (segment_index, "index", 190), (snapshots, "snapshot", 90), (directory, "meta", 40)],
    ids=FILE_KINDS,
)
@pytest.mark.turns(2)
@pytest.mark.ci
def test_a_checksum_that_is_not_verified_is_found(
    module: ModuleType,
    kind: str,
    begin: int,
    logs: list[DiskBackedLog],
    monkeypatch: pytest.MonkeyPatch,
    figures: Callable[[str], None],
) -> None:
    """Of records, of indexes, of snapshots, or of the file that says whose the directory is.

    From the seed 1 on it takes 3, 145, 70 and 27 schedules; the search begins nearer.
    """
    monkeypatch.setattr(module, "zlib", SimpleNamespace(crc32=lambda *_: 0))
    for seed in range(begin, begin + _LIMIT):
        outcome = _run_with_flips(seed, [kind])
        if outcome is not None and outcome.violation is not None:
            figures(f"found by seed {seed}: {outcome.violation[:200]}")
            return
    pytest.fail("no schedule saw it")
