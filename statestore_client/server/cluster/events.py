"""What a life tells its program, in the order in which it happened, and what it asks it to append."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs

from statestore_client.server.cluster.entries import encode
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from statestore_client.server.cluster.entries import Life, LogEntry
    from statestore_client.server.journal import Timeline, WriteBatch


@hot_value
class Append:
    """Append this entry to the log, with a request id of its own, and try until the log has it. What is given up is
    told with ``failed(ticket)``; it may be in the log nevertheless.
    """

    ticket: int
    data: bytes


@hot_value
class BatchReplicated:
    """A batch of another life is valid: a standby makes its rows so."""

    index: int
    batch: WriteBatch


@hot_value
class BatchWritten:
    """The own batch is valid. What it answers may be said within the lease."""

    index: int


@attrs.frozen
class OwnerChanged:
    """Connections that were passed on to the former owner are cut. None: wait until there is an owner again."""

    epoch: int
    owner: Life | None
    url: str


@attrs.frozen
class Promoted:
    """This life is the owner. All batches before its epoch have been told."""

    epoch: int
    timeline: Timeline


@attrs.frozen
class Deposed:
    """Say nothing any more, cut all clients, throw away all that is held, begin another life."""

    epoch: int


@attrs.frozen
class FormatRaised:
    """Batches after this one have this format, or an older one."""

    format: int


@attrs.frozen
class IdInUse:
    """Another server that lives has the same id."""

    life: Life


@attrs.frozen
class RowsRestored:
    """From a snapshot: only those that no batch has touched since."""

    batch: WriteBatch


@attrs.frozen
class SnapshotRestored:
    """With the batches told before, the rows are all that there are."""

    index: int


@attrs.frozen
class SnapshotWritten:
    """A snapshot in the log is complete, whoever wrote it: everything up to its index may be trimmed."""

    index: int


ClusterEvent: TypeAlias = (
    BatchReplicated | BatchWritten | OwnerChanged | Promoted | Deposed | FormatRaised | IdInUse | RowsRestored
    | SnapshotRestored | SnapshotWritten
)  # fmt: skip


# -- entries on their way into the log, and when each was first sent: a lease is counted from there -------------------


@attrs.define(eq=False)
class SentEntry:
    """``ticket`` is that of the newest copy."""

    entry: LogEntry
    data: bytes
    sent_at: float
    ticket: int


class Appends:
    """What the program is to append. No ticket is used twice."""

    def __init__(self) -> None:
        self.output: list[Append] = []
        self._last_ticket = 0

    def send(self, entry: LogEntry, now: float) -> SentEntry:
        """For the first time."""
        sent = SentEntry(entry, encode(entry), now, 0)
        self.repeat(sent)
        return sent

    def repeat(self, sent: SentEntry) -> None:
        """Another copy: of all copies one is valid at most."""
        self._last_ticket += 1
        sent.ticket = self._last_ticket
        self.output.append(Append(sent.ticket, sent.data))
