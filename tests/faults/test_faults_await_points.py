"""A cancel, a cut and a stalled peer at every await point of the asyncio client: no crossed answers, no leaked lock."""

from __future__ import annotations

import pytest
from await_operations import EVENTS, OPERATIONS, run_at_every_point

from statestore_client.server import EmbeddedServer

#: With paho only what differs from driver to driver.
CASES = [
    *(("native", event) for event in EVENTS),
    *(("paho", event) for event in ("cancel", "cut late", "stall and cancel", "block and cancel")),
]


@pytest.mark.turns(2)
@pytest.mark.slow
@pytest.mark.parametrize(("driver", "event"), CASES)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_await_point(server: EmbeddedServer, driver: str, name: str, event: str) -> None:
    """A cancel, a cut or a stall at any await point crosses no answers and leaks no lock, task or socket."""
    assert await run_at_every_point(server, driver, OPERATIONS[name], event) > 0
