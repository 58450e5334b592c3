"""Every benchmark, one after the other: ``make bench``. Names after the command run only those: ``… system import``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Exit code 1 if a benchmark failed."""
    scripts = sorted(Path(__file__).parent.glob("bench_*.py"))
    wanted = set(sys.argv[1:])
    failed = []
    for script in scripts:
        name = script.stem.removeprefix("bench_")
        if wanted and name not in wanted:
            continue
        print(f"\n== {name} ==", flush=True)
        if subprocess.run([sys.executable, str(script)], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
