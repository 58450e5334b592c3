"""Plant mistakes into copies of both packages, one at a time, and see which tests find them.

Why: a suite that passes says little about what it would miss. Each of the mutants in ``mutants.toml`` is a
mistake as people make them, at a place drawn by chance. The share that is found is a ruler: lay it on before and after
a change of the tests. A survivor is either a test that is missing, or code that nothing needs.

How: with the Python of an environment that has all test dependencies, from anywhere::

    python tests/mutants/plant.py                       # all, one after the other: about an hour
    python tests/mutants/plant.py m07 m31 --jobs 2
    python tests/mutants/plant.py m07 --pytest-args="--timeout=60 -k 'not slow_disk'"

Each worker copies the whole work tree into a temporary folder and runs pytest there, so that subprocesses see the
mutant too, wherever they are started. A mutant counts as found when a test fails, when pytest cannot even begin, or
after 300 seconds. The tests are not run without a mutant first: a flaky test may find one by luck, and on a busy
machine so may the time limit. Narrow the tests with ``--pytest-args`` where that is in doubt. Simulations run few
schedules, unless the environment says otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 300.0
SCALE: Final = {"STATESTORE_TEST_SCALE": "0.4"}
SURVIVED: Final = "SURVIVED"
_NOT_COPIED: Final = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "_build", "*.egg-info")
_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def plant(mutant: dict[str, Any], copy: Path, pytest_args: list[str]) -> str:
    """Run the nearest tests with this mutant in the copy; returns what found it, or ``SURVIVED``."""
    path = copy / mutant["file"]
    source = path.read_text("utf-8")
    if (count := source.count(mutant["old"])) != 1:
        raise SystemExit(f"{mutant['id']}: its old text occurs {count} times in {mutant['file']}, not once")
    path.write_text(source.replace(mutant["old"], mutant["new"]), "utf-8")
    try:
        return _found_by(mutant["tests"], copy, pytest_args)
    finally:
        shutil.copy2(ROOT / mutant["file"], path)


def _found_by(tests: list[str], copy: Path, pytest_args: list[str]) -> str:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-c", "pyproject.toml", *pytest_args]
    paths = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env={**SCALE, **os.environ, "PYTHONPATH": paths},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return "time-out"
        finally:
            with contextlib.suppress(ProcessLookupError):  # servers that tests have left behind go as well
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == 0:
        return SURVIVED
    if code == 5 or "usage: " in text:
        raise SystemExit(f"pytest has run no test: {text[-500:]}")
    failure = _FAILURE.search(text)
    return failure[1] if failure else f"pytest, exit code {code}"


def main() -> None:
    """Plant those that the command line names, or all; print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="m01 … m60; all by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once, each with a copy of its own")
    parser.add_argument("--pytest-args", type=shlex.split, default=[], help="more options of pytest, in one argument")
    options = parser.parse_args()
    mutants = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text("utf-8"))["mutant"]
    if unknown := set(options.ids) - {each["id"] for each in mutants}:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    chosen = [each for each in mutants if not options.ids or each["id"] in options.ids]
    copies: SimpleQueue[Path] = SimpleQueue()

    def row(mutant: dict[str, Any]) -> bool:
        copy, began = copies.get(), time.monotonic()
        try:
            found = plant(mutant, copy, options.pytest_args)
        finally:
            copies.put(copy)
        seconds = time.monotonic() - began
        sys.stdout.write(f"{mutant['id']}  {mutant['kind']:<17}  {mutant['file']:<62}  {found}  {seconds:.0f} s\n")
        sys.stdout.flush()
        return found != SURVIVED

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            copies.put(shutil.copytree(ROOT, Path(folder) / str(number), ignore=_NOT_COPIED))
        found = sum(pool.map(row, chosen))
    sys.stdout.write(f"{found} of {len(chosen)} found\n")


if __name__ == "__main__":
    main()
