"""Finds modules of a package that import each other, directly or by others: what a module needs lies below it.

    python tools/import_circles.py    exit code 1, and the circle, if there is one

Imports for type checkers count as well, since a circle of them is one for the reader. ``lint-imports`` leaves them out.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

#: For type checkers only. An error names the request that may have taken effect by its id, a value of the wire; an id
#: made of wrong parts raises an error. Both names are public, so neither module can do with a weaker type.
EXEMPT: Final = ("raft_client.errors", "raft_client.wire.request_id")


def imports_of(file: Path) -> set[str]:
    """The modules that a file names in its imports, those for type checkers too; of ``from a import b`` also a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def circle_in(package: str) -> list[str]:
    """The modules of one circle, the first one again at the end; empty if each module imports earlier ones only."""
    modules = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in (ROOT / package).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        found = imports_of(file) & modules.keys()
        # ``from package import module`` needs the module; the package's own names are not looked at.
        packages = {each for each in found if any(other.startswith(f"{each}.") for other in found)}
        graph[name] = found - packages - {name}
    if EXEMPT[0] in graph:
        graph[EXEMPT[0]].remove(EXEMPT[1])  # KeyError: the circle is gone, so its exemption goes
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def main() -> str | None:
    circles = [circle for package in ("raft_client", "statestore_client") if (circle := circle_in(package))]
    return "\n".join("modules import each other: " + " <- ".join(circle) for circle in circles) or None


if __name__ == "__main__":
    sys.exit(main())
