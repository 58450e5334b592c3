"""What clients see of keys can be put into one order while machines are lost: cables are pulled out, for long or every
second, links carry one way only or little, machines stand still.

Kernels close no connection here, and nobody is told that a machine is gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from linearizability import UNKNOWN, History, Operation
from support.machine_cluster import NAMES, MachineCluster, cluster_on
from support.namespaces import Machines
from support.schedules import SEED, scaled

pytestmark = [pytest.mark.machine, pytest.mark.ci, pytest.mark.timeout(3600), pytest.mark.turns(2)]

_PROGRAM = Path(__file__).parent / "history_of_machine.py"
_CLIENTS = 3
#: Between two faults: the machine that was lost is back among the others.
_REST_S = 2.0

Fault = Callable[[MachineCluster, str, str], Awaitable[None]]


async def _cut(cluster: MachineCluster, name: str, _other: str) -> None:
    cluster.machines.cut(name)
    await asyncio.sleep(3.0)
    cluster.machines.mend(name)


async def _flap(cluster: MachineCluster, name: str, _other: str) -> None:
    """Out for a second, in for a second."""
    for _ in range(scaled(3, 30)):
        cluster.machines.cut(name)
        await asyncio.sleep(1.0)
        cluster.machines.mend(name)
        await asyncio.sleep(1.0)


async def _is_not_heard(cluster: MachineCluster, name: str, _other: str) -> None:
    everyone = [each for each in (*NAMES, "client") if each != name]
    for each in everyone:
        cluster.machines.lose(name, each)
    await asyncio.sleep(3.0)
    for each in everyone:
        cluster.machines.find(name, each)


async def _hears_nothing(cluster: MachineCluster, name: str, _other: str) -> None:
    everyone = [each for each in (*NAMES, "client") if each != name]
    for each in everyone:
        cluster.machines.lose(each, name)
    await asyncio.sleep(3.0)
    for each in everyone:
        cluster.machines.find(each, name)


async def _part_two(cluster: MachineCluster, name: str, other: str) -> None:
    """They do not reach each other, and the third one reaches both."""
    cluster.machines.lose(name, other)
    cluster.machines.lose(other, name)
    await asyncio.sleep(3.0)
    cluster.machines.find(name, other)
    cluster.machines.find(other, name)


async def _suspend(cluster: MachineCluster, name: str, _other: str) -> None:
    cluster.suspend(name)
    await asyncio.sleep(4.0)
    cluster.resume(name)


async def _slow_down(cluster: MachineCluster, name: str, _other: str) -> None:
    cluster.machines.slow_down(name)
    await asyncio.sleep(3.0)
    cluster.machines.speed_up(name)


_FAULTS: tuple[Fault, ...] = (_cut, _is_not_heard, _hears_nothing, _part_two, _suspend, _flap, _slow_down)


async def test_what_clients_see_while_machines_are_lost_is_linearizable(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """Each fault strikes the active server's machine, or another one in every third round."""
    random = Random(SEED)
    faults = random.sample(_FAULTS, len(_FAULTS)) * scaled(1, 8)
    seconds = 4.0 + sum(_REST_S + (6.0 if fault is _flap else 4.0) for fault in faults) * scaled(1, 2)
    files = [tmp_path / f"history-{number}" for number in range(_CLIENTS)]
    with Machines(*NAMES, "client") as machines:
        async with cluster_on(machines, tmp_path) as cluster:
            await cluster.is_whole()
            clients = []
            for number, file in enumerate(files):
                url = cluster.url(*random.sample(NAMES, len(NAMES)))
                command = (sys.executable, str(_PROGRAM), url, str(number), str(seconds), str(file))
                clients.append(await asyncio.create_subprocess_exec(*machines.on("client", *command)))
            try:
                for number, fault in enumerate(faults):
                    active = await cluster.active()
                    others = [name for name in NAMES if name != active]
                    struck = random.choice(others) if number % 3 == 2 else active
                    await fault(cluster, struck, random.choice([name for name in NAMES if name != struck]))
                    await asyncio.sleep(_REST_S)
                for client in clients:
                    assert await asyncio.wait_for(client.wait(), seconds + 120) == 0
            finally:
                for client in clients:
                    if client.returncode is None:
                        client.kill()
    history, counts, longest_s = History(), Counter[str](), 0.0
    for file in files:
        for kind, key, value, result, call, end in map(json.loads, file.read_text().splitlines()):
            if end is None:
                counts[f"{kind}: {result.split(':')[0]}"] += 1
                if kind == "get":
                    continue
            else:
                longest_s = max(longest_s, end - call)
            seen = result.encode() if isinstance(result, str) else result
            outcome = (UNKNOWN, call) if end is None else (seen, call, end)
            history.add(key.encode(), Operation(kind, value.encode(), *outcome))
            counts[kind] += 1
    figures(f"{[fault.__name__.strip('_') for fault in faults]}: {dict(counts)}, longest answer {longest_s:.2f} s")
    history.check()
    assert counts["set"] > 20 * len(faults)
    assert sum(count for name, count in counts.items() if ":" in name) == 0, counts
