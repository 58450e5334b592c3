"""What a client notices when something happens to one machine of three: servers with a log in each of them
(``--cluster``), each in a network namespace of its own, as root.

    python tests/bench/bench_vanished.py [--quick] [--times 5] [--part faults|returns]

A client with default settings that knows all three addresses sets one key after the other. The gap is the longest time
that one of its SETs took, from the moment when it happened on. It happens to the active server while the client is
connected to it, and to a standby that passes the client on. In the second part, ``returns``, the active server's
machine is lost and back, and then the next active one is lost.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from measure import Options, Report

sys.path.append(str(Path(__file__).parents[1]))

from support.machine_cluster import NAMES, MachineCluster, cluster_on, outcomes
from support.namespaces import Machines

_BEFORE_S = 2.0
_WATCHED_S = 4.0
_SUSPENDED_S = 5.0
#: Median and longest, in milliseconds.
_BARS = (1000, 1500)
_AWAY_S = (1.0, 5.0, 20.0)
#: After the first machine is back, until the next one is lost.
_BACK_S = (0.5, 3.0)

Happens = Callable[[MachineCluster, str], Awaitable[None]]


async def _kill(cluster: MachineCluster, name: str) -> None:
    await cluster.kill(name)


async def _lose_power(cluster: MachineCluster, name: str) -> None:
    """Nobody hears of it that the processes end."""
    cluster.machines.cut(name)
    await cluster.kill(name)


async def _pull_cable(cluster: MachineCluster, name: str) -> None:
    cluster.machines.cut(name)


def _others(cluster: MachineCluster, name: str) -> list[str]:
    return [other for other in cluster.machines.addresses if other != name]


async def _mute(cluster: MachineCluster, name: str) -> None:
    for other in _others(cluster, name):
        cluster.machines.lose(name, other)


async def _deafen(cluster: MachineCluster, name: str) -> None:
    for other in _others(cluster, name):
        cluster.machines.lose(other, name)


async def _suspend(cluster: MachineCluster, name: str) -> None:
    cluster.suspend(name)
    asyncio.get_running_loop().call_later(_SUSPENDED_S, cluster.resume, name)


async def _start_again(cluster: MachineCluster, name: str) -> None:
    cluster.machines.mend(name)
    await cluster.begin(name)
    await cluster.takes_clients(name)


async def _mend(cluster: MachineCluster, name: str) -> None:
    cluster.machines.mend(name)


async def _unmute(cluster: MachineCluster, name: str) -> None:
    for other in _others(cluster, name):
        cluster.machines.find(name, other)


async def _undeafen(cluster: MachineCluster, name: str) -> None:
    for other in _others(cluster, name):
        cluster.machines.find(other, name)


async def _woken(cluster: MachineCluster, name: str) -> None:
    """It is by itself."""


#: What happens, and how it is put right.
_HAPPENS: dict[str, tuple[Happens, Happens]] = {
    "kill -9": (_kill, _start_again),
    "power": (_lose_power, _start_again),
    "cable": (_pull_cable, _mend),
    "is not heard": (_mute, _unmute),
    "hears nothing": (_deafen, _undeafen),
    "suspended": (_suspend, _woken),
}


def _gap_ms(after: list[tuple[float, str]]) -> float:
    """Find the longest gap that ended. An error ends one, too, and is printed."""
    for took_s, outcome in after:
        if outcome != "set":
            print(f"  after {took_s:.2f} s: {outcome}", flush=True)
    return 1000 * max((took_s for took_s, _ in after), default=0.0)


async def _happen(cluster: MachineCluster, what: str, role: str, turn: int) -> float:
    active = await cluster.is_whole()
    others = [name for name in NAMES if name != active]
    door = active if role == "active" else others[turn % 2]
    begin, end = _HAPPENS[what]
    async with cluster.writing(door, *(name for name in NAMES if name != door)) as writer:
        assert await outcomes(writer, _BEFORE_S)
        await begin(cluster, door)
        # A suspended machine wakes while the client is watched: what it finds then counts, too.
        gap_ms = _gap_ms(await outcomes(writer, _WATCHED_S + _SUSPENDED_S * (what == "suspended")))
        await end(cluster, door)
    return gap_ms


async def _return(cluster: MachineCluster, away_s: float, back_s: float) -> float:
    """The gap when the second machine is lost."""
    first = await cluster.is_whole()
    async with cluster.writing(*NAMES) as writer:
        assert await outcomes(writer, _BEFORE_S)
        cluster.machines.cut(first)
        lost_ms = _gap_ms(await outcomes(writer, away_s))
        second = await cluster.active(but=first)
        cluster.machines.mend(first)
        back_ms = _gap_ms(await outcomes(writer, back_s))
        cluster.machines.cut(second)
        gap_ms = _gap_ms(await outcomes(writer, 2 * _WATCHED_S))
        cluster.machines.mend(second)
    print(f"  {away_s:g} s away, back for {back_s:g} s: {lost_ms:.0f}, {back_ms:.0f}, then {gap_ms:.0f}", flush=True)
    return gap_ms


async def _faults(cluster: MachineCluster, times: int) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {}
    for what in _HAPPENS:
        for role in ("active", "standby"):
            gaps = measured[f"{what}, {role}"] = [await _happen(cluster, what, role, turn) for turn in range(times)]
            listed = ", ".join(f"{gap:.0f}" for gap in sorted(gaps))
            print(f"{what}, {role}: {listed} ms (load {os.getloadavg()[0]:.0f})", flush=True)
    return measured


async def _returns(cluster: MachineCluster, times: int) -> dict[str, list[float]]:
    return {
        f"away {away_s:g} s, back {back_s:g} s, next lost": [
            await _return(cluster, away_s, back_s) for _ in range(times)
        ]
        for away_s in _AWAY_S
        for back_s in _BACK_S
    }


_PARTS = {"faults": _faults, "returns": _returns}


async def _measure(
    part: Callable[[MachineCluster, int], Awaitable[dict[str, list[float]]]], times: int
) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder, Machines(*NAMES, "client") as machines:
        async with cluster_on(machines, Path(folder)) as cluster:
            return await part(cluster, times)


def main() -> int:
    parts = ", ".join(_PARTS)
    options = Options.parse(
        __doc__, times=(int, 5, "how often each thing happens"), part=(str, None, f"only one of {parts}")
    )
    report = Report(options)
    for name, part in _PARTS.items():
        if options.extra["part"] in (None, name):
            for what, gaps in asyncio.run(_measure(part, options.scaled(options.number("times")))).items():
                report.bar(f"{what}: median ms", statistics.median(gaps), _BARS[0], at_most=True)
                report.bar(f"{what}: longest ms", max(gaps), _BARS[1], at_most=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
