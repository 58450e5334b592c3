"""The commands of the Makefile reach the tests that they are for."""

from __future__ import annotations

import re
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tox_hands_on_what_the_makefile_sets() -> None:
    """A variable that tox keeps from the tests has no effect, and nobody notices."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    passed = config["testenv"]["pass_env"].split()
    assigned = set(re.findall(r"\b([A-Z_]+)=\S+ (?=.*\$\(BIN\)/tox)", (ROOT / "Makefile").read_text()))
    assigned |= set(re.findall(r'environ\.get\("([A-Z_]+)"', (ROOT / "docs/conf.py").read_text()))
    assert {"STATESTORE_KILLS", "RAFT_KILLS", "DOCS_URL"} <= assigned
    assert [name for name in sorted(assigned) if not any(fnmatch(name, pattern) for pattern in passed)] == []


def test_the_oldest_versions_that_are_tested_are_those_that_are_allowed() -> None:
    """The constraints of the environment "lowest" are the lower bounds of what the package and its extras require."""
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    users = [config["options"]["install_requires"], *(extras[e] for e in extras if e not in {"test", "docs", "lint"})]
    allowed = re.findall(r"^([\w.-]+)>=([\d.]+)", "\n".join(users), re.MULTILINE)
    tested = re.findall(r"^([\w.-]+)==([\d.]+)", (ROOT / "tools/lowest.txt").read_text(), re.MULTILINE)
    assert len(allowed) > 5
    assert sorted(tested) == sorted(set(allowed))
