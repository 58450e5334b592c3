"""How a log is kept on the disk."""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

_MIB: Final = 1024 * 1024


class Fsync(Enum):
    """When a job is durable."""

    #: Each entry is synced by itself. Slower than GROUP, and no safer: what a job promises is not said before its end.
    ALWAYS = "always"
    #: One sync for a job. Nothing that was acknowledged is ever lost.
    GROUP = "group"
    #: The system writes when it likes to. A process that dies loses nothing. If the *machine* stops, the peer forgets
    #: entries that count as committed, and votes, so that a cluster may lose acknowledged entries or have two leaders
    #: in one term. For tests, and for data that can be had again.
    OFF = "off"


@attrs.frozen(kw_only=True)
class StorageLimits:
    """Sizes; the defaults suit all."""

    #: A segment that has as much is ended. A job is never divided, so it may have more in the end.
    segment_bytes: int = 16 * _MIB
    segment_entries: int = 65_536
    #: What the newest entries may take in memory.
    recent_bytes: int = 4 * _MIB
