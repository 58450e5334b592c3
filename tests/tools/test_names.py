"""Names in the server are terms of the field, and one name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

import raft_client
import statestore_client.server

PACKAGE = Path(statestore_client.server.__file__).parent

#: Pictures that were names once. What they stood for has a word of its own: docs/decisions/0027-rooms-of-the-server.md.
PICTURES = re.compile(
    "blame|chores|doors?|doze|excuse|fl(y|ies)|forms|goodbye|greet(ing)?|heads|hoards?|hub|judged?|keeping|ledger|memo"
    "|mischief|offers?|opening|pairs|patience|pilot|places|restoring|rises|seat|strikes|suffer|telling|tidy|witness(ed)?"
)


def names(tree: ast.Module) -> set[str]:
    """What a module defines: classes, functions, parameters, variables, attributes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def words(name: str) -> set[str]:
    """``_is_closing`` and ``MemoryBudget`` in words."""
    return {word.lower() for part in name.split("_") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", part)}


def test_no_name_is_a_picture() -> None:
    """Of no file, class, function, parameter, variable or attribute."""
    pictures = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in {path.stem, *names(ast.parse(path.read_text("utf-8")))}
        if any(map(PICTURES.fullmatch, words(name)))
    ]
    assert not pictures, "\n".join(sorted(pictures))


def test_no_two_classes_have_the_same_name() -> None:
    """No public class of the server has the name of another class in the package."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.parent.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(path.relative_to(PACKAGE.parent).as_posix())
    twice = {name: files for name, files in where.items() if len(files) > 1 and any("server/" in f for f in files)}
    twice.pop("Drop", None)  # a fault, which users write; and what the core tells its shell to do, which no user sees
    assert not twice


@pytest.mark.parametrize("package", [raft_client, statestore_client])
def test_a_class_that_users_see_has_a_name_of_its_own(package: ModuleType) -> None:
    """A public class has a name that no other class of its package has."""
    root = Path(package.__path__[0])
    where: dict[str, list[str]] = defaultdict(list)
    for path in root.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in package.__all__:
                where[node.name].append(path.relative_to(root).as_posix())
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


@pytest.mark.parametrize("package", [raft_client, statestore_client])
def test_rooms_for_different_things_have_modules_of_different_names(package: ModuleType) -> None:
    """No module for Spark is called as one of the wire, where *frames* are frames of a message."""
    spark, wire = ({path.stem for path in Path(package.__path__[0], room).glob("*.py")} for room in ("spark", "wire"))
    assert spark & wire == {"__init__"}


def test_words_are_found_in_names_of_both_kinds() -> None:
    """With underscores and with capitals."""
    assert words("_is_closing") == {"is", "closing"}
    assert words("TlsAcceptor") == {"tls", "acceptor"}
    assert words("_MOST_PLACES") == {"most", "places"}
