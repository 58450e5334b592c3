"""Which versions of PySpark the package says it works with, and which ones are tested."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Where people read it.
PAGES = ("README.md", "docs/how-to/spark.md", "docs/how-to/raft-spark.md")


@pytest.fixture
def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(REPOSITORY / "setup.cfg")
    return parser


def versions(setup: configparser.ConfigParser) -> list[str]:
    """``4.1`` and so on: an environment of tox for each, which is in the list."""
    pinned = dict(re.findall(r"(spark\d+): pyspark==([\d.]+)\.\*", setup["testenv:spark{41,42,43}"]["deps"]))
    environments = setup["tox:tox"]["envlist"].split(", ")
    assert sorted(pinned) == [name for name in environments if name.startswith("spark")]
    return [pinned[name] for name in sorted(pinned)]


def test_tox_tests_the_oldest_version_that_may_be_installed(setup: configparser.ConfigParser) -> None:
    """tox tests the oldest PySpark that may be installed and Spark Connect, and the next major version may not be
    installed."""
    (requirement,) = [r for r in setup["options.extras_require"]["spark"].split() if r.startswith("pyspark")]
    oldest, major = versions(setup)[0], int(versions(setup)[-1].partition(".")[0])
    assert requirement == f"pyspark>={oldest},<{major + 1}"
    assert "connect" in setup["tox:tox"]["envlist"].split(", ")
    assert f"pyspark[connect]>={oldest},<{major + 1}" in setup["testenv:connect"]["deps"]


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_the_tested_versions(setup: configparser.ConfigParser, page: str) -> None:
    """The pages name all tested versions and no others."""
    text = (REPOSITORY / page).read_text()
    named = re.search(r"PySpark ((?:\d+\.\d+(?:, | and | or )?)+)", text)
    assert named is not None
    assert re.findall(r"\d+\.\d+", named[1]) == versions(setup)


def test_make_runs_all_of_them(setup: configparser.ConfigParser) -> None:
    """One make target tests all versions."""
    wanted = [name for name in setup["tox:tox"]["envlist"].split(", ") if name.startswith(("spark", "connect"))]
    assert f"tox run -e {','.join(wanted)}\n" in (REPOSITORY / "Makefile").read_text()
