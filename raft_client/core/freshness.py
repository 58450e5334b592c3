"""How far a subscription or watch is from the end of the log, as users see it."""

from __future__ import annotations

from enum import StrEnum

import attrs


class Freshness(StrEnum):
    """What is known of the distance to the end of the log."""

    FRESH = "fresh"  # all that was broadcast is in the queue
    STALE = "stale"  # entries are missing and being fetched
    SILENT = "silent"  # nothing is heard, and the leader is being looked for: what was seen may be out of date


@attrs.frozen
class SubscriptionState:
    """``missing`` is how many entries are known to exist and were not received yet."""

    freshness: Freshness
    missing: int = 0
