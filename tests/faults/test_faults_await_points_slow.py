"""Every await point of the asyncio client again, behind the requests of other tasks, and with a peer that is slow."""

from __future__ import annotations

import pytest
from await_operations import LOCKING, OPERATIONS, run_at_every_point

from statestore_client.server import EmbeddedServer


@pytest.fixture(params=["native", "paho"])
def driver(request: pytest.FixtureRequest) -> str:
    """The test runs once for each driver."""
    return str(request.param)


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize("event", ["cancel", "cancel late", "cut", "stall and cancel"])
@pytest.mark.parametrize("name", LOCKING)
async def test_every_await_point_behind_a_full_window(
    server: EmbeddedServer, driver: str, name: str, event: str
) -> None:
    """A lock is released at every await point, also when other tasks' requests are in front of it."""
    assert await run_at_every_point(server, driver, OPERATIONS[name], event, load=6) > 0


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize(("driver", "event"), [("native", "cancel"), ("native", "cut"), ("paho", "cancel")])
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"set large"}))
async def test_every_await_point_of_a_slow_peer(server: EmbeddedServer, driver: str, name: str, event: str) -> None:
    """The client is safe at every await point on a link that takes, and brings, one byte at a time."""
    assert await run_at_every_point(server, driver, OPERATIONS[name], event, chunk=1) > 0
