"""What importing a package costs over an empty interpreter. The goal is 60 ms (a Spark worker pays it).

    python tests/bench/bench_import.py [--quick]

Each line is the fastest of several runs: what is above it is other people's work on this machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

from measure import Options, Report

RUNS: Final = 15
GOAL_MS: Final = 60.0
STATEMENTS: Final = ("import statestore_client", "import raft_client")
OTHERS: Final = (
    "from statestore_client import StateStoreClient",
    "from statestore_client import AsyncStateStoreClient",
    "import statestore_client.mqtt.native",
    "import statestore_client.mqtt.paho_driver",
    "from raft_client import RaftClient",
    "from raft_client import AsyncRaftClient",
)


def fastest_ms(statement: str, runs: int) -> float:
    """Milliseconds from the start of an interpreter to its end."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def main() -> int:
    options = Options.parse(__doc__)
    report = Report(options)
    runs = 5 if options.quick else RUNS
    empty = fastest_ms("pass", runs)
    print(f"{empty:7.1f} ms  an empty interpreter")
    for statement in STATEMENTS:
        report.bar(statement, fastest_ms(statement, runs) - empty, GOAL_MS, unit="ms", at_most=True)
    for statement in OTHERS:
        print(f"{fastest_ms(statement, runs) - empty:+7.1f} ms  {statement}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
