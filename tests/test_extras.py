"""Everything that the two packages export can be imported without any of the extras."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest

#: For those who work on the package, not with it.
DEVELOPERS = {"docs", "lint", "test"}
#: What the reference documents, besides what lies below it.
MODULES = (
    "statestore_client", "statestore_client.cli", "statestore_client.kvstore", "statestore_client.pytest_plugin",
    "statestore_client.server", "statestore_client.server.testing", "statestore_client.spark",
    "raft_client", "raft_client.cli", "raft_client.pytest_plugin", "raft_client.server", "raft_client.spark",
)  # fmt: skip
#: Refuses the modules named in its arguments, then imports every public name.
IMPORT_ALL = """
import sys
from importlib import import_module

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
for module in map(import_module, sys.argv[1].split()):
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
"""


def _extras() -> dict[str, set[str]]:
    """Extra -> the projects that only it installs."""
    always: set[str] = set()
    found: dict[str, set[str]] = {}
    for requirement in requires("statestore-client") or ():
        project = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        (always if extra is None else found.setdefault(extra[1], set())).add(project)
    return {extra: projects - always for extra, projects in found.items() if extra not in DEVELOPERS}


@pytest.mark.parametrize("extra", sorted(_extras()))
@pytest.mark.ci
def test_nothing_public_needs_an_extra_to_be_imported(extra: str) -> None:
    """Without the projects of an extra, every public name can be imported; only using it may need them."""
    installed = {d.lower(): module for module, names in packages_distributions().items() for d in names}
    modules = {installed.get(project, project.removesuffix("-api")) for project in _extras()[extra]}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, " ".join(MODULES), " ".join(modules)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
