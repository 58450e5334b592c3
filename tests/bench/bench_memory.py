"""Memory of a client: idle, and with many requests in flight; and the allocations that a request holds.

    python tests/bench/bench_memory.py [--rounds 3] [--driver native] [--requests 10000]

Every figure is of a process of its own (``memory_child.py``), medians over the rounds. *Idle*: resident memory with one
connected client that has made one request, above ``import statestore_client`` and its client class; what the client
loads when it connects counts. *In flight*: against a stub that acknowledges and never answers, SETs of 100 bytes.

The number of memory blocks that a request in flight holds (``sys.getallocatedblocks``) does not depend on the machine:
it is the figure to compare when the way of a request has changed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

from measure import Options, Report
from stub import codec_server, silent_server

MEGABYTE: Final = 1_000_000
_CHILD: Final = Path(__file__).with_name("memory_child.py")


def child(what: str, shell: str, url: str, driver: str, count: int, rounds: int) -> dict[str, float]:
    """The median of each figure over the rounds."""
    command = [sys.executable, str(_CHILD), what, shell, url, driver, str(count)]
    answers = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(rounds)]
    return {name: statistics.median(answer[name] for answer in answers) for name in answers[0]}


def idle(report: Report, options: Options) -> None:
    with codec_server() as server:
        for driver in options.drivers:
            for shell in ("aio", "sync"):
                used = child("idle", shell, server.url, driver, 0, options.rounds)
                name = f"{driver} {shell}, an idle client above import"
                report.bar(name, used["first"] / MEGABYTE, 2.0, unit="MB", at_most=True, driver=driver)
                print(f"{driver + ' ' + shell + ', a second one':58} {used['second'] / MEGABYTE:>10.2f} MB")


def in_flight(report: Report, options: Options) -> None:
    count = options.number("requests")
    for driver in options.drivers:
        for what, shell in (("batch", "aio"), ("tasks", "aio"), ("batch", "sync")):
            with silent_server() as server:
                used = child(what, shell, server.url, driver, count, 1 if options.quick else options.rounds)
                _, published = server.counts()
            assert published >= count, f"only {published} of {count} were in flight"
            name = f"{driver} {shell} {what}, {count:,} in flight"
            report.bar(name, used["resident"] / MEGABYTE, 50.0, unit="MB", at_most=True, driver=driver)
            print(f"{'':58} {used['blocks']:>10.1f} blocks, {used['bytes']:,.0f} bytes a request")


def main() -> int:
    options = Options.parse(__doc__, requests=(int, 10_000, "in flight"))
    report = Report(options)
    idle(report, options)
    in_flight(report, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
