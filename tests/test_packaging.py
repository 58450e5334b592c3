"""What a user gets with pip: the two packages, and nothing that serves only those who work on them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci  # two builds

ROOT = Path(__file__).parents[1]
#: When the sources were committed, for the builds.
_COMMITTED = 1_764_000_000
#: What the build reads, and what stands beside it and must stay out.
SOURCES = ("pyproject.toml", "setup.cfg", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "pyspark_statestore.py",
           "pyspark_zmqraft.py", "statestore_client", "raft_client", "examples", "tests")  # fmt: skip


def _begin_build(folder: Path, umask: int) -> subprocess.Popen[str]:
    """Build a wheel and a source distribution from a copy of the sources: a build leaves files behind."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)  # with the time of now
    build = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", build],
        cwd=folder,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(_COMMITTED)},
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders with a wheel and a source distribution, built in two places with different permissions."""
    folders = [tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("elsewhere") / "deeper"]
    folders[1].mkdir()
    begun = [_begin_build(folder, umask) for folder, umask in zip(folders, (0o022, 0o077), strict=True)]
    for each in begun:
        output, _ = each.communicate(timeout=240)
        assert each.returncode == 0, output
    return [folder / "dist" for folder in folders]


@pytest.fixture(scope="module")
def built(builds: list[Path]) -> Path:
    """A folder with a wheel and a source distribution."""
    return builds[0]


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


def test_two_builds_in_different_places_are_the_same_byte_for_byte(builds: list[Path]) -> None:
    """Neither folder, time nor permissions of the building machine show in the wheel or the source distribution."""
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in builds)
    assert len(first) == 2
    assert first == second


def test_a_source_distribution_has_the_time_of_the_commit_and_no_user(built: Path) -> None:
    """Every file in the source distribution has the time of the commit, and belongs to nobody in particular."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in opened} == {(_COMMITTED, 0, 0, "", "")}


def test_the_wheel_lists_what_it_needs(built: Path) -> None:
    """The bill of materials has each project that the metadata requires: always, or with an extra only."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if ".dist-info/sboms/" in name)
        bill = json.loads(archive.read(name))
        metadata = message_from_bytes(archive.read(name.replace("sboms/statestore-client.cdx.json", "METADATA")))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == metadata["Version"]
    required = set(metadata.get_all("Requires-Dist", []))
    assert {p["value"] for component in bill["components"] for p in component["properties"]} == required
    scopes = {component["name"]: component["scope"] for component in bill["components"]}
    assert scopes["paho-mqtt"] == scopes["click"] == "required", "click is also in an extra"
    assert scopes["pyspark"] == "optional"
    assert len(bill["dependencies"][0]["dependsOn"]) == len(scopes)


def _installed_bytes(project: str, seen: set[str]) -> int:
    """What the files of a project take, and of all that it requires without an extra."""
    if project in seen:
        return 0
    seen.add(project)
    found = distribution(project)
    needed = [r for r in found.requires or () if "extra ==" not in r and "; " not in r]
    sizes = (Path(str(path.locate())).stat().st_size for path in found.files or () if Path(str(path.locate())).exists())
    return sum(sizes) + sum(_installed_bytes(re.split(r"[^\w.-]", r, maxsplit=1)[0], seen) for r in needed)


def test_an_installation_without_extras_is_small(built: Path) -> None:
    """The wheel unpacked, and everything that pip installs with it, have less than 60 MB."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        own = sum(entry.file_size for entry in archive.infolist())
    seen: set[str] = set()
    needed = _installed_bytes("statestore-client", seen)
    assert {"paho-mqtt", "rich", "pyzmq", "pygments"} <= {name.lower() for name in seen}
    assert own + needed < 60_000_000
