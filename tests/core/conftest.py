"""Fixtures of tests of the core."""

from __future__ import annotations

import pytest
from machine_driver import MachineDriver


@pytest.fixture
def driver() -> MachineDriver:
    """A client that is connected."""
    return MachineDriver().ready()
