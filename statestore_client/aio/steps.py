"""Takes the steps that the generators of ``core`` yield: for locks, leases, and the stores under them."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from statestore_client.aio.engine import Engine
from statestore_client.aio.primitives import Flag, pause
from statestore_client.aio.watch import AsyncWatch
from statestore_client.clocks import monotonic
from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.event_queue import WatchTerms
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, Step, Steps, WaitForChange
from statestore_client.errors import ClosedError, StateStoreError
from statestore_client.wire.commands import Command

#: How long (seconds) to wait for the answer to what is sent in passing, and how long it may take to leave.
_POST_S: Final = 0.05
_POST_LASTS_S: Final = 10.0
#: Seconds for an answer, where less is left.
_AT_LEAST_S: Final = 0.001
#: A waiter for a lock has to know whether it still hears of it.
_WATCH: Final = WatchOptions(connection_events=True)
#: Linux has it. Elsewhere, the monotonic clock must do.
_SLEEPLESS_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds on a clock that goes on while the machine sleeps, as the server's does. Linux's monotonic one stops."""
    return monotonic() if _SLEEPLESS_CLOCK is None else time.clock_gettime(_SLEEPLESS_CLOCK)


async def run_steps(steps: Steps, engine: Engine, *, stop: Flag | None = None) -> Any:
    """Run ``steps`` to their end and return their result; raises what they raise.

    When ``stop`` is set they end before the next step, or in the middle of a pause, and :class:`ClosedError` is raised.
    What they only post is sent all the same: it gives back what came too late.
    """
    runner = _Runner(engine, stop)
    try:
        step = next(steps)
        while True:
            started = elapsed()
            try:
                value = await runner.take(step)
            except StateStoreError as error:
                if stop is not None and stop.is_set():
                    raise
                step = steps.throw(error)
            else:
                step = steps.send(Answer(value, started, elapsed()))
    except StopIteration as end:
        return end.value
    except BaseException:
        await runner.take_back()
        raise
    finally:
        await runner.close()


class _Runner:
    """Does one step after the other; owns the watch that the steps may have opened."""

    def __init__(self, engine: Engine, stop: Flag | None) -> None:
        self._engine = engine
        self._stop = stop
        self._watch: AsyncWatch | None = None
        self._undo: Command | None = None  # of a command that may have been applied, nobody can tell

    async def take(self, step: Step) -> Any:
        if isinstance(step, SendUnawaited):
            return await self._post(step.command)
        if self._stop is not None and self._stop.is_set():
            raise ClosedError("stopped")
        match step:
            case Invoke():
                return await self._invoke(step)
            case Pause(seconds=seconds, before_retry=before_retry):
                if before_retry:
                    self._engine.check_open()
                return await self._pause(seconds)
            case StartWatch(key=key, timeout=timeout):
                watch = AsyncWatch(self._engine, WatchTerms(key, _WATCH, limit=16), timeout=timeout)
                await watch.start()
                self._watch = watch
                return None
            case WaitForChange(seconds=seconds):
                return await self._wait_for_change(seconds)

    async def _invoke(self, step: Invoke) -> Any:
        undo, self._undo = self._undo, step.undo or self._undo
        try:
            result = await self._engine.call(
                step.command, max(_AT_LEAST_S, step.timeout), step.fencing_token, lasting=step.lasting
            )
        except StateStoreError as error:
            if not error.may_have_been_applied:
                self._undo = undo
            raise
        if step.undo is not None:
            self._undo = None  # the answer to the last of several attempts speaks for all
        return result

    async def _post(self, command: Command) -> None:
        with contextlib.suppress(StateStoreError):
            await self._engine.post(command, patience=_POST_S, timeout=_POST_LASTS_S)

    async def take_back(self) -> None:
        """The steps failed: undo what may have been done."""
        if self._undo is not None:
            await self._post(self._undo)

    async def _pause(self, seconds: float) -> None:
        if self._stop is None:
            await pause(seconds)
        elif await self._stop.wait_for(seconds):
            raise ClosedError("stopped")

    async def _wait_for_change(self, seconds: float) -> WatchEvent | None:
        if self._watch is None:
            await self._pause(seconds)
            return None
        return await self._watch.get(timeout=seconds)

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.close()
