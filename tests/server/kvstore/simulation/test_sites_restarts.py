"""What it costs when all peers of a site, or all sites, start again at the same moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sites_node import AREA, Node
from sites_world import Edge, World

from statestore_client.server.kvstore.slices import packed_bytes

_TTL_MS = 300_000  # as a site has it
_PEERS = 40
_WINDOW_S = 60.0
_MOST_SYNCS = 32


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
