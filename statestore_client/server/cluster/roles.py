"""The roles of a life, and how long it waits for what.

::

    STANDBY <──> CANDIDATE ──> ACTIVE ──> DEPOSED
       └───────────────────────^          (a claim of another life, or handed over)

A standby that suspects the owner asks the log: it appends a challenge. With an answer it stays a standby; without one
it claims. Whatever the role, the life that the log says is the owner is active. A deposed life says nothing any more:
its program throws away all that it holds, and begins another one.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from statestore_client.server.cluster.entries import FORMAT, MAX_DATA, Life

__all__ = ["CLOCK_RATES", "ClusterSettings", "Role"]

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
