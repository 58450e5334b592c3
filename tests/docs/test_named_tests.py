"""Tests and files that pages name exist: rows of the references, of the decisions, and of the tables of promises."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import raft_client
import statestore_client

_ROOT = Path(__file__).parents[2]
_TESTS = _ROOT / "tests"
_PAGES = sorted(
    path.relative_to(_ROOT).as_posix() for folder in ("docs", "tests") for path in (_ROOT / folder).rglob("*.md")
)
#: Where a file may be that a page names without its folder.
_HOMES = [_ROOT, *(Path(str(package.__file__)).parent for package in (statestore_client, raft_client))]


@cache
def _functions() -> dict[str, frozenset[str]]:
    """Test module -> its tests."""
    found: dict[str, frozenset[str]] = {}
    for path in _TESTS.rglob("test_*.py"):
        tests = re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        found[path.stem] = found.get(path.stem, frozenset()) | frozenset(tests)
    return found


@pytest.mark.parametrize("page", [page for page in _PAGES if not page.startswith("docs/_build")])
def test_tests_that_a_page_names_exist(page: str) -> None:
    """``module::test`` names a test of that module; ``test_…`` alone names a module or a test."""
    text = (_ROOT / page).read_text("utf-8")
    functions = _functions()
    pairs = re.findall(r"`(test_\w+)(?:\.py)?::(test_\w+)`", text)
    assert [f"{module}::{test}" for module, test in pairs if test not in functions.get(module, ())] == []
    known = {*functions, *(test for tests in functions.values() for test in tests)}
    # Examples of users' own tests are in blocks of code, not in a line of text.
    assert [name for name in re.findall(r"`(test_\w+)`", text) if name not in known] == []


@pytest.mark.parametrize(
    "page", [page for page in _PAGES if page.startswith(("docs/reference/", "docs/decisions/", "tests/"))]
)
def test_files_that_a_page_names_exist(page: str) -> None:
    """A path with a folder, such as ``server/store/store.py``, names a file of the repository or of a package."""
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", (_ROOT / page).read_text("utf-8"))
    assert [file for file in named if not any((home / file).is_file() for home in _HOMES)] == []
