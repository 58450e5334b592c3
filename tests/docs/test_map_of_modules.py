"""The map of the server's modules in the documentation agrees with the tree."""

from __future__ import annotations

import re
from pathlib import Path

import statestore_client

PACKAGE = Path(statestore_client.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "how-it-works.md"

_ROW = re.compile(r"^\| `(server[a-z_/]*)/` \| ([^|]+) \|", re.MULTILINE)


def mapped() -> dict[str, list[str]]:
    """Folder -> its modules, as the page has them."""
    return {folder: re.findall(r"`(\w+)`", names) for folder, names in _ROW.findall(PAGE.read_text("utf-8"))}


def test_every_folder_of_the_server_is_on_the_map() -> None:
    """And no other one."""
    folders = {path.parent for path in (PACKAGE / "server").rglob("__init__.py")}
    assert {folder.relative_to(PACKAGE).as_posix() for folder in folders} == set(mapped())


def test_every_module_of_the_server_is_on_the_map() -> None:
    """Each once, in the row of its folder."""
    for folder, names in mapped().items():
        there = sorted(path.stem for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__")
        assert sorted(names) == there, folder
