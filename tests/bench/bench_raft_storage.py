"""A peer with much on its disk: how long it takes to start, how much memory, and for how long it does nothing else.

    python tests/bench/bench_raft_storage.py [--quick] [--ids 17000000]

A gigabyte of log, of entries of 1,000 and 100 bytes; request ids, of which 8 hours at 6,000 a second are 170 million;
a snapshot of a gigabyte from a leader to a follower; and one that a peer makes itself. Everything is written by our own
storage beforehand, each peer is a process, and memory is resident memory above that of the process before. Needs Linux,
4 GB of memory and 5 GB of disk.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from measure import Options, Report
from raft_storage_peers import Child, add_ids, fill_log, fill_snapshot, opened

from raft_client import Peer, RaftClient

sys.path.append(str(Path(__file__).parents[1]))

from support.ports import reserved_port

_GB: Final = 1_000_000_000
_MB: Final = 1_000_000
_PER_SECOND: Final = 6_000
#: The shortest election time-out, in ms: what takes longer is missed by others.
_TIMEOUT_MS: Final = 200.0
_LIMIT_S: Final = 600.0


def members(count: int) -> tuple[Peer, ...]:
    return tuple(Peer(str(number), f"tcp://127.0.0.1:{reserved_port()}") for number in range(1, count + 1))


def logs(report: Report, options: Options, folder: Path) -> None:
    """Open them, and start a peer that is alone, until it acknowledges an append."""
    for size in (1000, 100):
        memory: list[float] = []
        for total in (options.scaled(_GB) // 10, options.scaled(_GB)):
            peers, where = members(1), folder / "log"
            count = fill_log(where, peers, total, size)
            found = [opened(where) for _ in range(options.rounds)]
            what = f"a log of {total / _MB:,.0f} MB, {count:,} entries of {size} bytes"
            seconds = statistics.median(each["open_s"] for each in found)
            print(f"{what}: opened in {seconds:.3f} s, at most {found[0]['most'] / _MB:.1f} MB")
            for machine in ("broadcast", "key-value"):
                taken, figures = _until_it_appends(where, peers, machine)
                busy = f"longest turn {1000 * figures['busy_s']:.0f} ms of the processor"
                print(f"… {machine}: acknowledges after {taken:.1f} s, at most {figures['most'] / _MB:.1f} MB, {busy}")
                if machine == "broadcast":
                    memory.append(figures["most"] / _MB)
            shutil.rmtree(where)
        report.bar(f"open the larger log, {size} bytes", seconds, 5.0, unit="s", at_most=True)
        report.bar(f"… until it acknowledges, {machine}", taken, 5.0, unit="s", at_most=True)
        report.bar("… memory above that for the smaller log", memory[1] - memory[0], 10.0, unit="MB", at_most=True)


def _until_it_appends(folder: Path, peers: tuple[Peer, ...], machine: str) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    with Child(folder, "1", peers, machine, 0) as peer:
        peer.started()
        with RaftClient(peers[0].url, request_timeout=_LIMIT_S) as client:
            client.append(b"the first one")
        return time.perf_counter() - began, peer.figures()


def request_ids(report: Report, options: Options, folder: Path) -> None:
    """Of a log that has lost its entries to a snapshot."""
    made = add_ids(folder / "ids", members(1), options.scaled(options.number("ids")), _PER_SECOND)
    found = opened(folder / "ids", made)
    shutil.rmtree(folder / "ids")
    looked = ", ".join(f"{kind} {taken:.1f}" for kind, taken in found["looked"].items())
    print(f"{made[0]:,} request ids: opened in {found['open_s']:.2f} s; µs to look for one: {looked}")
    report.bar("memory for a million request ids", found["now"] / made[0], 1.0, unit="MB", at_most=True)


def given_snapshot(report: Report, options: Options, folder: Path, machine: str) -> None:
    """Two peers have it, the third one has nothing."""
    peers, total = members(3), options.scaled(_GB)
    for peer in peers[:2]:
        fill_snapshot(folder / peer.id, peers, total, 1000, peer.id)
    with ExitStack() as stack:
        first, second = (stack.enter_context(Child(folder / each.id, each.id, peers, machine, 0)) for each in peers[:2])
        for child in (first, second):
            child.started()
            _wait_for(partial(_has_more, child, "applied", 1000))
        for child in (first, second):
            child.figures(reset=True)
        began = time.perf_counter()
        third = stack.enter_context(Child(folder / "3", "3", peers, machine, 0))
        third.started()
        _wait_for(partial(_has_more, third, "snapshot", 0))
        arrived, receiver = time.perf_counter() - began, third.figures()
        _wait_for(partial(_has_more, third, "applied", 1000))
        restored, receiver_end = time.perf_counter() - began, third.figures()
        others = [first.figures(), second.figures()]
    for peer in peers:
        shutil.rmtree(folder / peer.id)
    sender = max(each["most"] for each in others) / _MB
    what = f"a snapshot of {total / _MB:,.0f} MB, {machine}"
    print(f"{what}: arrives in {arrived:.1f} s ({total / arrived / _MB:.0f} MB/s), is restored after {restored:.1f} s")
    report.bar(f"{what}: memory of the sender", sender, 50.0, unit="MB", at_most=True)
    report.bar("… of the receiver until it has arrived", receiver["most"] / _MB, 50.0, unit="MB", at_most=True)
    busy = 1000 * max(each["busy_s"] for each in (*others, receiver_end))
    longest = 1000 * max(each["pause_s"] for each in (*others, receiver_end))
    print(f"… longest pause of an event loop {longest:.0f} ms")
    report.bar("… longest turn, processor", busy, _TIMEOUT_MS, unit="ms", at_most=True)


def own_snapshot(report: Report, options: Options, folder: Path) -> None:
    """A key/value machine with a gigabyte of values writes it down, and is asked for appends meanwhile."""
    peers, total = members(1), options.scaled(_GB)
    count = fill_log(folder / "own", peers, total, 1000, keys=total)
    written = folder / "own" / "local.tmp"
    with Child(folder / "own", "1", peers, "key-value", int(0.9 * total)) as peer:
        peer.started()
        _wait_for(written.exists)
        peer.figures(reset=True)
        began = time.perf_counter()
        with RaftClient(peers[0].url, request_timeout=_LIMIT_S) as client:
            while written.stat().st_size < 0.85 * total:
                client.append(b"meanwhile")
        taken, figures = time.perf_counter() - began, peer.figures()
    shutil.rmtree(folder / "own")
    print(f"a snapshot of {count:,} keys is written in {taken:.1f} s; pause {1000 * figures['pause_s']:.0f} ms")
    report.bar("… longest turn, processor", 1000 * figures["busy_s"], _TIMEOUT_MS, unit="ms", at_most=True)


def _has_more(child: Child, figure: str, than: int) -> bool:
    return child.figures()[figure] > than


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.05)


def main() -> int:
    options = Options.parse(__doc__, ids=(int, 17_000_000, "request ids that are remembered"))
    report = Report(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs(report, options, folder)
        request_ids(report, options, folder)
        given_snapshot(report, options, folder, "broadcast")
        given_snapshot(report, options, folder, "key-value")
        own_snapshot(report, options, folder)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
