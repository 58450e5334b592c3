"""An update in a wide mesh that loses messages gets everywhere, for at most two messages on each connection."""

from __future__ import annotations

import pytest
from sites_wide_mesh import WideMesh


@pytest.mark.parametrize("size", [100, pytest.param(1_000, marks=pytest.mark.slow)])
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


def test_what_sites_keep_alive_never_expires() -> None:
    """With 5 % of all messages lost, keys are at every site for three times as long as they live."""
    mesh = WideMesh(50, loss=0.05, own_keys=3)
    began = mesh.world.now
    while mesh.world.now < began + 180:
        mesh.update(b"x")
        assert (mesh.lacking, mesh.expired) == (0, 0)
