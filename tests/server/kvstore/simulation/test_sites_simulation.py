"""Thousands of schedules of failures in meshes of sites, each from its seed: in the end all stores are equal.

``tests/support/schedules.py`` says how many there are, and how one is repeated. Each has a line, ring, star or
random mesh of 3 to 200 sites whose clocks drift, with loss, delay, cut and held connections, reconnects, restarts,
deaths, and sites that stand still and wake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from sites_node import AREA, Node
from sites_schedule import run_schedule
from sites_wide_mesh import WideMesh
from sites_world import Edge, World
from support.schedules import SEED, printed_by_two_processes, run_schedules, scaled

from statestore_client.server.kvstore.area_store import packed_bytes
from statestore_client.server.kvstore.own_keys import OwnNameInUse

_TTL_MS = 300_000  # as a site has it
_PEERS = 40
_WINDOW_S = 60.0
_MOST_SYNCS = 32


@pytest.mark.scaled
@pytest.mark.timeout(3600)
def test_all_schedules_end_with_equal_stores(record_property: Callable[[str, object], None]) -> None:
    """When it is calm all stores that can reach each other are equal; nothing goes in circles or twice to one peer, own
    keys never expire, and an update takes at most two messages on each connection.
    """
    run_schedules(
        "meshes of sites",
        run_schedule,
        record_property,
        long=100_000,
        violation=lambda outcome: next(iter(outcome.violations), None),
        counts=lambda each: {"sites": each.sites, "messages": each.messages, **each.faults},
    )


@pytest.mark.ci
@pytest.mark.scaled
@pytest.mark.turns(2)
@pytest.mark.parametrize("size", [45, 60, 80, 100])
def test_large_meshes(size: int, figures: Callable[[str], None]) -> None:
    """The same with as many sites as few have, and a mesh that falls into two halves each time."""
    outcomes = [run_schedule(SEED + number, size) for number in range(scaled(1, 10))]
    faults = sum((Counter(outcome.faults) for outcome in outcomes), Counter[str]())
    figures(f"{len(outcomes)} meshes; faults: {dict(faults)}")
    failed = [(each.seed, each.sites, each.violations[0]) for each in outcomes if each.violations]
    assert not failed


@pytest.mark.ci
def test_a_seed_always_gives_the_same_schedule() -> None:
    """A seed gives the same schedule in any process, also with other hashes and so other orders in sets."""
    program = "from sites_schedule import run_schedule; print([run_schedule(seed).digest for seed in range(8)])"
    assert len(printed_by_two_processes(Path(__file__).parent, program)) == 1


# -- all sites, or all peers of one, start again at the same moment ----------------------------------------------------


def _star() -> tuple[World, list[Node]]:
    """The first site is dialled by all others."""
    world = World(1)
    world.longest_delay = 0.02
    nodes = [Node(world, f"site{n}", ("ranges",), None, _TTL_MS) for n in range(_PEERS + 1)]
    for number, node in enumerate(nodes[1:]):
        edge = Edge(number, node, nodes[0])
        world.edges.append(edge)
        node.edges.append(edge)
        nodes[0].edges.append(edge)
    for node in nodes:
        node.start()
    return world, nodes


def _run(world: World, hub: Node) -> tuple[int, int, int]:
    """For a minute. Returns the messages and their bytes, and how many full syncs the site had begun at once."""
    messages, sent, most, end = world.messages, world.bytes, 0, world.now + _WINDOW_S
    while world.now < end:
        world.run_until(world.now + 0.01)
        most = max(most, sum(peer.session is not None for peer in hub.site.replicas[AREA].peers.values()))
    return world.messages - messages, world.bytes - sent, most


@pytest.mark.parametrize("is_hub_among_them", [False, True])
@pytest.mark.ci
def test_all_peers_at_once_cost_at_most_as_much_again(
    figures: Callable[[str], None], *, is_hub_among_them: bool
) -> None:
    """In the minute after the restart at most twice as many messages are sent as while nothing happens, and besides the
    entries, which each site needs, at most twice as many bytes; a site has at most 32 full syncs at once; then all are
    equal.
    """
    world, nodes = _star()
    hub = nodes[0]
    _run(world, hub)
    idle, idle_bytes, _ = _run(world, hub)
    entries = sum(packed_bytes(key, entry) for key in hub.store if (entry := hub.store.get(key)) is not None)
    restarted = nodes if is_hub_among_them else nodes[1:]
    for node in restarted:
        node.stop()
    for node in restarted:
        node.start()
    busy, busy_bytes, most = _run(world, hub)
    needed = 2 * len(restarted) * entries  # each gets all of them, and what each says anew goes to all
    figures(
        f"{busy:,} messages and {busy_bytes:,} bytes in a minute, {needed:,} of them for entries; {idle:,} and "
        f"{idle_bytes:,} if nothing happens; at most {most} syncs at once"
    )
    assert not world.violations
    assert 0 < most <= _MOST_SYNCS
    assert busy <= 2 * idle
    assert busy_bytes - needed <= 2 * idle_bytes
    assert all(set(node.store) == {each.own_key for each in nodes} for node in nodes)


# -- wide meshes that lose messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, pytest.param(1_000, marks=[pytest.mark.slow, pytest.mark.long])])
def test_an_update_reaches_every_site_of_a_mesh_that_loses_messages(size: int) -> None:
    """With 5 % of all messages lost each site has the update, and it took at most two messages on each connection."""
    mesh = WideMesh(size, loss=0.05)
    for _ in range(3):
        spread = mesh.update(b"x" * 100)
        assert len(spread.reached_s) == size - 1
        assert spread.flood_messages <= 2 * mesh.edges - size + 1


def test_what_a_flood_lost_is_repaired_by_the_next_heartbeats() -> None:
    """On a line of two sites without a second way, an update that is lost on the way arrives some heartbeats later."""
    mesh = WideMesh(2, loss=0.0)
    mesh.world.loss = 1.0
    mesh.world.at(mesh.world.now + 0.5, lambda: setattr(mesh.world, "loss", 0.0))
    spread = mesh.update(b"x")
    assert len(spread.reached_s) == 1
    assert 0.5 < spread.reached_s[0] < 5.0


@pytest.mark.ci
def test_what_sites_keep_alive_never_expires() -> None:
    """With 5 % of all messages lost, keys are at every site for three times as long as they live."""
    mesh = WideMesh(25, loss=0.05, own_keys=3)
    began = mesh.world.now
    while mesh.world.now < began + 180:
        mesh.update(b"x")
        assert (mesh.lacking, mesh.expired) == (0, 0)


# -- hellos that are said again before they are answered ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_on_a_slow_line_each_side_syncs_once(seed: int) -> None:
    """The dialling side says hello each second, and hears several answers after that. They begin nothing anew."""
    world = World(seed)
    world.longest_delay = 1.1
    nodes = [Node(world, name, ("ranges",), None, _TTL_MS) for name in ("rome", "bonn")]
    edge = Edge(0, *nodes)
    world.edges.append(edge)
    for node in nodes:
        node.edges.append(edge)
        node.start()
    world.run_until(20.0)
    assert [node.site.replicas[AREA].counters.full_syncs for node in nodes] == [1, 1]
    assert nodes[0].sums.total == nodes[1].sums.total
    assert not world.violations


# -- two sites of one name ---------------------------------------------------------------------------------------------


def test_two_sites_of_one_name_that_are_no_neighbours_are_both_told() -> None:
    """Nothing that one floods gets to the other, as their name is in the path. In syncs each sees the other's answers
    to what it says of a key that both keep alive.
    """
    world = World(1)
    nodes = [Node(world, name, ("ranges",), None, _TTL_MS) for name in ("rome", "bonn", "oslo", "rome")]
    for number, pair in enumerate(pairwise(nodes)):
        edge = Edge(number, *pair)
        world.edges.append(edge)
        for node in pair:
            node.edges.append(edge)
    for node in nodes:
        node.start()
    twins = (nodes[0], nodes[-1])
    for number, node in enumerate(twins):
        node.has_namesake = True
        node.area.own.persist("key", b"%d" % number, node.now)
        node.turn()
    world.run_until(240.0)
    assert [node.area.own.events for node in nodes] == [[OwnNameInUse("key")], [], [], [OwnNameInUse("key")]]
    assert not world.violations
