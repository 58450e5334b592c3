"""The user's functions, and the tasks that call them. Coroutine functions are awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from raft_client.core import arguments


def check_callback(callback: object) -> None:
    """A function or coroutine function of one event. None without a callback."""
    arguments.check_callback(callback, may_await=True)


async def call_back(function: Callable[..., object], *event: object) -> None:
    """Call, and await what is to be awaited."""
    outcome = function(*event)
    if inspect.isawaitable(outcome):
        await outcome


class Worker:
    """A task that works beside its owner until the work is done."""

    __slots__ = ("_name", "_task", "_work")

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a later turn of the loop, whatever task factory it has."""
        self._task = asyncio.Task(self._work(), loop=asyncio.get_running_loop(), name=self._name)

    @property
    def is_current(self) -> bool:
        """Whether it is this worker that asks."""
        return self._task is asyncio.current_task()
