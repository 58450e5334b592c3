"""Servers of one log are killed, stopped and paused under load: nothing that was acknowledged is lost, and the next one
goes on.

``tests/support/schedules.py`` says how often; 300 take ten minutes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from random import Random
from statistics import median

import pytest
from broker_audit import BrokerAudit
from client_audit import ClientAudit
from killed_server import TIMEOUT_S, Peer, Willed
from support.schedules import SEED, scaled
from support.server_processes import ReplicatedServer, ReplicatedServers
from support.waiting import until

from raft_client.server import BroadcastStateMachine, EmbeddedCluster

pytestmark = pytest.mark.scaled

_FAILOVERS = scaled(4, 300)
#: How often a snapshot is begun; what happens to the active server, and how often.
_SNAPSHOTS = 0.4
_FATES = {"kill": 5, "stop": 2, "pause": 2, "kill standby": 1}


async def _meet(peer: Peer, servers: ReplicatedServers) -> None:
    """Until a server lets it in: its connection is cut when another server becomes active."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return await peer.meet(servers)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            await peer.part()
            await asyncio.sleep(0.02)


async def _strike(servers: ReplicatedServers, active: ReplicatedServer, fate: str) -> float:
    """Returns when another one is active, and how long that took."""
    standby = next(each for each in servers.servers.values() if each is not active)
    began = time.monotonic()
    if fate == "kill standby":
        await standby.end(signal.SIGKILL)
        return 0.0
    if fate == "pause":
        active.signal(signal.SIGSTOP)
        servers.paused.add(active)
    else:
        active.signal(signal.SIGKILL if fate == "kill" else signal.SIGTERM)
        servers.paused.add(active)  # nobody connects there
    assert await servers.active() is standby
    gap = time.monotonic() - began
    if fate != "pause":
        servers.paused.discard(active)
        await active.end(signal.SIGKILL if fate == "kill" else signal.SIGTERM)
    return gap


async def _round(
    number: int, audit: BrokerAudit, clients: ClientAudit, servers: ReplicatedServers, random: Random
) -> tuple[str, float]:
    """What happened to the active server, and how long it took until there was another one."""
    await servers.start_all()
    active = await servers.active()
    willed = Willed(number)
    for peer in (audit.subscriber, *audit.senders, willed):
        await _meet(peer, servers)
    await audit.check(random)
    await clients.check()
    before = [len(sender.acknowledged) for sender in audit.senders]
    audit.load(goes_on=True)
    await until(
        lambda: all(len(sender.acknowledged) > count for sender, count in zip(audit.senders, before, strict=True)),
        "something of each sender is acknowledged",
    )
    if random.random() < _SNAPSHOTS:
        await random.choice(list(servers.servers.values())).begin_snapshot()
    await asyncio.sleep(random.uniform(0.0, 0.3))
    fate = random.choices(list(_FATES), list(_FATES.values()))[0]
    gap = await _strike(servers, active, fate)
    audit.load(goes_on=False)
    if fate == "pause":
        servers.paused.discard(active)
        active.signal(signal.SIGCONT)
    if fate == "kill standby":
        await active.end(signal.SIGKILL)
    for peer in (audit, willed):
        await peer.part()
    return fate, gap


async def _rounds(audit: BrokerAudit, servers: ReplicatedServers, random: Random) -> dict[str, list[float]]:
    gaps: dict[str, list[float]] = {fate: [] for fate in _FATES}
    await servers.start_all()
    async with ClientAudit.running(servers.url) as clients:
        for number in range(_FAILOVERS):
            fate, gap = await _round(number, audit, clients, servers, random)
            gaps[fate].append(gap)
        await servers.start_all()
        await clients.check()
    return gaps


async def _check_wills(audit: BrokerAudit, servers: ReplicatedServers) -> None:
    """Each was sent once: that of the last one when its client has not come back."""
    await _meet(audit.subscriber, servers)
    audit.subscriber.wanted = {Willed.TOPIC: set(range(_FAILOVERS))}
    await audit.subscriber.until("has_all")
    assert len(audit.subscriber.taken[Willed.TOPIC]) == _FAILOVERS, "a will was sent twice"


@pytest.mark.timeout(120 + 10 * _FAILOVERS)
@pytest.mark.quick
async def test_failovers_lose_nothing(figures: Callable[[str], None]) -> None:
    """Each acknowledged QoS 1 and 2 message, retained message and key survives, and no version goes back. Each will is
    sent once. A lock is held on, and its holder and a watch go on.
    """
    random = Random(SEED)
    with EmbeddedCluster(3, machine=BroadcastStateMachine) as cluster:
        servers = ReplicatedServers(cluster.url, random, "a", "b")
        audit = BrokerAudit(servers)
        try:
            gaps = await _rounds(audit, servers, random)
            await _check_wills(audit, servers)
        finally:
            await servers.end_all()
            await audit.part()
    for fate, times in gaps.items():
        if times:
            figures(
                f"{fate}: {len(times)} times; until another one is active, s: {median(times):.3f}, {max(times):.3f}"
            )
    counts = [len(sender.acknowledged) for sender in audit.senders]
    figures(f"{_FAILOVERS} failovers; acknowledged (QoS 1, QoS 2, retained, keys): {counts}")
    assert all(count >= _FAILOVERS for count in counts), counts
