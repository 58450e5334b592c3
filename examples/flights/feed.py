"""Appends the events to the log, at a steady rate, from a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from raft_client import RaftClient, RaftError

from .failure import LOST, DemoError
from .flights import Event, encode

__all__ = ["Feed"]

#: So many times a second some are appended.
_TICKS: Final = 10


class Feed:
    """``appended`` counts; ``last_index`` is the log index of the last event that becomes a state.

    It stops at ``limit`` events until that is raised: on a slow machine, what is to happen has not happened yet.
    """

    def __init__(self, peers: str, events: Sequence[Event], rate: int) -> None:
        self._client = RaftClient(peers)
        self._events = events
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._error: RaftError | None = None
        self.appended = 0
        self.limit = len(events)
        self.last_index = 0

    @property
    def is_done(self) -> bool:
        return self.appended == len(self._events)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises :class:`DemoError` when the log cannot be reached."""
        if self._error is not None:
            raise DemoError(f"the log takes no events: {self._error}", LOST)

    def _run(self) -> None:
        before, due = time.monotonic(), 0.0
        try:
            while not self.is_done and not self._stop.wait(1 / _TICKS):
                now = time.monotonic()
                due, before = min(due + (now - before) * self._rate, self.limit), now
                self._append(self._events[self.appended : int(due)])
        except RaftError as error:
            self._error = error

    def _append(self, events: Sequence[Event]) -> None:
        for event, index in zip(events, self._client.append_many(map(encode, events)), strict=True):
            if event["tailnum"] is not None:
                self.last_index = index
        self.appended += len(events)

    def __enter__(self) -> Self:
        self._client.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()
