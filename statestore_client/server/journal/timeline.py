"""The clock that survives the process: *log time*, in which all deadlines are written down.

Log time is milliseconds that go on with the monotonic clock while a server runs, and at its next start from where they
were. It begins as the wall clock of the very first start, so that people can read it, and never looks at a wall clock
again: setting one moves no deadline. How long the server was away counts if the monotonic clock tells, that is while
the machine has not been restarted (``origin`` is the same). Otherwise that time is in doubt and does not count: what
was left of a lease is left. So nothing ends early, and what ends late does so by the time that was in doubt.

A replicated log has the same clock: whoever becomes active goes on from the last log time that it has seen, or from
its own monotonic clock and the offset between the two that it has observed, whichever is later.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, Self

import attrs

from statestore_client.server.journal.codec import DamagedRecordError
from statestore_client.server.journal.storage import load
from statestore_client.server.journal.streams import Stream

if TYPE_CHECKING:
    from statestore_client.server.journal.storage import StoredRecords
    from statestore_client.wire.instant import Instant

__all__ = ["TIME", "TimeRecord", "Timeline"]

#: The subject of the time in :attr:`Stream.CLOCK`.
TIME: Final = b"time"


@attrs.frozen
class Timeline:
    """Converts between this process's monotonic clock and log time.

    Invariant: no conversion makes a deadline earlier. On its way to the disk it is rounded up, and :meth:`after` gives
    a log time that is not later than the true one.
    """

    ahead_ms: float  # of the monotonic clock

    def log_ms(self, monotonic: float | None) -> int | None:
        """Log time of a moment in monotonic seconds; None stays None."""
        return None if monotonic is None else ceil(monotonic * 1000 + self.ahead_ms)

    def monotonic(self, log_ms: float | None) -> float | None:
        """The opposite: in this process, perhaps before its beginning."""
        return None if log_ms is None else (log_ms - self.ahead_ms) / 1000

    @classmethod
    def begin(cls, now: Instant) -> Self:
        """Of a journal without a past."""
        return cls(now.wall_ms - now.monotonic * 1000)

    @classmethod
    def after(cls, last: TimeRecord, origin: int | None, now: Instant) -> Self:
        """Of a life whose predecessor left ``last``. ``origin``: as of :class:`TimeRecord`, for ``now``."""
        stopped_ms = last.log_ms - now.monotonic * 1000  # as if no time had passed since
        knows_outage = origin is not None and origin == last.origin
        return cls(max(last.ahead_ms, stopped_ms) if knows_outage else stopped_ms)

    @classmethod
    def shown(cls, storage: StoredRecords) -> Self:
        """For people: :meth:`monotonic` gives seconds since the Unix epoch, by the wall clock of the last life.

        Raises DamagedRecordError.
        """
        last = TimeRecord.last(storage)
        return cls(0.0 if last is None else last.log_ms - last.wall_ms)


@attrs.frozen
class TimeRecord:
    """The time when a batch was cut. ``ahead_ms`` is :attr:`Timeline.ahead_ms`; monotonic clocks with the same
    ``origin`` are one clock, None for an unknown one. ``wall_ms`` is for people only.
    """

    log_ms: float
    ahead_ms: float
    origin: int | None
    wall_ms: int

    @classmethod
    def at(cls, now: Instant, timeline: Timeline, origin: int | None) -> Self:
        return cls(now.monotonic * 1000 + timeline.ahead_ms, timeline.ahead_ms, origin, now.wall_ms)

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        del timeline
        return (self.log_ms, self.ahead_ms, self.origin, self.wall_ms)

    @classmethod
    def last(cls, storage: StoredRecords) -> Self | None:
        """The one of the last batch; None in a new directory. Raises DamagedRecordError."""
        for subject, fields in load(storage, Stream.CLOCK):
            if subject == TIME:
                try:
                    log_ms, ahead_ms, origin, wall_ms = fields
                    return cls(float(log_ms), float(ahead_ms), origin, int(wall_ms))
                except (TypeError, ValueError) as error:
                    raise DamagedRecordError(f"the record of the time: {error!r}") from error
        return None
