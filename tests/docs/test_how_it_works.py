"""The page on how it works names modules that there are, and functions that are in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "how-it-works.md"

#: Where a module may be that a table names by its room: ``core.locks``, ``broker.router``, ``runtime.storage``.
PLACES = [ROOT / place for place in ("statestore_client", "statestore_client/server", "raft_client")]

_SOURCES = {
    path: path.read_text("utf-8")
    for package in ("statestore_client", "raft_client")
    for path in (ROOT / package).rglob("*.py")
}

#: Other people's, and a file.
OTHERS = {"asyncio.Protocol", "pyproject.toml"}


def _is_module(name: str) -> bool:
    path = name.replace(".", "/")
    return any((place / f"{path}.py").is_file() or (place / path).is_dir() for place in PLACES)


def _is_function(name: str) -> bool:
    """Whether a module that is called so, or that has a class of that name, has such a function."""
    owner, function = name.split(".")
    return any(
        re.search(rf"\bdef {function}\(", text)
        for path, text in _SOURCES.items()
        if path.stem == owner or re.search(rf"^class {owner}\b", text, re.MULTILINE)
    )


def test_what_the_page_names_is_there() -> None:
    """Whoever follows the page finds each module, and each function on the way of a request."""
    named = set(re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)`", PAGE.read_text("utf-8"))) - OTHERS
    named = {name for name in named if not name.endswith((".md", ".py"))}
    assert len(named) > 50
    assert [name for name in sorted(named) if not _is_module(name) and not _is_function(name)] == []
