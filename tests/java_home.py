"""Tests of Spark are skipped where there is no Java."""

from __future__ import annotations

import pytest

from statestore_client.spark import JavaNotFoundError, find_java_home

__all__ = ["require_java"]


def require_java() -> None:
    """Skip the test that calls it, with what is missing."""
    try:
        find_java_home()
    except JavaNotFoundError as error:
        pytest.skip(str(error))
