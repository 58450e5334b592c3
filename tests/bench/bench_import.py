"""What ``import statestore_client`` costs over an empty interpreter. The goal is 60 ms (a Spark worker pays it).

Run it by hand: ``python tests/bench/bench_import.py``. Each line is the fastest of several runs: what is above it is
other people's work on this machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

RUNS: Final = 15
GOAL_MS: Final = 60.0
STATEMENTS: Final = (
    "pass",
    "import statestore_client",
    "from statestore_client import StateStoreClient",
    "from statestore_client import AsyncStateStoreClient",
    "import statestore_client.mqtt.paho_driver",
)


def fastest_ms(statement: str) -> float:
    """Milliseconds from the start of an interpreter to its end."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def main() -> int:
    """Print a line for each statement; 1 when the package costs more than its goal."""
    empty = fastest_ms(STATEMENTS[0])
    over = {statement: fastest_ms(statement) - empty for statement in STATEMENTS[1:]}
    print(f"{empty:7.1f} ms  an empty interpreter")
    for statement, cost in over.items():
        print(f"{cost:+7.1f} ms  {statement}")
    return int(over["import statestore_client"] > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
