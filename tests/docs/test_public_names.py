"""The reference names what the packages export, all of it, and by the names under which it is imported."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
#: What docs/stability.md calls public.
MODULES = re.findall(
    r"`((?:statestore|raft)_client[\w.]*)`",
    (DOCS / "stability.md").read_text(encoding="utf-8").partition("with what")[0],
)
PAGES = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
DOCUMENTED = set(re.findall(r"^\.\. auto(?:class|function|data)::\s+([\w.]+)", PAGES, re.MULTILINE))

#: Types of what one gets or gives, which nobody imports by name.
SEEN_ONLY = {
    "raft_client.wire.request_id.IdFreshness",
    "statestore_client.aio.acquisition.Acquisition",
    "statestore_client.mqtt.packets.PublishProperties",
    "statestore_client.server.broker.Counters",
    "statestore_client.server.store.keyspace.ScanLimits",
    "statestore_client.server.testing.faults.FaultOptions",
    "statestore_client.spark.options.WriteOptions",
    "statestore_client.spark.report.ReportSink",
    "statestore_client.wire.instant.Instant",
}


def _exported(module: str) -> set[str]:
    return set(import_module(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_each_public_name(module: str) -> None:
    """Each name that a public module exports has an entry, is an error of the tree, or is described in words."""
    errors = set(import_module(f"{module.partition('.')[0]}.errors").__all__)
    missing = {
        name
        for name in _exported(module) - errors
        if f"{module}.{name}" not in DOCUMENTED and not re.search(rf"`(\w+\.)*{name}\b", PAGES)
    }
    assert missing == set()


def test_the_reference_uses_the_names_that_are_imported() -> None:
    """No entry shows a name from a room of the package, where users do not look: ``statestore_client.sync.watch``."""
    exported = {f"{module}.{name}" for module in MODULES for name in _exported(module)}
    assert {name for name in DOCUMENTED if name not in exported} - SEEN_ONLY == set()


def test_the_policy_names_the_packages() -> None:
    """The policy lists both packages and what they have for tests, servers and Spark."""
    assert {"statestore_client", "raft_client", "raft_client.server", "statestore_client.spark"} <= set(MODULES)
