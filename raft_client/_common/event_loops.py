"""The event loop of commands and servers: one that watches descriptors, as ØMQ and sockets of listeners need.

The loop that asyncio makes on Windows has no ``add_reader()``. Programs choose theirs; what runs a loop of its own does
so here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As :func:`asyncio.run`, in such a loop."""
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(main)
