"""What durability costs: ``statestore serve --data`` beside the server in memory, in turns; and how long it starts.

    python tests/bench/bench_durable.py [--quick] [--rounds 3]

The subscribers' sessions outlive their connections, so each message is written, with its delivery, and removed again.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import bench_server
from broker_load import Load, run
from measure import Options, Report

from statestore_client.cli.bench import served
from statestore_client.mqtt.packets import PublishProperties
from statestore_client.server.broker.message import Message
from statestore_client.server.broker.records import GrantRecord, MessageRecord, SessionRecord
from statestore_client.server.broker.subscriptions import GrantedSubscription
from statestore_client.server.journal import Journal, Stream
from statestore_client.server.runtime.clock import system_clock
from statestore_client.server.runtime.storage import DiskStorage

_MANY = 100_000

#: Of ``statestore serve``, for a data directory that may be used.
_OPTIONS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "memory": lambda _data: (),
    "durable": lambda data: ("--data", data),
}


def _flow(load: Load, port: int) -> float:
    flow = run(port, load)
    if flow.delivered != load.deliveries:
        print(f"{flow.delivered} of {load.deliveries} delivered, {load}", file=sys.stderr)
    return flow.delivered / flow.seconds


def beside_memory(report: Report, name: str, work: Callable[[int], float], rounds: int) -> None:
    """The work on both servers, in turns; the median of the ratios."""
    rates: dict[str, list[float]] = {"memory": [], "durable": []}
    for number in range(rounds):
        for kind in ("memory", "durable") if number % 2 else ("durable", "memory"):
            with tempfile.TemporaryDirectory() as data, served(*_OPTIONS[kind](data)) as url:
                rates[kind].append(work(int(url.rsplit(":", 1)[1])))
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    print(f"{name}: in memory {medians['memory']:,.0f}/s, durable {medians['durable']:,.0f}/s")
    ratio = statistics.median(a / b for a, b in zip(rates["durable"], rates["memory"], strict=True))
    report.bar(f"{name}, durable / in memory", ratio, 0.5)


def start(report: Report, sessions: int, retained: int) -> None:
    """From the start of the process to the line that says that it listens."""
    with tempfile.TemporaryDirectory() as data:
        _fill(Path(data), sessions, retained)
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            with served("--data", data):
                seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        with served():
            empty_s = time.perf_counter() - started
    print(f"start with {sessions:,} sessions and {retained:,} retained messages; without: {empty_s:.2f} s")
    report.bar("start with data, s", statistics.median(seconds), 3.0, at_most=True, unit=" s")


def _fill(data: Path, sessions: int, retained: int) -> None:
    storage, journal, now = DiskStorage(data), Journal(), system_clock()
    for number in range(1, sessions + 1):
        record = SessionRecord(number, 86_400, None, now.monotonic, None, None)
        journal[Stream.SESSIONS].put(f"device-{number:06}", record)
        grant = GrantRecord(GrantedSubscription(1, False, False, ()))
        journal[Stream.SUBSCRIPTIONS].put(f"{number} devices/{number:06}/commands", grant)
    for number in range(retained):
        message = Message(f"devices/{number:06}/state", b"x" * 100, 1, True, PublishProperties(), "d", None)
        journal[Stream.RETAINED].put(message.topic, MessageRecord(message))
    storage.write(journal.cut(now))
    storage.close()


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    messages = options.scaled(40_000)
    for name, load in {
        "QoS 1, 64 -> 1, one by one": Load(1, 64, 1, messages // 64 * 64, window=1, is_kept=True),
        "QoS 1, 4 -> 1": Load(1, 4, 1, messages, is_kept=True),
        "QoS 2, 4 -> 1": Load(2, 4, 1, messages // 2, is_kept=True),
        "QoS 1, 1 -> 4": Load(1, 1, 4, messages // 4, is_kept=True),
    }.items():
        beside_memory(report, name, partial(_flow, load), options.rounds)
    sets = partial(_sets, 1.0 if options.quick else 4.0)
    beside_memory(report, "SET, 64 in flight", sets, options.rounds)
    start(report, options.scaled(_MANY), options.scaled(_MANY))
    return report.finish()


def _sets(seconds: float, port: int) -> float:
    return bench_server._loaded(port, seconds, 64)


if __name__ == "__main__":
    sys.exit(main())
