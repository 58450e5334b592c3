"""What clients of the model know: their watches, over all connections, and what has arrived."""

from __future__ import annotations

from collections import deque

import attrs

from raft_client.wire.positions import Position
from raft_client.wire.watch_messages import Events, WatchReply

__all__ = ["Client", "WatchOfUser"]


@attrs.define(eq=False)
class WatchOfUser:
    """A watch as its user sees it, over all connections."""

    key: bytes
    is_prefix: bool
    base: int | None = None  # of what it must have been told; None until the peer has said it
    position: Position | None = None
    events: list[Events] = attrs.field(factory=list)
    request_id: bytes = b""
    is_confirmed: bool = False
    is_over: bool = False

    def wants(self, key: bytes) -> bool:
        return key.startswith(self.key) if self.is_prefix else key == self.key


@attrs.define(eq=False)
class Client:
    route: bytes
    session: int | None = None
    received: int = 0
    said: int = 0  # how many of them in the last Seen
    watches: dict[bytes, WatchOfUser] = attrs.field(factory=dict)
    inbox: deque[tuple[bytes, WatchReply]] = attrs.field(factory=deque)
    asked: dict[bytes, int] = attrs.field(factory=dict)  # the sessions that were asked for with Seen
