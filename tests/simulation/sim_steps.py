"""Runs the generators of steps from ``core`` in a simulated process, as ``sync.steps`` and ``aio.steps`` do."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import attrs

from statestore_client.core.actions import WatchEvent, WatchOptions
from statestore_client.core.event_queue import EventQueue
from statestore_client.core.request import Request
from statestore_client.core.steps import Answer, Invoke, Pause, SendUnawaited, StartWatch, Step, WaitForChange
from statestore_client.errors import RequestTimeoutError, StateStoreError
from statestore_client.wire.commands import Command

if TYPE_CHECKING:
    from sim_process import Process


_POST_S = 0.05
Steps = Generator[Any, Any, Any]


@attrs.frozen
class Run:
    """A step of the simulated programs: run other steps to their end; the answer is their result."""

    steps: Steps


@attrs.frozen
class Stall:
    """A step of the simulated programs: stand still, as a whole process, here of all places. Seconds."""

    seconds: float


class _Waiter:
    """Hands its outcome over once."""

    def __init__(self, settled: Callable[[object, StateStoreError | None], None]) -> None:
        self._settled: Callable[[object, StateStoreError | None], None] | None = settled

    def resolve(self, result: object) -> None:
        self._settle(result, None)

    def reject(self, error: StateStoreError) -> None:
        self._settle(None, error)

    def _settle(self, result: object, error: StateStoreError | None) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(result, error)


class Runner:
    """Does one step after the other; owns the watch that the steps may have opened."""

    def __init__(
        self, process: Process, steps: Steps, done: Callable[[Any, StateStoreError | None], None] = lambda *_: None
    ) -> None:
        self._process = process
        self._steps = steps
        self._done = done
        self._key = b""
        self._events: EventQueue | None = None
        self._wake: Callable[[], None] | None = None
        self._undo: Command | None = None
        self._request: Request | None = None
        self._is_stopped = False
        self.has_ended = False
        self._advance(lambda: next(steps))

    def stop(self) -> None:
        """Take no other step. A task is cancelled in the middle of one; a thread finishes its request."""
        if self._is_stopped or self.has_ended:
            return
        self._is_stopped = True
        if self._process.is_threaded:
            self.has_ended = self._request is None
        else:
            self.has_ended = True
            if self._request is not None:
                self._process.cancel(self._request)
            self._close()

    # -- the generator -------------------------------------------------------------------------------------------------

    def _advance(self, resume: Callable[[], Step | Run | Stall]) -> None:
        if self._is_stopped:
            self.has_ended = True
            self._close()
            return
        try:
            step = resume()
        except StopIteration as end:
            self._finish(end.value, None)
        except StateStoreError as error:
            if self._undo is not None:
                self._post(self._undo, lambda *_: None)
            self._finish(None, error)
        else:
            self._take(step)

    def _finish(self, result: object, error: StateStoreError | None) -> None:
        self.has_ended = True
        self._close()
        self._done(result, error)

    def _close(self) -> None:
        if self._events is not None:
            self._process.unwatch(self._key, self)
            self._events = None

    def _answer(self, started: float) -> Callable[[object, StateStoreError | None], None]:
        """Go on in another turn, or in another thread."""

        def settled(result: object, error: StateStoreError | None) -> None:
            def resume() -> None:
                if error is not None:
                    self._advance(lambda: self._steps.throw(error))
                else:
                    self._advance(lambda: self._steps.send(Answer(result, started, self._process.local)))

            self._request = None
            self._process.soon(resume)

        return settled

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _take(self, step: Step | Run | Stall) -> None:
        process, started = self._process, self._process.local
        answered = self._answer(started)
        match step:
            case Invoke():
                self._invoke(step, answered)
            case SendUnawaited(command=command):
                self._post(command, lambda *_: answered(None, None))
            case Pause(seconds=seconds):
                process.at(started + seconds, lambda: answered(None, None))
            case StartWatch(key=key, timeout=timeout):
                self._observe(key, timeout, answered)
            case WaitForChange(seconds=seconds):
                self._wait(started + seconds, answered)
            case Run(steps=steps):
                Runner(process, steps, answered)
            case Stall(seconds=seconds):
                process.pause(seconds)
                answered(None, None)

    def _invoke(self, step: Invoke, answered: Callable[[object, StateStoreError | None], None]) -> None:
        undo, self._undo = self._undo, step.undo or self._undo

        def settled(result: object, error: StateStoreError | None) -> None:
            if error is not None and not error.may_have_been_applied:
                self._undo = undo
            elif error is None and step.undo is not None:
                self._undo = None
            answered(result, error)

        waiter = _Waiter(settled)
        request = self._process.submit(step.command, waiter, timeout=step.timeout, fencing_token=step.fencing_token)
        self._request = request

    def _post(self, command: Command, answered: Callable[..., None]) -> None:
        self._request = self._process.submit(command, _Waiter(answered), timeout=_POST_S)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _observe(self, key: bytes, timeout: float, answered: Callable[[object, StateStoreError | None], None]) -> None:
        process = self._process
        waiter = _Waiter(answered)
        self._key, self._events = key, EventQueue(limit=16, overflow="latest")
        process.watch(key, self, waiter, WatchOptions())

        def give_up() -> None:
            if waiter._settled is not None:
                self._close()
                waiter.reject(RequestTimeoutError("the watch could not be started", may_have_been_applied=False))

        process.at(process.local + timeout, give_up)

    def push(self, event: WatchEvent | StateStoreError) -> bool:
        """Takes the events of the watch."""
        if self._events is not None:
            self._events.push(event)
            if self._wake is not None:
                self._process.soon(self._wake)
        return True

    def _wait(self, until: float, answered: Callable[[object, StateStoreError | None], None]) -> None:
        def wake() -> None:
            if self._wake is not wake:
                return
            try:
                event = self._events.pop() if self._events is not None else None
            except StateStoreError as error:
                self._wake = None
                answered(None, error)
                return
            if event is not None or self._process.local >= until:
                self._wake = None
                answered(event, None)

        self._wake = wake
        if self._events is not None and len(self._events):
            wake()
        else:
            self._process.at(until, wake)
