"""Whether the broker is gone without a word. Keep-alive would notice, too, but later: after 90 seconds by default."""

from __future__ import annotations

from typing import Final

__all__ = ["is_silent"]

#: If a request times out, and the broker has sent and acknowledged nothing for this long (seconds), it is taken for
#: gone.
_SILENCE_S: Final = 5.0
#: The same, when it says other things and acknowledges nothing. Longer: a large value takes its time to get there.
_OVERDUE_S: Final = 60.0


def is_silent(now: float, heard_at: float, unacknowledged_since: float | None, acknowledged_at: float) -> bool:
    """Whether nothing, or no PUBACK, came in since the oldest publication without one left, and that was long ago.

    The time is counted from that publication, and not only from the last packet that came in: an idle link is silent as
    well. All times are monotonic seconds. ``heard_at``: the last packet; ``unacknowledged_since``: when the oldest
    publication without PUBACK left; ``acknowledged_at``: the last PUBACK.
    """
    if unacknowledged_since is None:
        return False
    silent_s = now - max(unacknowledged_since, heard_at)
    overdue_s = now - max(unacknowledged_since, acknowledged_at)
    return silent_s >= _SILENCE_S or overdue_s >= _OVERDUE_S
