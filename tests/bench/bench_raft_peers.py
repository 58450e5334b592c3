"""Three peers of this package beside three Node peers, on the same machine and disks, in turns.

    python tests/bench/bench_raft_peers.py [--quick] [--rounds 3] [--failovers 5]

Needs Node and the npm package zmq-raft; without them nothing is measured. Each peer is a process. With both kinds, a
majority has synced an append before it is acknowledged. PySyncObj, which syncs nothing, is installed for the occasion.

* append: our client with one and with 64 in flight, hand-written pyzmq with 64, 100 bytes each; PySyncObj from within
  its leader;
* syncs of a peer's disk for an append; and appends when each of them takes 5 ms, or 1 ms, longer;
* latency of appends one at a time, from the blocking client;
* processor time of the leader and of a follower for an append, while 64 are in flight;
* read: entries of 100 bytes, delivered as objects;
* failover: kill -9 the leader and append at once, until the append is acknowledged.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import raft_works as works
from bench_raft import by_hand, load, settle, sync_failover
from counted_syncs import CountedSyncs
from measure import Options, Report, Sample, interleaved, percentile, ratio
from own_venv import install
from workloads import one_by_one_blocking

from raft_client import RaftClient

sys.path.append(str(Path(__file__).parents[1]))

from pysyncobj_cluster import REQUIREMENT, PySyncObjCluster
from support.raft_peers import MixedCluster, RaftCluster, why_not

SIZE: Final = 100
_TICKS: Final = os.sysconf("SC_CLK_TCK")
Clusters = Mapping[str, RaftCluster]


def cpu_s(cluster: RaftCluster, peer: str) -> float:
    """User and system time of a peer's process, of all its threads, in seconds (proc(5))."""
    fields = Path(f"/proc/{cluster.pid(peer)}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def appends(report: Report, options: Options, clusters: Clusters) -> None:
    """Rates, with our client and by hand."""

    def ours(cluster: RaftCluster, count: int, window: int) -> Sample:
        return works.aio_append(",".join(cluster.seeds), count, SIZE, window)

    def raw(cluster: RaftCluster, count: int, window: int) -> Sample:
        return by_hand(cluster, works.raw_append, count, SIZE, window)

    _beside(report, options, clusters, "append 1", partial(ours, count=options.scaled(1_000), window=1), 1.0)
    _beside(report, options, clusters, "append 64", partial(ours, count=options.scaled(20_000), window=64), 2.0)
    _beside(report, options, clusters, "raw append 64", partial(raw, count=options.scaled(20_000), window=64), 2.5)


def _beside(
    report: Report, options: Options, clusters: Clusters, tag: str, work: Callable[[RaftCluster], Sample], bar: float
) -> None:
    """One work on both clusters in turns, and the ratio of their rates."""
    works_of = {f"{kind}: {tag}": partial(work, cluster) for kind, cluster in clusters.items()}
    samples = interleaved(works_of, options.rounds)
    report.rates(samples)
    report.bar(f"{tag}, ours / Node", ratio(samples[f"ours: {tag}"], samples[f"Node: {tag}"]), bar)


def latencies(report: Report, options: Options, clusters: Clusters) -> None:
    """One at a time."""
    run = partial(_one_at_a_time, count=options.scaled(1_000))
    samples = interleaved({kind: partial(run, cluster) for kind, cluster in clusters.items()}, options.rounds)
    for percent in (50, 99):
        own = {kind: [1000 * percentile(s.latencies_s, percent) for s in each] for kind, each in samples.items()}
        for kind, values in own.items():
            print(f"{kind}: p{percent} one at a time {statistics.median(values):.2f} ms")
        report.bar(f"p{percent} one at a time, ours / Node", _paired(own["ours"], own["Node"]), 0.5, at_most=True)


def _one_at_a_time(cluster: RaftCluster, count: int) -> Sample:
    with RaftClient(",".join(cluster.seeds)) as client:
        return one_by_one_blocking(lambda: client.append(b"v" * SIZE), count)


def processor(report: Report, options: Options, clusters: Clusters) -> None:
    """Of the peers themselves. Rounds in which the leader changed are repeated."""
    count = options.scaled(20_000)
    spent: dict[str, dict[str, list[float]]] = {kind: {"leader": [], "follower": []} for kind in clusters}
    for _ in range(options.rounds):
        for kind, cluster in clusters.items():
            leader, used = _processor_of(cluster, count)
            for peer, seconds in used.items():
                spent[kind]["leader" if peer == leader else "follower"].append(1e6 * seconds / count)
    for role, bar in (("leader", 0.45), ("follower", 0.4)):
        for kind in clusters:
            print(f"{kind}: processor time of a {role} {statistics.median(spent[kind][role]):.0f} µs an append")
        measured = statistics.median(spent["ours"][role]) / statistics.median(spent["Node"][role])
        report.bar(f"processor time of a {role}, ours / Node", measured, bar, at_most=True)


def _processor_of(cluster: RaftCluster, count: int) -> tuple[str, dict[str, float]]:
    while True:
        leader = cluster.leader()
        before = {peer: cpu_s(cluster, peer) for peer in cluster.urls}
        works.aio_append(",".join(cluster.seeds), count, SIZE, 64)
        used = {peer: cpu_s(cluster, peer) - before[peer] for peer in cluster.urls}
        if cluster.leader() == leader:
            return leader, used


def python_peers(report: Report, options: Options, clusters: Clusters) -> None:
    """Beside PySyncObj."""
    with ExitStack() as stack:
        commands = install(stack, REQUIREMENT)
        if commands is None:
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        other = stack.enter_context(PySyncObjCluster(commands / "python", folder))
        seeds, count = ",".join(clusters["ours"].seeds), options.scaled(20_000)
        samples = interleaved(
            {
                "ours: append 64": lambda: works.aio_append(seeds, count, SIZE, 64),
                "PySyncObj: append 64": lambda: other.append(count, SIZE, 64),
            },
            options.rounds,
        )
        report.rates(samples)
        report.bar("append 64, ours / PySyncObj", ratio(*samples.values()), 1.0)


def syncs(report: Report, options: Options) -> None:
    """How often the disks are asked, and that nothing is acknowledged before they have answered."""
    with tempfile.TemporaryDirectory() as folder:
        counted = CountedSyncs(Path(folder))
        with MixedCluster(Path(folder), ours={"1", "2", "3"}, environment=counted.environment) as ours:
            for window, bar in ((64, 0.06), (1, 1.1)):
                count = options.scaled(20_000 if window > 1 else 1_000)
                before = sum(counted.count(peer) for peer in ours.urls)
                works.aio_append(",".join(ours.seeds), count, SIZE, window)
                made = (sum(counted.count(peer) for peer in ours.urls) - before) / count / len(ours.urls)
                report.bar(f"syncs of a peer for an append, {window} in flight", made, bar, unit="", at_most=True)


def slow_disks(report: Report, options: Options) -> None:
    """Durability shows in time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        ours = _delayed(stack, Path(folder), "ours", 5)
        own = 1000 * percentile(_one_at_a_time(ours, options.scaled(500)).latencies_s, 50)
        report.bar("p50 one at a time with 5 ms more for a sync", own, 7.5, unit="ms", at_most=True)
        report.bar("the same, at least", own, 5.0, unit="ms")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        clusters = {kind: _delayed(stack, Path(folder), kind, 1) for kind in ("ours", "Node")}

        def run(cluster: RaftCluster) -> Sample:
            return works.aio_append(",".join(cluster.seeds), options.scaled(10_000), SIZE, 64)

        _beside(report, options, clusters, "append 64 with 1 ms more for a sync", run, 2.0)


def _delayed(stack: ExitStack, folder: Path, kind: str, delay_ms: int) -> RaftCluster:
    data = folder / kind
    data.mkdir()
    environment = CountedSyncs(data, delay_s=delay_ms / 1000).environment
    if kind == "Node":
        return stack.enter_context(RaftCluster(data, environment=environment))
    return stack.enter_context(MixedCluster(data, ours={"1", "2", "3"}, environment=environment))


def reads(report: Report, options: Options, clusters: Clusters) -> None:
    """From the beginning of what was written for it."""
    stretches = {
        kind: works.fill(",".join(cluster.seeds), options.scaled(50_000), SIZE) for kind, cluster in clusters.items()
    }
    samples = interleaved(
        {
            f"{kind}: read {SIZE} B": partial(works.aio_read, ",".join(cluster.seeds), stretches[kind])
            for kind, cluster in clusters.items()
        },
        2 * options.rounds + 1,
    )
    report.rates(samples)
    report.bar(
        "entries read, ours / Node", ratio(*(samples[f"{kind}: read {SIZE} B"] for kind in ("ours", "Node"))), 1.0
    )


def failovers(report: Report, options: Options, clusters: Clusters) -> None:
    """With a blocking client that has just been opened and has appended once."""
    taken: dict[str, list[float]] = {kind: [] for kind in clusters}
    for _ in range(3 if options.quick else options.number("failovers")):
        for kind, cluster in clusters.items():
            taken[kind].append(1000 * sync_failover(cluster, ",".join(cluster.seeds)))
            settle(cluster)
    for kind, values in taken.items():
        print(f"{kind}: failover {statistics.median(values):,.0f} ms [{min(values):.0f}-{max(values):.0f}]")
    measured = statistics.median(taken["ours"]) / statistics.median(taken["Node"])
    report.bar("failover, ours / Node", measured, 1.0, at_most=True)


def _paired(ours: Sequence[float], peers: Sequence[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(our / peer for our, peer in zip(ours, peers, strict=True))


PARTS: Final[tuple[Callable[[Report, Options, Clusters], None], ...]] = (
    appends,
    latencies,
    processor,
    python_peers,
    reads,
    failovers,
)


def main() -> int:
    options = Options.parse(__doc__, failovers=(int, 5, "kills of a leader, of each kind"))
    report = Report(options)
    if (reason := why_not()) is not None:
        print(f"nothing measured: {reason}")
        return report.finish()
    load("before")
    for part in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("Node", "ours"):
                Path(folder, kind).mkdir()
            with (
                RaftCluster(Path(folder, "Node")) as node,
                MixedCluster(Path(folder, "ours"), ours={"1", "2", "3"}) as ours,
            ):
                part(report, options, {"ours": ours, "Node": node})
    syncs(report, options)
    slow_disks(report, options)
    load("after")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
