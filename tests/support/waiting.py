"""Waiting for a condition that nothing announces: it is checked again and again, up to a time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["eventually", "until"]

#: Far more than anything takes, also on a busy machine.
_TIMEOUT_S = 20.0


def eventually(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    timeout_s: float = _TIMEOUT_S,
    every_s: float = 0.001,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Until it is true, which only another thread or process can make it; ``meanwhile`` is called while it is not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        meanwhile()
        time.sleep(every_s)


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """The same in a coroutine; the event loop goes on."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.001)
