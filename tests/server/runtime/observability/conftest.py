"""The log of refusals, for the tests of this folder."""

from __future__ import annotations

import logging

import pytest
from refusal_lines import Log


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    caplog.set_level(logging.WARNING, "statestore_client.server")
    return Log(caplog)
