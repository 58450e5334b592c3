"""What a user gets with pip: the two packages, and nothing that serves only those who work on them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What the build reads, and what stands beside it and must stay out.
SOURCES = ("pyproject.toml", "setup.cfg", "MANIFEST.in", "README.md", "LICENSE", "pyspark_statestore.py",
           "pyspark_zmqraft.py", "statestore_client", "raft_client", "examples", "tests")  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source distribution, built from a copy of the sources: a build leaves files behind."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    build = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build], cwd=copy, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel_names(built: Path) -> set[str]:
    """The names of the files in the wheel."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_two_packages_and_nothing_beside_them(wheel_names: set[str]) -> None:
    """The wheel holds the two packages with their type markers, and no top-level name for examples, tests or
    benchmarks."""
    tops = {name.partition("/")[0] for name in wheel_names if ".dist-info/" not in name}
    assert tops == {"statestore_client", "raft_client", "pyspark_statestore.py", "pyspark_zmqraft.py"}
    assert {"statestore_client/py.typed", "raft_client/py.typed"} <= wheel_names


def test_examples_and_the_baselines_of_the_benchmarks_are_not_in_the_wheel(wheel_names: set[str]) -> None:
    """Examples and baselines of the benchmarks exist in the clone, and no file of the wheel has their name."""
    assert (ROOT / "examples/flights").is_dir()
    baselines = {"paho_baseline.py", "raw_pyzmq.py"}
    assert {path.name for path in (ROOT / "tests/bench").iterdir()} >= baselines
    assert {name for name in wheel_names if (baselines | {"demo", "flights"}) & {*name.split("/")}} == set()


def test_a_source_distribution_has_what_builds_the_wheel(built: Path) -> None:
    """The wheel can be built from the source distribution, which leaves tests and examples in the clone."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    tops = {name.partition("/")[0] for name in names}
    assert tops & {"tests", "examples", "docs"} == set()
    assert {"pyproject.toml", "setup.cfg", "README.md", "LICENSE", "statestore_client/py.typed"} <= names
