"""Runs the generators of steps from ``core.locks`` in the calling thread."""

from __future__ import annotations

import threading
import time
from typing import Any

from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.locks import Answer, Invoke, Observe, Pause, Step, Steps, WaitForChange
from statestore_client.errors import ClosedError, StateStoreError
from statestore_client.sync.engine import Engine
from statestore_client.sync.watch import Watch

__all__ = ["run_steps"]


def run_steps(steps: Steps, engine: Engine, *, stop: threading.Event | None = None) -> Any:
    """Run ``steps`` to their end and return their result; raises what they raise.

    When ``stop`` is set they end at the next pause, and :class:`ClosedError` is raised.
    """
    runner = _Runner(engine, stop)
    try:
        step = next(steps)
        while True:
            started = time.monotonic()
            try:
                value = runner.take(step)
            except StateStoreError as error:
                if stop is not None and stop.is_set():
                    raise
                step = steps.throw(error)
            else:
                step = steps.send(Answer(value, started, time.monotonic()))
    except StopIteration as end:
        return end.value
    finally:
        runner.close()


class _Runner:
    """Does one step after the other; owns the watch that the steps may have opened."""

    def __init__(self, engine: Engine, stop: threading.Event | None) -> None:
        self._engine = engine
        self._stop = stop
        self._watch: Watch | None = None

    def take(self, step: Step) -> Any:
        match step:
            case Invoke(command=command, timeout=timeout):
                return self._engine.call(command, timeout=timeout)
            case Pause(seconds=seconds):
                return self._pause(seconds)
            case Observe(key=key, timeout=timeout):
                watch = Watch(self._engine, key, WatchOptions(), limit=16, overflow="latest", timeout=timeout)
                watch.start()
                self._watch = watch
                return None
            case WaitForChange(seconds=seconds):
                return self._wait_for_change(seconds)

    def _pause(self, seconds: float) -> None:
        if self._stop is None:
            threading.Event().wait(seconds)
        elif self._stop.wait(seconds):
            raise ClosedError("stopped")

    def _wait_for_change(self, seconds: float) -> WatchEvent | None:
        if self._watch is None:
            self._pause(seconds)
            return None
        return self._watch.get(timeout=seconds)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
