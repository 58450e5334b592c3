"""The client through mosquitto and a hosted store, beside the client at ``statestore serve``.

    python tests/bench/bench_host.py [--quick] [--rounds 3]

Both stores are in memory, and processes of their own; mosquitto is without Nagle's algorithm. A request passes two
processes in place of one, in both directions.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import workloads
from measure import Options, Report, Sample, interleaved, ratio

sys.path.append(str(Path(__file__).parents[1]))
from support.hosted_stores import ForeignBroker

from statestore_client import ConnectionSettings

_OPERATIONS: Final = 20_000
_SINGLE: Final = 2_000
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def _store(*options: str) -> Iterator[tuple[str, int]]:
    """Its URL, and its process."""
    command = [sys.executable, "-m", "statestore_client.cli", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"mqtt://\S+", process.stdout.readline())
            assert found is not None
            yield found[0], process.pid
        finally:
            process.terminate()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _with_cpu(run: Callable[[], Sample], pid: int, operations: int, used_us: list[float]) -> Sample:
    began = _cpu_s(pid)
    sample = run()
    used_us.append(1e6 * (_cpu_s(pid) - began) / operations)
    return sample


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        print("mosquitto is not installed")
        return report.finish()
    many, single = options.scaled(_OPERATIONS), options.scaled(_SINGLE)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        broker = ForeignBroker(program, Path(folder))
        loop.run(broker.start())
        try:
            with _store("--port", "0") as (own, own_pid), _store("--broker", broker.url) as (url, host_pid):
                places = {"serve": (own, own_pid), "host": (url, host_pid)}
                used: dict[str, list[float]] = {name: [] for name in places}
                works = {
                    name: partial(
                        _with_cpu,
                        partial(workloads.aio_many, ConnectionSettings.from_url(at), verb="SET", operations=many),
                        pid,
                        many,
                        used[name],
                    )
                    for name, (at, pid) in places.items()
                }
                pipelined = interleaved(works, options.rounds)
                alone = interleaved(
                    {
                        name: partial(workloads.aio_one, ConnectionSettings.from_url(at), verb="SET", operations=single)
                        for name, (at, _) in places.items()
                    },
                    options.rounds,
                )
        finally:
            loop.run(broker.end())
    cpu = {name: statistics.median(values) for name, values in used.items()}
    report.bar("hosted on mosquitto: SETs/s, 64 in flight, × serve", ratio(pipelined["host"], pipelined["serve"]), 0.5)
    report.bar("hosted on mosquitto: SETs/s, one at a time, × serve", ratio(alone["host"], alone["serve"]), 0.5)
    report.bar("processor of the host for a SET, × serve", cpu["host"] / cpu["serve"], 1.3, at_most=True)
    print(f"a SET takes {cpu['host']:.0f} µs of the host's processor, and {cpu['serve']:.0f} µs of serve's")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
