"""Every benchmark, one after the other, and one table of all bars at the end: ``make bench``.

    python tests/bench/run_all.py [--quick] [--rounds 3] [--driver native] [NAME …]

Names run only those benchmarks: ``… client memory``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import bar_table

_HERE = Path(__file__).parent


def main() -> int:
    """Exit code 1 if a benchmark failed. A bar that was missed is only told: the machine may be busy."""
    names = sorted(script.stem.removeprefix("bench_") for script in _HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description="Run the benchmarks and compare what they measure with the bars.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians count")
    parser.add_argument("--driver", action="append", help="only this one; may be repeated")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(names)):
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(names)}")
    common = ["--rounds", str(given.rounds), *(["--quick"] if given.quick else [])]
    common += [part for driver in given.driver or () for part in ("--driver", driver)]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        bars = Path(folder, "bars")
        bars.touch()
        for name in given.names or names:
            print(f"\n== {name} ==", flush=True)
            command = [sys.executable, str(_HERE / f"bench_{name}.py"), "--bars", str(bars), *common]
            if subprocess.run(command, check=False).returncode:
                failed.append(name)
        print(f"\n== bars ==\n{bar_table(bars)}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
