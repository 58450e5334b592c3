"""Does something at the n-th suspension of a coroutine: at the points where a cancel, a cut or a stall can hit it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

__all__ = ["Act", "at_point"]

#: Called when the task is suspended; it gets what the task waits for, None for a bare turn of the loop.
Act = Callable[["asyncio.Task[Any]", "asyncio.Future[Any] | None"], None]


class _Counted:
    """Passes on what a coroutine waits for, and counts."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, act: Act) -> None:
        self._work = work
        self._number = number
        self._act = act
        self.count = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waits_for = steps.send(None)
            while True:
                self.count += 1
                if self.count == self._number:
                    task = asyncio.current_task()
                    assert task is not None
                    self._act(task, waits_for)
                try:
                    sent = yield waits_for
                except BaseException as error:  # noqa: BLE001 - passed on, a cancel above all
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(sent)
        except StopIteration as end:
            return end.value


async def at_point(work: Coroutine[Any, Any, Any], number: int, act: Act) -> tuple[bool, asyncio.Task[Any]]:
    """Run ``work`` to its end; whether it was suspended so often, and its task, which is done."""
    counted = _Counted(work, number, act)

    async def run() -> Any:
        return await counted

    task = asyncio.ensure_future(run())
    await asyncio.wait([task])
    return counted.count >= number, task
