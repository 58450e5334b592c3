"""The reference names what the packages export, all of it, and by the names under which it is imported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import statestore_client

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


#: Classes whose methods the page of the API shows with their signatures.
SHOWN = (statestore_client.StateStoreClient, statestore_client.Lock, statestore_client.Election)


def _as_shown(name: str, method: Callable[..., object]) -> str:
    """The call as a reader writes it: names and defaults without types; ``...`` stands for the setting's value."""
    parameters = inspect.signature(method).parameters.values()
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters if p.name != "self"]
    text = f"{name}{inspect.Signature(plain)}".replace(repr(statestore_client.DEFAULT_TIMEOUT), "...")
    return re.sub(r"<function (\w+) at \w+>", r"\1", text).replace("'", '"')


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.__name__)
def test_the_page_shows_the_signature_of_each_method(shown: type) -> None:
    """The table of a class has each of its methods with all arguments, so readers of a forge, which makes nothing of
    docstrings, see them."""
    text = (DOCS / "reference" / "api.md").read_text("utf-8")
    calls = re.findall(r"`(\w+\([^`]*\))`", text.partition(f"## `{shown.__name__}`\n")[2].partition("\n#")[0])
    methods = {name: getattr(shown, name) for name in vars(shown) if not name.startswith("_")}
    assert set(calls) >= {_as_shown(name, each) for name, each in methods.items() if inspect.isroutine(each)}
