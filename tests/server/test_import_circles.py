"""No two modules of a room of the server import each other, directly or by others: what a module needs lies below it.

Imports for type checkers count as well: a circle of them is one for the reader. ``lint-imports`` leaves them out.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import statestore_client.server

SERVER = Path(statestore_client.server.__file__).parent
ROOMS = ("broker", "cluster", "kvstore", "service", "store", "testing")


def _imports(path: Path) -> set[str]:
    """The modules that a file names in its imports, those for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_no_circle_of_imports(room: str) -> None:
    """The modules of a room can be put in an order in which each imports earlier ones only."""
    prefix = f"statestore_client.server.{room}"
    modules = {f"{prefix}.{path.stem}": path for path in (SERVER / room).glob("*.py") if path.stem != "__init__"}
    assert modules
    graph = {name: (_imports(path) & modules.keys()) - {name} for name, path in modules.items()}
    assert len([*TopologicalSorter(graph).static_order()]) == len(modules)  # raises CycleError
