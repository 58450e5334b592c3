"""What servers write into the replicated log.

==========  ===================================  =====================================================================
kind        beside the header                    it is valid if
==========  ===================================  =====================================================================
Claim       url, format, lease, wall clock,      its epoch is the next one, and ``seq`` is the last valid one of the
           whether it is forced                  current epoch (compare-and-set), or nobody owns that, or it is forced
BatchPiece  a piece of a batch of the journal    the epoch is current, the life is its owner, ``seq`` is the next one
Renewal     wall clock                           as a BatchPiece
HandOver    which server is to be the next       as a BatchPiece; nobody owns the epoch afterwards
NewFormat   format                               as a BatchPiece; batches after it may have this format
Challenge                                        it changes nothing; an owner that lives answers with a Renewal
Snapshot    index and fence of a snapshot        no other one is being written, or that was begun 60 s ago
Part        a piece of the snapshot              it is the next one of the snapshot that is being written
==========  ===================================  =====================================================================

:class:`~statestore_client.server.cluster.fence.Fence` decides. ``seq`` of a Challenge and of a Part are numbers of
their sender's own.

Source: ``docs/decisions/0046-the-core-of-the-replicated-server.md``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from statestore_client.wire.hot_value import hot_value

__all__ = [
    "FORMAT",
    "MAX_DATA",
    "MAX_ENTRY",
    "MAX_ID_BYTES",
    "MAX_LEASE_MS",
    "MAX_URL_BYTES",
    "UNFINISHED",
    "VERSION",
    "BatchPiece",
    "Body",
    "Challenge",
    "Claim",
    "HandOver",
    "Life",
    "LogEntry",
    "NewFormat",
    "Part",
    "Renewal",
    "Snapshot",
]

#: Of the entries. A program that meets another one stops: what it cannot read may be a claim.
VERSION: Final = 1
#: The newest format of records in batches that this program reads.
FORMAT: Final = 1
#: The format of an epoch in which a data directory is copied into the log, until all of it is there: a part of it is
#: nothing to go on from.
UNFINISHED: Final = 0

#: Larger entries make the appends of others wait for more than 50 ms.
MAX_ENTRY: Final = 1 << 20
MAX_ID_BYTES: Final = 64
MAX_LEASE_MS: Final = 60_000
MAX_URL_BYTES: Final = 1024
#: Of a piece: the header has its place beside it.
MAX_DATA: Final = MAX_ENTRY - 512


@hot_value
class Life:
    """A server from its start until it stops or is deposed. ``incarnation`` is a random number of 64 bits."""

    id: str
    incarnation: int


@attrs.frozen
class Claim:
    """The server wants to own the next epoch. Clients that arrive elsewhere are passed on to ``url``. Its leases last
    ``lease_ms``: others wait for longer than that, whatever they are set to. Batches of the epoch have ``format``,
    until there is a :class:`NewFormat`.
    """

    url: str
    format: int
    lease_ms: int
    wall_ms: int
    is_forced: bool = False


@hot_value
class BatchPiece:
    """A piece of a batch; with ``is_last`` the batch is complete, and counts."""

    data: bytes
    is_last: bool = True


@hot_value
class Renewal:
    """The owner lives, and has seen everything before."""

    wall_ms: int


@attrs.frozen
class HandOver:
    """The owner gives up its epoch. ``next_id`` names the server that claims at once; others wait a moment."""

    next_id: str = ""


@attrs.frozen
class NewFormat:
    """All servers know this format of records: from here on batches may have it. Formats never go back."""

    format: int


@attrs.frozen
class Challenge:
    """A server asks whether the owner lives."""


@attrs.frozen
class Snapshot:
    """The rows as of ``index`` follow in parts, and ``fence`` is what a reader begins with there."""

    index: int
    fence: bytes


@attrs.frozen
class Part:
    """A piece of rows of the snapshot of ``index``. With ``is_last`` these rows are complete, with ``is_end`` the whole
    snapshot is.
    """

    index: int
    data: bytes
    is_last: bool = True
    is_end: bool = False


Body: TypeAlias = Claim | BatchPiece | Renewal | HandOver | NewFormat | Challenge | Snapshot | Part


@hot_value
class LogEntry:
    """One entry. ``log_ms`` is the log time when it was made; ``base`` is the index of the entry of the newest complete
    snapshot that its writer knows, 0 for none.
    """

    epoch: int
    seq: int
    life: Life
    log_ms: int
    base: int
    body: Body
