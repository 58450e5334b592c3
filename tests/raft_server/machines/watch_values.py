"""Short ways to say what a WatchServer is asked and what it tells."""

from __future__ import annotations

from typing import Any

from raft_client.server.machines.watch_server import WatchServer
from raft_client.server.machines.watch_sessions import WatchServerLimits
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.positions import Position
from raft_client.wire.watch_messages import BeginWatch, Events, Seen

ROUTE, OTHER = b"\x00r1", b"\x00r2"
W1, W2, SEEN = b"\x01", b"\x02", b"\x03"
TERM = 3


def put(key: bytes, value: bytes = b"v") -> Change:
    return Change(ChangeKind.SET, key, value)


def gone(key: bytes) -> Change:
    return Change(ChangeKind.DELETE, key)


def at(index: int, term: int = TERM) -> Position:
    return Position(index, term)


def key_watch(key: bytes = b"k", after: Position | None = None) -> BeginWatch:
    return BeginWatch(b"", key, False, after)


def prefix_watch(prefix: bytes, after: Position | None = None) -> BeginWatch:
    return BeginWatch(b"", prefix, True, after)


def events(index: int, *changes: Change) -> Events:
    return Events(at(index), changes)


def a_server(index: int = 10, **limits: Any) -> WatchServer:
    return WatchServer(at(index), WatchServerLimits(**limits), first_session=7)


def apply(server: WatchServer, index: int, *changes: Change, term: int = TERM) -> None:
    server.applied(index, term, changes)


def told(server: WatchServer, route: bytes = ROUTE, request_id: bytes = W1, now: float = 0.0) -> list[Any]:
    """What was told under this request id since the last call; what others were told is dropped."""
    server.turn(now)
    return [each.reply for each in server.take() if (each.route, each.request_id) == (route, request_id)]


def begun(server: WatchServer, watch: BeginWatch, route: bytes = ROUTE, request_id: bytes = W1) -> list[Any]:
    server.request(route, request_id, watch, 0.0)
    return told(server, route, request_id)


def seen(server: WatchServer, messages: int, session: int = 7, route: bytes = ROUTE, now: float = 0.0) -> list[Any]:
    """The answer to Seen."""
    server.request(route, SEEN, Seen(b"", session, messages), now)
    return [each.reply for each in server._out if (each.route, each.request_id) == (route, SEEN)]


def indexes(replies: list[Any]) -> list[int]:
    return [reply.position.index for reply in replies]
