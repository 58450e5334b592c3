"""What marks a conformance test: the statements that it holds the server to, and both versions of MQTT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

__all__ = ["BOTH", "normative"]

F = TypeVar("F", bound=Callable[..., Any])

BOTH = pytest.mark.parametrize("version", [5, 4], ids=["5.0", "3.1.1"])


def normative(*, v5: str = "", v3: str = "", more: str = "") -> Callable[[F], F]:
    """Names the statements that a test holds the server to, ``"3.1.2-4 3.1.2-5"``: of MQTT 5.0, of MQTT 3.1.1, and of
    our own list of what goes beyond them.

    ``conformance_page.py`` reads the decorators and makes ``statements.md`` of them.
    """
    del v5, v3, more
    return lambda function: function
