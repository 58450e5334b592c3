"""Machines that follow the log of another server, batch by batch, and take its place.

Keys, answers, retained messages and sessions are in the machines at once: there may be a million, and a server that
takes over has no time to read them. Of what sessions are to get only the records are kept: they change with each
message, and mean something only together, so they become deliveries when this server takes over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.runtime.storage.rows import StateRows
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from statestore_client.server.broker import Broker
    from statestore_client.server.journal import Journal, Timeline, WriteBatch
    from statestore_client.server.service.service import StateStoreService

__all__ = ["Standby"]


class Standby:
    """Empty machines, which nobody else calls before :meth:`take_over`. Raises DamagedRecordError, after which they are
    of no use.
    """

    def __init__(self, journal: Journal, service: StateStoreService, broker: Broker, now: Instant) -> None:
        """The machines write into the ``journal``."""
        journal.follow(now)
        self._journal = journal
        self._service = service
        self._broker = broker
        #: For snapshots, also when this server is active.
        self.rows: Final = StateRows(journal, service, broker)
        self._tables = self.rows.tables

    def absorb(self, batch: WriteBatch) -> None:
        """The next batch; or rows of a snapshot, without those that a batch has touched since."""
        timeline = self._journal.timeline
        self._tables.absorb(batch)
        self._service.absorb(batch, timeline)
        self._broker.absorb(batch, timeline)

    def settle(self) -> None:
        """All rows of a snapshot are here."""
        self._service.settle()

    def take_over(self, timeline: Timeline, now: Instant) -> float:
        """The other server is gone; log time is that of ``timeline``. Returns by how many seconds the clock by which
        the machines are called from now on is ahead of the one of ``now``.
        """
        ahead_s = self._journal.take_over(timeline, now)
        self._service.go_on(self._tables, self._journal.timeline)
        self._broker.restore(self._tables, Instant(now.monotonic + ahead_s, now.wall_ms), is_warm=True)
        return ahead_s
