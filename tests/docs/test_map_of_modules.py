"""The maps of modules in the documentation, and the names of files in the glossary, agree with the tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import statestore_client

PACKAGE = Path(statestore_client.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "explanation" / "how-it-works.md"

_SERVER_ROW = re.compile(r"^\| `(server[a-z_/]*)/` \| ([^|]+) \|", re.MULTILINE)
_CLIENT_ROW = re.compile(r"^\| `statestore_client/([a-z_/]*?)/?` \| ([^|]+) \|", re.MULTILINE)
#: A file, perhaps followed by the class in it that the term means.
_FILE = re.compile(r"`((?:statestore|raft)_client/[\w/]+\.py)`(?::\s+`(\w+)`)?")
#: A module in the running text, without the name of the whole.
_DOTTED = re.compile(r"`((?:wire|core|mqtt|sync|aio|server)(?:\.\w+)+)`")


def mapped(row: re.Pattern[str]) -> dict[str, list[str]]:
    """Folder -> its modules, as the page has them. A folder may have several rows."""
    found: dict[str, list[str]] = {}
    for folder, names in row.findall(PAGE.read_text("utf-8")):
        found.setdefault(folder, []).extend(re.findall(r"`(\w+)`", names))
    return found


def folders(*, of_server: bool) -> set[str]:
    """The packages of the tree, without the name of the whole."""
    found = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    return {
        "" if folder == Path() else folder.as_posix()
        for folder in found
        if folder.is_relative_to("server") is of_server
    }


@pytest.mark.parametrize(("row", "of_server"), [(_SERVER_ROW, True), (_CLIENT_ROW, False)], ids=["server", "client"])
def test_every_folder_is_on_the_map(row: re.Pattern[str], of_server: bool) -> None:
    """The map has every folder of the package, and no other one."""
    assert set(mapped(row)) == folders(of_server=of_server)


@pytest.mark.parametrize("row", [_SERVER_ROW, _CLIENT_ROW], ids=["server", "client"])
def test_every_module_is_on_the_map(row: re.Pattern[str]) -> None:
    """Every module is on the map once, in the row of its folder."""
    for folder, names in mapped(row).items():
        there = sorted(path.stem for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")
        assert sorted(names) == there, folder


def test_modules_in_the_text_exist() -> None:
    """Every module that the text names with dots exists."""
    named = set(_DOTTED.findall(PAGE.read_text("utf-8")))
    assert len(named) >= 20
    for name in named:
        path = PACKAGE.joinpath(*name.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), name


def test_the_glossary_names_files_and_classes_that_exist() -> None:
    """Each term of the code's own in the glossary names a file that exists, and most of them a class in it."""
    named = _FILE.findall((DOCS / "glossary.md").read_text("utf-8"))
    assert len(named) >= 20
    for file, name in named:
        tree = ast.parse((PACKAGE.parent / file).read_text("utf-8"))
        classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assert not name or name in classes, f"{file}: {name}"
