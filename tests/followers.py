"""A standby beside a world, on a machine with another clock."""

from __future__ import annotations

from durable_driver import BOOT
from served_world import ServedWorld

from statestore_client.server.journal import Changes, Journal, Stream, StreamTables, Subject, Timeline, WriteBatch, seal
from statestore_client.server.runtime.storage.standby import Standby
from statestore_client.wire.instant import Instant

__all__ = ["Follower", "batch_of"]


class Follower:
    """A standby on a machine whose monotonic clock is ahead of the active server's."""

    def __init__(self, world: ServedWorld, ahead_s: float, *, has_rows: bool = True) -> None:
        """``has_rows``: it is to get those of now, by :meth:`fill`."""
        self.world, self.ahead_s = world, ahead_s
        self.journal = Journal(BOOT)
        self.service, self.broker = world.machines(self.journal)
        self.standby = Standby(self.journal, self.service, self.broker, self.now)
        self.position = len(world.storage.batches)
        self._snapshot = world.storage.copy() if has_rows else StreamTables(())
        self._touched: set[tuple[Stream, Subject]] = set()

    @property
    def now(self) -> Instant:
        now = self.world.now
        return Instant(now.monotonic + self.ahead_s, now.wall_ms)

    def follow(self) -> None:
        """Absorb what there is."""
        batches = self.world.storage.batches
        for batch in batches[self.position :]:
            self.standby.absorb(batch)
            self._touched |= batch.subjects()
        self.position = len(batches)

    def fill(self) -> None:
        """Absorb the rows that were there at the beginning, without those that a batch has touched since: subscriptions
        before their sessions, for once."""
        for stream, rows in reversed(self._snapshot.streams.items()):
            for subject, data in rows.items():
                if (stream, subject) not in self._touched:
                    self.standby.absorb(WriteBatch((Changes(stream, ((subject, data),), ()),)))
            rows.clear()
        self.standby.settle()

    def take_over(self, timeline: Timeline) -> float:
        """With what has been written so far."""
        self.follow()
        self.fill()
        assert not self.journal  # whoever follows writes nothing
        return self.standby.take_over(Timeline(timeline.ahead_ms - self.ahead_s * 1000), self.now)


def batch_of(stream: Stream, *rows: tuple[Subject, tuple[object, ...]]) -> WriteBatch:
    """These records."""
    return WriteBatch((Changes(stream, tuple((s, seal(stream, s, fields)) for s, fields in rows), ()),))
