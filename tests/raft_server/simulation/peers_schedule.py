"""One schedule: a seed decides who is there and what goes wrong and when. Then all heals, and has to come right.

``PYTHONPATH=tests python tests/raft_server/simulation/peers_schedule.py SEED`` prints what happens in a schedule, and
its deviations cut down if it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from zlib import crc32

import attrs
from peers_cluster import Cluster
from peers_deviations import Deviation, invent_deviations
from peers_process import READ_SYNCS
from peers_profile import Profile, invent_profile
from peers_world import World

__all__ = ["Outcome", "Plan", "plan", "run", "shrink"]

#: Twenty of the longest election time-outs, forty syncs, and two for each entry, or a read of the disk where a peer has
#: little of its log in memory: within these, what healed has come right. Without pre-vote, as Node peers are, two
#: candidates of which only one can win may disturb each other while their time-outs are in step.
_COMES_RIGHT_S = 6.0
_COMES_RIGHT_SYNCS = 40
_WITH_NODE_PEERS_S = 60.0
_LOOK_S = 0.02
#: Deviations that a person can follow, and how many other delays are tried to have no more.
_FEW = 10
_CHANCES = 100


@attrs.frozen
class Plan:
    """All that there is to a schedule."""

    seed: int
    profile: Profile
    deviations: tuple[Deviation, ...]
    #: Another seed for delays and losses, where that needs fewer deviations to fail.
    chance: int | None = None

    def __str__(self) -> str:
        chance = "" if self.chance is None else f", chance {self.chance}"
        lines = [f"seed {self.seed}{chance}: {self.profile}", *map(str, self.deviations)]
        return "\n".join(lines)


@attrs.frozen
class Outcome:
    """What came of it. ``digest`` is the same whenever the same plan runs the same code."""

    violation: str | None
    digest: int
    messages: int
    applied: int
    leaders: int
    came_right_s: float


def plan(seed: int) -> Plan:
    """What the seed decides."""
    random = World(seed).stream("plan")
    profile = invent_profile(random)
    deviations = invent_deviations(random, profile)
    length_s = max([profile.length_s, *(each.at + 0.01 for each in deviations)])
    return Plan(seed, attrs.evolve(profile, length_s=length_s), tuple(deviations))


def run(schedule: Plan, *, trace: bool = False) -> Outcome:
    """From beginning to end, or to the first violation."""
    chance = schedule.seed if schedule.chance is None else schedule.chance
    cluster = Cluster(chance, schedule.profile, trace=trace)
    world, audit = cluster.world, cluster.audit
    for deviation in schedule.deviations:
        world.at(deviation.at, _deviate, cluster, deviation)
    violations = audit.violations
    came_right_s = 0.0
    try:
        world.run(schedule.profile.length_s, lambda: bool(violations))
        came_right_s = 0.0 if violations else _heal(cluster)
    except Exception as error:
        if trace:
            raise
        audit.violated(f"an exception: {error!r}")
    applied = audit.applied
    digest = crc32(repr((cluster.network.messages, world.now, [e.frame for e in applied], violations)).encode())
    return Outcome(
        violations[0] if violations else None,
        digest,
        cluster.network.messages,
        len(applied),
        len(audit.leaders),
        came_right_s,
    )


def _deviate(cluster: Cluster, deviation: Deviation) -> None:
    cluster.world.note("world", deviation)
    getattr(cluster, deviation.what)(*deviation.words)


def _heal(cluster: Cluster) -> float:
    world, audit = cluster.world, cluster.audit
    began = world.now
    cluster.heal()
    looked_at = 0.0

    def is_right() -> bool:
        nonlocal looked_at
        if audit.violations:
            return True
        if world.now < looked_at + _LOOK_S:
            return False
        looked_at = world.now
        return cluster.has_come_right()

    profile = cluster.profile
    waiting = sum(len(client.waiting) for client in cluster.clients)
    entries = max(cluster.log(name).durable.last_index for name in profile.peers) + waiting
    reads_disk = any(cluster.log(name).reads_disk for name in profile.peers)
    syncs = _COMES_RIGHT_SYNCS + (READ_SYNCS if reads_disk else 2) * entries  # they may go one by one
    limit = _COMES_RIGHT_S * profile.slowest + syncs * profile.sync_s
    if profile.node_peers:
        limit = max(limit, _WITH_NODE_PEERS_S)
    # Where nothing happens any more, as in a cluster of one, nobody looks after the last event.
    came_right = world.run(began + limit, is_right) or cluster.has_come_right()
    if not came_right and cluster.can_decide():
        audit.violated(f"liveness: after {limit} s: {cluster.what_is_wrong()}")
    if came_right and not audit.violations:
        for name in cluster.members():
            audit.ends(name, cluster._peer(name).applied)
    return world.now - began


def shrink(failing: Plan) -> Plan:
    """Leave out whatever can be left out, as long as it fails: large pieces, then single ones, as often as one can go.

    What is left out changes all delays after it. Where many are left, the rest is tried with other delays, too.
    """
    size = max(1, len(failing.deviations) // 2)
    while size:
        before = failing
        failing = _without_pieces(failing, size)
        if size > 1 or failing is before:
            size //= 2
    while len(failing.deviations) > _FEW:
        fewer = next(filter(_fails, _with_other_delays(failing)), None)
        if fewer is None:
            break
        failing = _without_pieces(fewer, 1)
    return failing


def _without_pieces(failing: Plan, size: int) -> Plan:
    at = 0
    while at < len(failing.deviations):
        kept = failing.deviations
        fewer = attrs.evolve(failing, deviations=(*kept[:at], *kept[at + size :]))
        if _fails(fewer):
            failing = fewer
        else:
            at += size
    return failing


def _with_other_delays(failing: Plan) -> Iterator[Plan]:
    kept = failing.deviations
    for chance in range(_CHANCES):
        for at in range(len(kept)):
            yield attrs.evolve(failing, deviations=(*kept[:at], *kept[at + 1 :]), chance=chance)


def _fails(schedule: Plan) -> bool:
    return run(schedule).violation is not None


if __name__ == "__main__":
    chosen = plan(int(sys.argv[1]))
    if run(chosen).violation is not None:
        chosen = shrink(chosen)
    print(chosen)  # noqa: T201 - a program for people
    print(run(chosen, trace=True))  # noqa: T201 - as above
