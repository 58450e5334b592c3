"""What tests beside real software share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import rust_sdk
from support.raft_peers import why_not


@pytest.fixture(scope="session")
def rust_program() -> Path:
    """The program on the official Rust SDK; skips where it cannot be built, and fails where the tools are required."""
    missing = rust_sdk.why_not()
    if missing is not None:
        (pytest.fail if os.environ.get("STATESTORE_REQUIRE_TOOLS") else pytest.skip)(missing)
    return rust_sdk.build()


@pytest.fixture
def zmq_raft() -> None:
    """Skip, with the reason, where the npm package zmq-raft cannot be had."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
