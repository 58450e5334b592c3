"""Runs a generator of steps by hand: each step is answered by the test, and time is a number."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs

from statestore_client.core.steps import Answer, Pause, Step, WaitForChange
from statestore_client.errors import LeaseLostError, StateStoreError
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["NEWER", "TOKEN", "HeldLease", "Steps"]

TOKEN = HlcTimestamp(1, 2, "S")
NEWER = HlcTimestamp(1, 3, "S")


class Steps:
    """Runs a generator of steps by hand. ``step`` is what it wants now; ``result`` what it came to."""

    def __init__(self, steps: Generator[Step, Answer, Any], now: float = 0.0) -> None:
        self._steps = steps
        self.now = now
        self.step: Step | None = None
        self.result: Any = None
        self.error: StateStoreError | None = None
        self._advance(lambda: next(steps))

    def answer(self, value: Any = None, *, took: float = 0.0) -> Step | None:
        started = self.now
        self.now += took
        return self._advance(lambda: self._steps.send(Answer(value, started, self.now)))

    def fail(self, error: StateStoreError, *, took: float = 0.0) -> Step | None:
        self.now += took
        return self._advance(lambda: self._steps.throw(error))

    def wait(self) -> Step | None:
        """Let the pause that it wants, or the wait for a change, pass."""
        assert isinstance(self.step, (Pause, WaitForChange))
        return self.answer(took=self.step.seconds)

    def fail_and_wait(self, error: StateStoreError, *, took: float = 0.0) -> Step | None:
        """An error, and the pauses after it."""
        self.fail(error, took=took)
        while isinstance(self.step, Pause):
            self.wait()
        return self.step

    def _advance(self, resume: Any) -> Step | None:
        try:
            self.step = resume()
        except StopIteration as end:
            self.step, self.result = None, end.value
        except StateStoreError as error:
            self.step, self.error = None, error
        return self.step


@attrs.define
class HeldLease:
    """A lease that ends when the test says so."""

    fencing_token: HlcTimestamp = TOKEN
    remaining: float = 7.0
    store_id: str | None = None

    def check(self) -> None:
        if self.remaining <= 0:
            raise LeaseLostError("over")
