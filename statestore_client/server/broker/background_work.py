"""Work that takes too long for one turn, in slices: copies for thousands of subscribers, retained messages.

A subject is what must stay in order: a topic, a key of the state store, a session. Work on one subject is done one
after the other, different subjects take turns. A client that causes such work waits until it is done: otherwise a
client could cause it faster than it is done, and it would pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from statestore_client.server.broker.connection import Connection

__all__ = ["BackgroundWork", "Job"]

#: Does one slice; True while there is more to do.
Job: TypeAlias = Callable[[Instant], bool]


@attrs.define(eq=False)
class BackgroundWork:
    """Invariant: a subject is in ``_turns`` exactly once if and only if it has a queue, and no queue is empty."""

    #: By subject; to be looked at only.
    queues: dict[Hashable, deque[tuple[Job, Connection | None]]] = attrs.Factory(dict)
    _turns: deque[Hashable] = attrs.Factory(deque)

    def __len__(self) -> int:
        """How many subjects have work to be done."""
        return len(self._turns)

    def add(self, subject: Hashable, job: Job, cause: Connection | None = None) -> None:
        """Do this after what there is to do on the same subject; ``cause`` has to wait for it."""
        queue = self.queues.get(subject)
        if queue is None:
            queue = self.queues[subject] = deque()
            self._turns.append(subject)
        queue.append((job, cause))
        if cause is not None:
            cause.pending += 1

    def work(self, now: Instant) -> None:
        """One slice, if there is anything to do."""
        if not self._turns:
            return
        subject = self._turns.popleft()
        queue = self.queues[subject]
        job, cause = queue[0]
        has_more = False
        try:
            has_more = job(now)
        finally:
            if not has_more:
                queue.popleft()
                if cause is not None:
                    cause.job_done()
            if queue:
                self._turns.append(subject)
            else:
                del self.queues[subject]
