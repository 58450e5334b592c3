"""The raft clients beside hand-written pyzmq and the Node client, against the same three Node peers, in turns.

    python tests/bench/bench_raft.py [--quick] [--rounds 3] [--failovers 7]

Needs Node and the npm package zmq-raft (tests/support/raft_peers.py says how it is installed); without them nothing
is measured. The peers write every append to three disks, so rates say more about them than about the clients; a
client's own cost is its processor time (all threads of its process, in microseconds an operation).

* append: one at a time, and 64 in flight, 100 bytes each;
* read: entries of 100 bytes and of 10 kB, delivered as objects; hand-written pyzmq only counts frames;
* memory: the peak while one gigabyte is streamed, above that of a connected client, in a process of its own;
* failover: kill -9 the leader and append at once, until the append is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import raft_works as works
from measure import Options, Report, Sample, interleaved, ratio

from raft_client import AsyncRaftClient, NoLeaderError, NotLeaderError, RaftClient

sys.path.append(str(Path(__file__).parents[1]))

from support.raft_peers import RaftCluster, install_zmq_raft, why_not

WINDOWS: Final = (1, 64)
SIZE: Final = 100
MEGABYTE: Final = 1_000_000
_CHILD: Final = Path(__file__).with_name("raft_memory_child.py")


def cpu_ratio(ours: Sequence[Sample], peers: Sequence[Sample]) -> float:
    """The median over the rounds of our processor time through the peer's of the same round, for an operation."""
    return statistics.median(our.cpu_us / peer.cpu_us for our, peer in zip(ours, peers, strict=True))


def load(when: str) -> None:
    print(f"load average {when}: {', '.join(f'{value:.2f}' for value in os.getloadavg())}", flush=True)


def by_hand(cluster: RaftCluster, work: Callable[..., Sample], *arguments: object) -> Sample:
    """Peers on a busy machine miss heartbeats and elect another leader; what is written by hand starts again then."""
    while True:
        try:
            return work(cluster.urls[cluster.leader()], *arguments)
        except (NotLeaderError, NoLeaderError):
            print("… another leader; once more by hand", file=sys.stderr)


# -- appends -----------------------------------------------------------------------------------------------------------


def appends(report: Report, options: Options, cluster: RaftCluster, node: works.NodeClient) -> None:
    seeds = ",".join(cluster.seeds)
    for window in WINDOWS:
        count = options.scaled(1000 if window == 1 else 10_000)
        tag = f"append {window}"
        samples = interleaved(
            {
                f"raw {tag}": partial(by_hand, cluster, works.raw_append, count, SIZE, window),
                f"node {tag}": partial(node.append, count, SIZE, window),
                f"sync {tag}": partial(works.sync_append, seeds, count, SIZE, window),
                f"aio {tag}": partial(works.aio_append, seeds, count, SIZE, window),
            },
            options.rounds,
        )
        report.rates(samples)
        for shell in ("sync", "aio"):
            ours, raw, nodes = (samples[f"{who} {tag}"] for who in (shell, "raw", "node"))
            report.bar(f"{shell} {tag}, CPU / raw", cpu_ratio(ours, raw), 1.5, at_most=True)
            report.bar(f"{shell} {tag}, CPU / node", cpu_ratio(ours, nodes), 1.0, at_most=True)
            report.bar(f"{shell} {tag}, rate / node", ratio(ours, nodes), 1.0)


# -- reads -------------------------------------------------------------------------------------------------------------


