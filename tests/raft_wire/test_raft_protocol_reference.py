"""docs/reference/raft-protocol.md names a file and a test for every statement that concerns a client."""

from __future__ import annotations

import re
from pathlib import Path

import raft_client

PACKAGE = Path(raft_client.__file__).parent
TESTS = Path(__file__).parent.parent
REFERENCE = TESTS.parent / "docs" / "reference"
PAGE = REFERENCE / "raft-protocol.md"
ROW = re.compile(r"^\| (\d+)(?:–(\d+))? \| ([^|]+) \|([^|]*)\| ([^|]+) \|$", re.MULTILINE)
PEERS_ONLY = "peer, not here"


def _tests() -> dict[str, str]:
    return {path.stem: path.read_text("utf-8") for path in TESTS.glob("*/test_raft_*.py")}


def test_the_numbers_have_no_gap() -> None:
    """The statements are numbered without gaps or repetition."""
    numbers = [range(int(row[1]), int(row[2] or row[1]) + 1) for row in ROW.finditer(PAGE.read_text("utf-8"))]
    assert [n for row in numbers for n in row] == list(range(1, numbers[-1].stop))
    assert f"{numbers[-1].stop - 1} in all" in PAGE.read_text("utf-8")


def test_every_row_is_read() -> None:
    """The test reads every row of the page's tables, in whatever form."""
    rows = re.findall(r"^\| \d.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len(ROW.findall(PAGE.read_text("utf-8"))) > 50


def test_every_statement_has_a_file_and_a_test_that_exist() -> None:
    """Each statement that concerns a client names a file and a test that exist, and one for peers alone has neither."""
    sources = _tests()
    for first, _, statement, file, tests in ROW.findall(PAGE.read_text("utf-8")):
        if tests == PEERS_ONLY:
            assert file.strip() == "", first
            continue
        assert (PACKAGE / file.strip("` ")).is_file(), f"{first}: {statement}: {file}"
        named = re.findall(r"`(test_\w+)::(test_\w+)`", tests)
        assert named, first
        assert [(f, t) for f, t in named if f"def {t}(" not in sources.get(f, "")] == [], first


def test_what_the_state_watch_requirements_name_exists() -> None:
    """The table of requirements on watches names files and tests that exist."""
    page = (REFERENCE / "raft.md").read_text("utf-8")
    table = re.findall(r"^\| R\d+ \|.*$", page, re.MULTILINE)
    assert len(table) == 14
    everything = "".join(_tests().values())
    for row in table:
        cells = row.split(" | ")
        assert [f for f in re.findall(r"`([\w/]+\.py)`", cells[2]) if not (PACKAGE / f).is_file()] == []
        assert [t for t in re.findall(r"`(test_\w+)`", cells[3]) if f"def {t}(" not in everything] == []
