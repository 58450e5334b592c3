"""Names in the server are terms of the field, and one name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

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
    """No file, class, function, parameter, variable or attribute has a word of the list in its name."""
    pictures = [
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for name in {path.stem, *names(ast.parse(path.read_text("utf-8")))}
        if any(map(PICTURES.fullmatch, words(name)))
    ]
    assert not pictures, "\n".join(sorted(pictures))


def test_no_two_classes_have_the_same_name() -> None:
    """No public class of the server has the name of another one there, or of one that a shell has."""
    where: dict[str, list[str]] = defaultdict(list)
    shells = [PACKAGE.parent / "aio", PACKAGE.parent / "sync"]
    for path in [path for folder in (PACKAGE, *shells) for path in folder.rglob("*.py")]:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(path.relative_to(PACKAGE.parent).as_posix())
    twice = {name: files for name, files in where.items() if len(files) > 1 and any("server/" in f for f in files)}
    assert not twice


def test_words_are_found_in_names_of_both_kinds() -> None:
    """Words are found in names with underscores and in names with capitals."""
    assert words("_is_closing") == {"is", "closing"}
    assert words("TlsAcceptor") == {"tls", "acceptor"}
    assert words("_MOST_PLACES") == {"most", "places"}
