"""No modules of a package import each other, directly or by others: what a module needs lies below it.

Imports for type checkers count as well: a circle of them is one for the reader. ``lint-imports`` leaves them out.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import statestore_client

ROOT = Path(statestore_client.__file__).parents[1]

#: For type checkers only. An error says which request may have taken effect, by an id that is a value of the wire; and
#: whoever makes an id of wrong parts gets an error. Neither can know the other by a weaker name: both are public.
KNOWN = ("raft_client.errors", "raft_client.wire.request_id")


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imports(path: Path) -> set[str]:
    """The modules that a file names in its imports, those for type checkers too; of ``from a import b`` also a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


@pytest.mark.parametrize("package", ["raft_client", "statestore_client"])
def test_no_circle_of_imports(package: str) -> None:
    """The modules of a package can be put in an order in which each imports earlier ones only."""
    modules = {_name(path): path for path in (ROOT / package).rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = _imports(path) & modules.keys()
        # ``from package import module`` needs the module; the package's own names are not looked at.
        below = {each for each in found if any(other.startswith(f"{each}.") for other in found)}
        graph[name] = found - below - {name}
    if KNOWN[0] in graph:
        assert KNOWN[1] in graph[KNOWN[0]], "the circle is gone: so goes its excuse"
        graph[KNOWN[0]].discard(KNOWN[1])
    assert len([*TopologicalSorter(graph).static_order()]) == len(modules)  # raises CycleError
