"""Wherever some peer reaches a majority, one of those that do is elected, and commits, within three time-outs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from peers_link_graphs import FIVE, LinkGraph, all_graphs, hubs_of, leaves, seconds_to_commit
from support.schedules import scaled

from raft_client.server.node.settings import NodeSettings

_TIMEOUT_S = NodeSettings(peer_id="1").election_timeout_max_s
_GRAPHS = list(all_graphs())
_WITH_HUB = [graph for graph in _GRAPHS if hubs_of(graph)]
#: The quick run has a quarter of them.
_CASES = [pytest.param(graph, marks=pytest.mark.ci if number % 4 else ()) for number, graph in enumerate(_WITH_HUB)]
_SEEDS = scaled(2, 20)


def _name(graph: LinkGraph) -> str:
    return " ".join(sorted(a + b for a, b in graph)) or "none"


def test_there_are_34_graphs_of_five_peers() -> None:
    """Ten links, 1024 sets of them, 34 up to renaming; on 31 of them somebody reaches a majority."""
    assert len(_GRAPHS) == 34
    assert len({frozenset(leaves(graph)) for graph in _GRAPHS}) == 34
    assert sorted(len(graph) for graph in _GRAPHS)[-1] == 10
    assert sorted(len(graph) for graph in _GRAPHS if not hubs_of(graph)) == [0, 1, 2]


@pytest.mark.scaled
@pytest.mark.parametrize("graph", _CASES, ids=_name)
def test_a_majority_that_is_connected_commits(graph: LinkGraph, figures: Callable[[str], None]) -> None:
    """Whether nobody led, or anybody of the five, who may now be cut off: logs are equal."""
    slowest = 0.0
    for former in (None, *FIVE):
        for seed in range(_SEEDS):
            took = seconds_to_commit(graph, seed, former_leader=former, limit_s=10 * _TIMEOUT_S)
            assert took is not None, (former, seed)
            slowest = max(slowest, took)
    figures(f"{slowest / _TIMEOUT_S:.1f} election time-outs at most")
    assert slowest <= 3 * _TIMEOUT_S


@pytest.mark.parametrize("graph", [graph for graph in _GRAPHS if not hubs_of(graph)], ids=_name)
def test_without_a_majority_nothing_is_committed(graph: LinkGraph) -> None:
    """The former leader steps down or waits; it commits nothing."""
    for former in (None, *FIVE):
        assert seconds_to_commit(graph, 0, former_leader=former, limit_s=5 * _TIMEOUT_S) is None
