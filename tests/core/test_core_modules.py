"""The pure parts of the client are modules that can be read in one go."""

from __future__ import annotations

from pathlib import Path

import pytest

import statestore_client

PACKAGE = Path(statestore_client.__file__).parent
LONGEST = 400


@pytest.mark.parametrize("folder", ["wire", "core", "mqtt", "mqtt/packets"])
def test_no_module_is_long(folder: str) -> None:
    """Each module of the folder has 400 lines at most."""
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in (PACKAGE / folder).glob("*.py")}
    assert len(lengths) > 10
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}
