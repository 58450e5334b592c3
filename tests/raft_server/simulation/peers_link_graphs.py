"""All graphs of links between five peers, up to renaming, and how long a cluster takes to commit on each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Final, TypeAlias

import attrs
from peers_cluster import Cluster
from peers_profile import Profile, invent_profile
from peers_world import World

__all__ = ["FIVE", "LinkGraph", "all_graphs", "hubs_of", "leaves", "seconds_to_commit"]

FIVE: Final = tuple("12345")
_EDGES: Final = tuple(combinations(range(5), 2))
#: Pairs of peers that can talk, in both directions.
LinkGraph: TypeAlias = frozenset[tuple[str, str]]


def all_graphs() -> Iterator[LinkGraph]:
    """One of each kind: 34 of the 1024."""
    number = {edge: bit for bit, edge in enumerate(_EDGES)}
    renamed = [[number[min(p[a], p[b]), max(p[a], p[b])] for a, b in _EDGES] for p in permutations(range(5))]
    seen: set[int] = set()
    for graph in range(1 << len(_EDGES)):
        if graph in seen:
            continue
        bits = [bit for bit in range(len(_EDGES)) if graph >> bit & 1]
        seen.update(sum(1 << renaming[bit] for bit in bits) for renaming in renamed)
        yield frozenset((FIVE[_EDGES[bit][0]], FIVE[_EDGES[bit][1]]) for bit in bits)


def hubs_of(graph: LinkGraph) -> list[str]:
    """Those who reach a majority of the five, themselves among it."""
    return [name for name in FIVE if sum(name in link for link in graph) >= 2]


def leaves(graph: LinkGraph) -> set[tuple[str, str]]:
    """The directions that are cut."""
    linked = graph | {(b, a) for a, b in graph}
    return {(a, b) for a in FIVE for b in FIVE if a != b} - linked


def profile(*, terms: int = 0) -> Profile:
    """Five peers with equal logs, a fast network, and nothing that goes wrong but the links."""
    return attrs.evolve(
        invent_profile(World(0).stream("links")),
        peers=list(FIVE),
        voters=list(FIVE),
        node_peers=[],
        kinds=frozenset(),
        deviations=0,
        delay_s=0.002,
        is_in_order=True,
        terms=terms,
        settings={},
        drift=0.0,
        slowness=0.0,
        lateness=0.0,
    )


def seconds_to_commit(graph: LinkGraph, seed: int, *, former_leader: str | None, limit_s: float) -> float | None:
    """From the moment when only these links are left to a new commit; None if there is none in time.

    With a ``former_leader`` the cluster has been well until then, and this peer led it. Without, nobody led.
    """
    cluster = Cluster(seed, profile())
    world = cluster.world
    if former_leader is not None:
        _let_lead(cluster, former_leader)
    cluster.network.cut |= leaves(graph)
    began, commits = world.now, cluster.audit.committed
    asked: set[tuple[str, int]] = set()

    def has_committed() -> bool:
        """Each new leader is asked at once: only the peers' time counts."""
        for name, peer in cluster.python.items():
            if peer.is_leader and (name, peer.state.term) not in asked:
                asked.add((name, peer.state.term))
                cluster.clients[0].append(name)
        return cluster.audit.committed > commits or bool(cluster.audit.violations)

    done = world.run(began + limit_s, has_committed)
    assert not cluster.audit.violations, cluster.audit.violations
    return world.now - began if done else None


def _let_lead(cluster: Cluster, name: str) -> None:
    """Only this peer reaches the others until it leads; then all links are whole, and all have the same log."""
    others = {(a, b) for a in FIVE for b in FIVE if a != b and name not in (a, b)}
    cluster.network.cut |= others
    assert cluster.world.run(30.0, lambda: cluster.python[name].is_leader)
    cluster.network.cut.clear()
    update = cluster.clients[0].append(name)
    assert cluster.world.run(60.0, lambda: update.is_done)
    settled = cluster.world.now + 0.3
    cluster.world.run(settled, lambda: False)
    assert cluster.python[name].is_leader
