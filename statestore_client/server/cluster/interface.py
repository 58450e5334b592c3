"""What a life of a server and its program say to each other: its role and settings, events, and entries to append.

::

    STANDBY <──> CANDIDATE ──> ACTIVE ──> DEPOSED
       └───────────────────────^          (a claim of another life, or handed over)

A standby that suspects the owner asks the log: it appends a challenge. With an answer it stays a standby; without one
it claims. Whatever the role, the life that the log says is the owner is active. A deposed life says nothing any more:
its program throws away all that it holds, and begins another one.

Events come in the order in which they happened.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from statestore_client.server.cluster.entries import FORMAT, MAX_DATA, Life, encode
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from statestore_client.server.cluster.entries import Life, LogEntry
    from statestore_client.server.journal import Timeline, WriteBatch

#: A second of one clock is less than this many of another one.
CLOCK_RATES: Final = 1.2


class Role(Enum):
    """What a life is at the moment."""

    STANDBY = "standby"
    CANDIDATE = "candidate"
    ACTIVE = "active"
    DEPOSED = "deposed"


@attrs.frozen
class ClusterSettings:
    """The life itself, where clients are passed on to while it is active, and times in seconds."""

    life: Life
    url: str = ""
    #: Of an epoch on an empty log; later ones have the format that the log has.
    format: int = FORMAT
    #: Do not become the owner of an empty log: a data directory is to be copied into it.
    awaits_import: bool = False
    #: The active server may speak during this time after it sent an entry that came back valid.
    lease_s: float = 0.25
    #: A challenge is answered by then, or not at all.
    answer_s: float = 0.1
    #: An owner that gives no sign of life during this time is suspected.
    silence_s: float = 0.5
    #: An owner whose entries take longer than this to come back gives no sign of life any more.
    stuck_s: float = 1.0
    #: The owner writes at least once in this time: others learn the log time from it.
    idle_s: float = 10.0
    #: Those that an epoch was not handed over to leave this time to the one that it was.
    next_s: float = 0.1
    #: Between two challenges, and after a claim that was lost.
    pause_s: float = 0.5
    #: Of a piece of a batch, and of a part of a snapshot.
    piece_bytes: int = MAX_DATA
    part_bytes: int = 256 * 1024

    @property
    def lease_ms(self) -> int:
        """What a claim says; not less than :attr:`lease_s`."""
        return int(self.lease_s * 1000 + 0.999)


# -- events -----------------------------------------------------------------------------------------------------------


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
