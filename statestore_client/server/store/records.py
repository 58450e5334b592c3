"""What the state store writes down, as values, and back."""

from __future__ import annotations

from sys import intern
from typing import TYPE_CHECKING, Any, Self

import attrs

from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.hot_value import hot_value

if TYPE_CHECKING:
    from statestore_client.server.journal import Timeline

__all__ = ["ClockRecord", "KeyRecord"]


def _stamp_fields(stamp: HlcTimestamp) -> tuple[int, int, str]:
    return (stamp.wall_ms, stamp.counter, stamp.node_id)


@hot_value
class KeyRecord:
    """What is stored under a key. ``expires_at`` is monotonic seconds, and log time on disk.

    Without a value it is the fencing mark of a key whose value does not survive. ``user`` is who has set it; nobody in
    particular has no field for that.
    """

    value: bytes | None
    version: HlcTimestamp
    fence: HlcTimestamp | None
    expires_at: float | None
    user: str | None = None

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        fence = None if self.fence is None else _stamp_fields(self.fence)
        fields = (self.value, _stamp_fields(self.version), fence, timeline.log_ms(self.expires_at))
        return fields if self.user is None else (*fields, self.user)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        value, version, fence, expires_ms, user = fields if len(fields) == 5 else (*fields, None)
        mark = None if fence is None else HlcTimestamp(*fence)
        return cls(value, HlcTimestamp(*version), mark, timeline.monotonic(expires_ms), user and intern(user))

    def mark(self) -> KeyRecord:
        """The same without the value."""
        return KeyRecord(None, self.version, self.fence, self.expires_at)


@attrs.frozen
class ClockRecord:
    """The greatest version that was given out: no later one may be smaller, whatever the wall clock says.

    ``ahead_ms`` is that of the local clock: before the monotonic clock here, and before log time on disk.
    """

    last: HlcTimestamp
    ahead_ms: float

    def fields(self, timeline: Timeline) -> tuple[object, ...]:
        return (*_stamp_fields(self.last), self.ahead_ms - timeline.ahead_ms)

    @classmethod
    def read(cls, fields: Any, timeline: Timeline) -> Self:
        wall_ms, counter, node_id, ahead_ms = fields
        return cls(HlcTimestamp(wall_ms, counter, node_id), ahead_ms + timeline.ahead_ms)
