"""Calls of the user's functions, in whatever thread makes them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from statestore_client.core.callbacks import refuse_awaitable

__all__ = ["call_back"]

logger = logging.getLogger("statestore_client")


def call_back(what: str, function: Callable[..., object], *arguments: object) -> None:
    """Call; what it raises is logged, and that it returned what nobody awaits."""
    try:
        refuse_awaitable(what, function(*arguments))
    except Exception:
        logger.exception("%s failed", what)
