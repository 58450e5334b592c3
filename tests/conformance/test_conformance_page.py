"""The page about MQTT, the list of statements and the tests agree."""

from __future__ import annotations

import pytest
from conformance_page import PAGE, coverage, page, statements


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_every_statement_for_servers_has_a_test(version: str) -> None:
    """A statement without a test has a reason; one with a reason has no test."""
    tested = {number for of, number in coverage() if of == version}
    listed = statements(version)
    assert [s.number for s in listed if s.is_tested and s.number not in tested] == []
    assert [s.number for s in listed if not s.is_tested and s.number in tested] == []


@pytest.mark.parametrize("version", ["v5", "v3", "more"])
def test_tests_name_statements_that_exist(version: str) -> None:
    """No test names a statement that the standard does not have, and none is listed twice."""
    numbers = [s.number for s in statements(version)]
    assert len(numbers) == len(set(numbers))
    assert sorted({number for of, number in coverage() if of == version} - set(numbers)) == []


def test_the_page_is_up_to_date() -> None:
    """``python tests/conformance/conformance_page.py`` writes it."""
    assert PAGE.read_text() == page()