def reads(report: Report, options: Options, cluster: RaftCluster, node: works.NodeClient) -> None:
    seeds = ",".join(cluster.seeds)
    small = works.fill(seeds, options.scaled(50_000), 100)
    large = works.fill(seeds, options.scaled(20_000), 10_000)
    for name, stretch in (("100 B", small), ("10 kB", works.Stretch(large.after, large.count // 4, large.size))):
        tag = f"read {name}"
        samples = interleaved(
            {
                f"raw {tag}": partial(by_hand, cluster, works.raw_read, stretch),
                f"node {tag}": partial(node.read, stretch),
                f"sync {tag}": partial(works.sync_read, seeds, stretch),
                f"sync batches {tag}": partial(works.sync_batches, seeds, stretch),
                f"aio {tag}": partial(works.aio_read, seeds, stretch),
            },
            2 * options.rounds + 1,  # a read takes a tenth of a second
        )
        report.rates(samples)
        for shell in ("sync", "sync batches", "aio"):
            report.bar(f"{shell} {tag} / raw", ratio(samples[f"{shell} {tag}"], samples[f"raw {tag}"]), 0.8)
    memory(report, options, seeds, large)


def memory(report: Report, options: Options, seeds: str, stretch: works.Stretch) -> None:
    times = options.scaled(10**9) // (stretch.count * stretch.size)
    for shell in ("sync", "aio"):
        command = [sys.executable, str(_CHILD), shell, seeds, *map(str, (stretch.after, stretch.count, times))]
        used = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        name = f"{shell}, peak while streaming {used['streamed'] / MEGABYTE:,.0f} MB"
        report.bar(name, used["above_idle"] / MEGABYTE, 50.0, unit="MB", at_most=True)


# -- failover ----------------------------------------------------------------------------------------------------------


def failovers(report: Report, options: Options, cluster: RaftCluster, node: works.NodeClient) -> None:
    """Each with a client that has just been opened and has appended once."""
    seeds = ",".join(cluster.seeds)
    trials: Mapping[str, Callable[[], float]] = {
        "sync": lambda: sync_failover(cluster, seeds),
        "aio": lambda: asyncio.run(aio_failover(cluster, seeds)),
        "node": lambda: node_failover(cluster, node),
    }
    taken: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(options.number("failovers") if not options.quick else 3):
        for name, trial in trials.items():
            taken[name].append(1000 * trial())
            settle(cluster)
    for name, values in taken.items():
        print(f"{name + ' failover':40} {statistics.median(values):>10,.0f} ms [{min(values):.0f}-{max(values):.0f}]")
    for shell in ("sync", "aio"):
        median = statistics.median(taken[shell])
        report.bar(f"{shell} failover", median, 450.0, unit="ms", at_most=True)
        report.bar(f"{shell} failover / node", median / statistics.median(taken["node"]), 0.5, at_most=True)


def sync_failover(cluster: RaftCluster, seeds: str) -> float:
    with RaftClient(seeds) as client:
        client.append(b"before")
        cluster.kill(cluster.leader())
        started = time.perf_counter()
        client.append(b"after")
        return time.perf_counter() - started


async def aio_failover(cluster: RaftCluster, seeds: str) -> float:
    async with AsyncRaftClient(seeds) as client:
        await client.append(b"before")
        cluster.kill(cluster.leader())
        started = time.perf_counter()
        await client.append(b"after")
        return time.perf_counter() - started


def node_failover(cluster: RaftCluster, node: works.NodeClient) -> float:
    node.open()
    node.append(1, SIZE, 1)
    cluster.kill(cluster.leader())
    return node.append(1, SIZE, 1).seconds


def settle(cluster: RaftCluster) -> None:
    """Restart whoever is down, and wait until all have the same log."""
    for peer in cluster.urls:
        if peer not in cluster.running:
            cluster.start(peer)
    cluster.leader()
    cluster.until(lambda: len({str(_end(cluster, peer)) for peer in cluster.urls}) == 1, "the logs differ")


def _end(cluster: RaftCluster, peer: str) -> int | None:
    answer = cluster.log_info(peer)
    return None if answer is None else answer["last"]


# -- all of it ---------------------------------------------------------------------------------------------------------


def main() -> int:
    options = Options.parse(__doc__, failovers=(int, 7, "kills of a leader, for each client"))
    report = Report(options)
    if (reason := why_not()) is not None:
        print(f"nothing measured: {reason}")
        return report.finish()
    install = install_zmq_raft()
    load("before")
    for part in ((appends, reads), (failovers,)):
        with (
            tempfile.TemporaryDirectory() as folder,
            RaftCluster(Path(folder)) as cluster,
            works.NodeClient(install, ",".join(cluster.seeds)) as node,
        ):
            for measure in part:
                measure(report, options, cluster, node)
    load("after")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
