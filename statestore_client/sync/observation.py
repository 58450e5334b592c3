# Generated from statestore_client/aio/observation.py by tools/twins.py. Edit that, and run "make twins".
"""The holder of a lock, as it changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import NoReturn, Self

from statestore_client.clocks import monotonic
from statestore_client.core.actions import WatchOptions
from statestore_client.core.arguments import check_wait
from statestore_client.core.event_queue import WatchTerms
from statestore_client.core.locks import HolderView, LockState
from statestore_client.errors import ClosedError, PickleRefusedError
from statestore_client.sync.engine import Engine
from statestore_client.sync.waiters import Mutex
from statestore_client.sync.watch import Watch

__all__ = ["LockObservation"]


class LockObservation:
    """The holder of a lock, or the leader of an election; made by :meth:`Lock.observe` and :meth:`Election.observe`.

    Use it as a context manager, which starts it, and iterate: the first state is the present one, the next comes when
    the holder changes. Renewals do not count. Iteration ends when the observation is closed.
    """

    def __init__(self, engine: Engine, key: bytes, *, timeout: float | None) -> None:
        self._engine = engine
        self._watch = Watch(engine, WatchTerms(key, WatchOptions(initial=True), limit=64), timeout=timeout)
        self._view = HolderView()
        self._first: deque[LockState] = deque()
        self._starting = Mutex()
        self._started = False

    def start(self) -> Self:
        """Start observing; returns when no later change can be missed. If it fails, it may be tried again."""
        self._engine.check_process()
        with self._starting:
            self._watch.start()
            if not self._started:
                self._first.append(self._view.first(self._watch.get(timeout=0)))
                self._started = True
        return self

    def get(self, timeout: float | None = None) -> LockState | None:
        """The next state, or None when it did not change within ``timeout`` seconds (None: for ever; 0: only a look).

        Raises :class:`ClosedError` once the observation or its client is closed.
        """
        seconds = check_wait(timeout)
        deadline = None if seconds is None else monotonic() + seconds
        while not self._first:
            remaining = None if deadline is None else max(0.0, deadline - monotonic())
            event = self._watch.get(timeout=remaining)
            if event is None:
                return None
            if (state := self._view.changed(event)) is not None:
                return state
        return self._first.popleft()

    def close(self) -> None:
        """Stop observing; an iteration in another thread ends. Closing twice is harmless."""
        self._first.clear()
        self._watch.close()

    def __reduce__(self) -> NoReturn:
        raise PickleRefusedError(
            "an observation cannot be pickled: send client.settings, and observe where it is needed"
        )

    def __repr__(self) -> str:
        state = self._watch._state.describe()  # noqa: SLF001 - the two classes are one idea
        return f"<{type(self).__name__} {self._watch.key[:80]!r}, {state}>"

    def __iter__(self) -> Iterator[LockState]:
        return self

    def __next__(self) -> LockState:
        try:
            state = self.get()
        except ClosedError:
            raise StopIteration from None
        assert state is not None  # noqa: S101 - get() without a time-out returns a state or raises
        return state

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
