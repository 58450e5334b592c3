"""docs/reference/protocol.md names a test for every rule."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
REFERENCE = TESTS.parent / "docs" / "reference" / "protocol.md"


def test_every_named_test_exists() -> None:
    """Every test that docs/reference/protocol.md names exists."""
    names = re.findall(r"`(test_\w+)::(test_\w+)`", REFERENCE.read_text(encoding="utf-8"))
    assert len(names) > 100
    sources = {path.stem: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    assert [f"{file}::{test}" for file, test in names if f"def {test}(" not in sources.get(file, "")] == []


def test_every_error_text_has_a_rule() -> None:
    """Each of the document's twelve error texts stands in the table of -ERR responses."""
    reference = REFERENCE.read_text(encoding="utf-8")
    section = reference[reference.index("## -ERR responses") : reference.index("## Versioning")]
    assert len(re.findall(r"^\| \*", section, re.MULTILINE)) == 12
