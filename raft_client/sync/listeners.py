"""What hears of the connection: the log, and the application."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final

from raft_client import thread_locks
from raft_client.core.requests import ConnectionState, StateChanged
from raft_client.reports import LeaderListener, StateListener, calls_of, log_change

logger: logging.Logger = logging.getLogger("raft_client")


class Listeners:
    """Listeners run in a thread of their own, so they may be slow, may fail and may use the client."""

    def __init__(
        self, seeds: Sequence[str], on_state: StateListener | None = None, on_leader: LeaderListener | None = None
    ) -> None:
        self._seeds: Final = seeds
        self._listeners: Final = (on_state, on_leader)
        #: What the log was not told yet. To be looked at: whoever finds something calls :meth:`log`.
        self.news: deque[StateChanged] = deque()
        self._queue: SimpleQueue[StateChanged | None] | None = None  # of the thread, once it runs

    def open(self) -> None:
        """The client is open: changes may come."""
        if self._queue is None and any(self._listeners):
            queue: SimpleQueue[StateChanged | None] = SimpleQueue()
            try:
                thread_locks.start(
                    threading.Thread(target=self._run, args=(queue,), name="raft listeners", daemon=True)
                )
            except BaseException:
                queue.put(None)  # it may run, and another one will be started
                raise
            self._queue = queue

    def note(self, change: StateChanged) -> None:
        """With the engine's lock held, so that everybody is told in the order in which things happened."""
        self.news.append(change)
        if self._queue is not None:
            self._queue.put(change)

    def log(self) -> None:
        """Without that lock: handlers of the log may do anything."""
        while self.news:
            try:
                change = self.news.popleft()
            except IndexError:  # another thread was quicker
                return
            log_change(self._seeds, change)

    def _run(self, queue: SimpleQueue[StateChanged | None]) -> None:
        while (change := queue.get()) is not None:
            for name, call in calls_of(change, *self._listeners):
                try:
                    call()
                except Exception:
                    logger.exception("the listener %s of a raft client failed", name)
            if change.state is ConnectionState.CLOSED:
                return
