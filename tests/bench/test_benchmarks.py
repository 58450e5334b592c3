"""The benchmarks, which only people run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def test_every_benchmark_finds_what_it_imports() -> None:
    """No type checker looks at them, and what they measure changes its names."""
    names = sorted(path.stem for path in _FOLDER.glob("bench_*.py"))
    assert len(names) > 10
    command = [sys.executable, "-c", _IMPORT_ALL, str(_FOLDER), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
