"""The page about MQTT, the list of statements and the tests agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance_page import HERE, NO_FILE, PAGE, coverage, page, statements

import statestore_client

PACKAGE = Path(statestore_client.__file__).parent


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_every_statement_for_servers_has_a_test(version: str) -> None:
    """Each statement for servers has a test, or a reason for having none, and never both."""
    tested = {number for of, number in coverage() if of == version}
    listed = statements(version)
    assert [s.number for s in listed if s.is_tested and s.number not in tested] == []
    assert [s.number for s in listed if not s.is_tested and s.number in tested] == []


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_tests_name_statements_that_exist(version: str) -> None:
    """Each statement that a test names is in the standard, and the list has none twice."""
    numbers = [s.number for s in statements(version)]
    assert len(numbers) == len(set(numbers))
    assert sorted({number for of, number in coverage() if of == version} - set(numbers)) == []


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_files_of_other_folders_exist(version: str) -> None:
    """A statement that is tested in another folder names a file that exists."""
    named = {s.concerns.strip("`") for s in statements(version) if s.concerns.startswith("`")}
    found = {path.stem for folder in ("server", "cli") for path in (HERE.parent / folder).rglob("test_*.py")}
    assert named - found == set()


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_every_statement_names_the_file_that_makes_it_true(version: str) -> None:
    """Each statement names an existing file that makes it true, unless nothing has to be done (or tested) for it."""
    listed = statements(version)
    assert [(s.number, s.file) for s in listed if s.file != NO_FILE and not (PACKAGE / s.file).is_file()] == []
    assert [s.number for s in listed if s.file == NO_FILE and (s.is_tested or s.concerns in ("client", ""))] == []


def test_the_page_is_up_to_date() -> None:
    """The page is what ``python tests/conformance/conformance_page.py`` writes."""
    assert PAGE.read_text() == page()
