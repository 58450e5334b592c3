"""Runs the generators of steps from ``core.locks`` in the calling task."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from statestore_client.aio.engine import Engine
from statestore_client.aio.watch import Watch
from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.locks import Answer, Invoke, Observe, Pause, Step, Steps, WaitForChange
from statestore_client.errors import StateStoreError

__all__ = ["run_steps"]


async def run_steps(steps: Steps, engine: Engine) -> Any:
    """Run ``steps`` to their end and return their result; raises what they raise."""
    runner = _Runner(engine)
    try:
        step = next(steps)
        while True:
            started = time.monotonic()
            try:
                value = await runner.take(step)
            except StateStoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(Answer(value, started, time.monotonic()))
    except StopIteration as end:
        return end.value
    finally:
        await runner.close()


class _Runner:
    """Does one step after the other; owns the watch that the steps may have opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: Watch | None = None

    async def take(self, step: Step) -> Any:
        match step:
            case Invoke(command=command, timeout=timeout):
                return await self._engine.call(command, timeout=timeout)
            case Pause(seconds=seconds):
                return await asyncio.sleep(seconds)
            case Observe(key=key, timeout=timeout):
                watch = Watch(self._engine, key, WatchOptions(), limit=16, overflow="latest", timeout=timeout)
                await watch.start()
                self._watch = watch
                return None
            case WaitForChange(seconds=seconds):
                return await self._wait_for_change(seconds)

    async def _wait_for_change(self, seconds: float) -> WatchEvent | None:
        if self._watch is None:
            await asyncio.sleep(seconds)
            return None
        return await self._watch.get(timeout=seconds)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
