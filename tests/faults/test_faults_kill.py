"""kill -9 at any moment, under load: what was acknowledged is there afterwards, in order, and QoS 2 exactly once.

``tests/support/schedules.py`` says how often; 500 take some minutes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

import pytest
from broker_audit import BrokerAudit
from killed_server import Server
from support.schedules import SEED, scaled

pytestmark = pytest.mark.scaled

_KILLS = scaled(6, 500)


@pytest.mark.timeout(120 + 4 * _KILLS)
@pytest.mark.quick
async def test_kill_at_any_moment(tmp_path: Path) -> None:
    """Each acknowledged QoS 1 and 2 message, retained message and key survives every kill, and no version goes back."""
    random = Random(SEED)
    server = Server(tmp_path / "data")
    audit = BrokerAudit(server)
    try:
        await _kill_and_check(audit, server, random)
    finally:
        await server.kill()
        await audit.part()
    counts = [len(sender.acknowledged) for sender in audit.senders]
    sys.stdout.write(f"{_KILLS} kills; acknowledged (QoS 1, QoS 2, retained, keys): {counts}\n")
    assert all(count > _KILLS for count in counts), counts


async def _kill_and_check(audit: BrokerAudit, server: Server, random: Random) -> None:
    for _ in range(_KILLS):
        if random.random() < 0.1:
            await server.begin()
            await asyncio.sleep(random.uniform(0.0, 0.5))  # killed while it starts
            await server.kill()
        await server.start()
        await audit.meet()
        await audit.check(random)
        audit.load(goes_on=True)
        await asyncio.sleep(random.uniform(0.0, 0.1))
        audit.load(goes_on=False)
        await server.kill()
        await audit.part()
    await server.start()
    await audit.meet()
    for sender in audit.senders:
        await sender.until("is_idle")
    await audit.check(random)
