"""The peer's side of State Watch: who watches what, and what is to be told to whom. Pure.

Nothing is kept for a single watch but how far it was told: what it was not told yet is read from the history, when its
connection takes more. So a slow client costs nothing, and holds up nobody.

* A *live* watch was told everything that was applied. It is told of an entry when that is applied.
* A watch that is *behind* is told from the history, while its connection has room. When the history drops what it was
  not told, it ends, and is told why.

Invariant: a watch is told of each entry that it wants after its index exactly once, in order, or it ends and says so.

A ROUTER is not told of connections that end, so clients say that they are still here. Any peer serves watches, the
leader or not: each tells what it has applied, in the order of the log, with the index that is the same on all of them.

Source: State Watch pattern; requirements R1 to R14 of ``docs/reference/raft-watches.md``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.core.selectors import Key, Prefix, SelectorIndex
from raft_client.server.machines.change_history import ChangeHistory
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raft_client.core.selectors import Selector
    from raft_client.wire.key_changes import Change
    from raft_client.wire.watch_messages import WatchReply, WatchRequest

__all__ = ["ToRoute", "WatchServer", "WatchServerLimits"]

#: Entries of the history that one turn goes through, so that a long way back is no long turn.
_TURN: Final = 5_000


@attrs.frozen(kw_only=True)
class WatchServerLimits:
    """Sizes in bytes, times in seconds."""

    #: What is remembered, for watches that begin at an earlier index or are behind.
    history_bytes: int = 64 * 1024 * 1024
    watches: int = 100_000
    watches_of_a_route: int = 10_000
    #: What one connection is sent before it says that something arrived: messages, and bytes, but always one message.
    window_messages: int = 256
    window_bytes: int = 1024 * 1024
    #: A live watch without events is told this often how far it is.
    progress_s: float = 5.0
    #: A connection that says nothing for this long is gone.
    silence_s: float = 30.0


@attrs.frozen
class ToRoute:
    """Send ``reply`` to this routing id, with this request id."""

    route: bytes
    request_id: bytes
    reply: WatchReply


@attrs.define(eq=False)
class _Watch:
    route: _Route
    request_id: bytes
    watch: BeginWatch
    #: While it is behind: everything up to here was told. None: it is live.
    told: int | None

    @property
    def selector(self) -> Selector:
        return Prefix(self.watch.key) if self.watch.is_prefix else Key(self.watch.key)

    def wanted(self, events: Events) -> tuple[Change, ...]:
        return tuple(change for change in events.changes if self.watch.wants(change.key))


@attrs.define(eq=False)
class _Route:
    id: bytes
    heard_at: float
    progress_at: float
    watches: dict[bytes, _Watch] = attrs.field(factory=dict)
    behind: dict[bytes, _Watch] = attrs.field(factory=dict)
    #: The sizes of messages with events that the client has not said to have.
    on_their_way: deque[int] = attrs.field(factory=deque)
    bytes_on_their_way: int = 0


class WatchServer:
    """All watches at one peer. Replies are collected for :meth:`take`; ``now`` is monotonic seconds."""

    def __init__(self, applied_index: int, limits: WatchServerLimits | None = None) -> None:
        self._limits = limits or WatchServerLimits()
        self._applied = applied_index
        self._history = ChangeHistory(self._limits.history_bytes, applied_index + 1)
        self._index: SelectorIndex[_Watch] = SelectorIndex()
        #: In the order of ``heard_at``.
        self._routes: OrderedDict[bytes, _Route] = OrderedDict()
        #: In the order of ``progress_at``.
        self._by_progress: OrderedDict[bytes, _Route] = OrderedDict()
        #: Those that have room, and watches to be told more in the next turn.
        self._unfinished: dict[bytes, _Route] = {}
        self._out: list[ToRoute] = []

    @property
    def watch_count(self) -> int:
        """How many there are."""
        return len(self._index)

    @property
    def oldest(self) -> int:
        """Watches can begin after the index before this one, or later."""
        return self._history.oldest

    def take(self) -> list[ToRoute]:
        """What is to be sent, in order."""
        out, self._out = self._out, []
        return out

    # -- what clients ask ----------------------------------------------------------------------------------------------

    def request(self, route_id: bytes, request_id: bytes, request: WatchRequest, now: float) -> None:
        """A request has come through the connection ``route_id``."""
        route = self._heard(route_id, now)
        match request:
            case BeginWatch():
                self._begin(route, request_id, request)
            case CancelWatch():
                self._drop(route, request_id)
                self._end(route, request_id, EndReason.CANCELLED, self._applied)
            case Seen(messages=messages):
                self._arrived(route, messages)
        if not route.watches:
            self._forget(route)

    def _heard(self, route_id: bytes, now: float) -> _Route:
        route = self._routes.get(route_id)
        if route is None:
            route = self._routes[route_id] = _Route(route_id, now, now + self._limits.progress_s)
            self._by_progress[route_id] = route
        route.heard_at = now
        self._routes.move_to_end(route_id)
        return route

    def _begin(self, route: _Route, request_id: bytes, request: BeginWatch) -> None:
        """One whose request id is in use begins anew: its client has asked again."""
        self._drop(route, request_id)
        limits = self._limits
        if len(route.watches) >= limits.watches_of_a_route or self.watch_count >= limits.watches:
            self._end(route, request_id, EndReason.TOO_MANY, self._applied)
            return
        after = self._applied if request.after is None else request.after
        if after + 1 < self._history.oldest:
            self._end(route, request_id, EndReason.HISTORY_OUTRUN, after)
            return
        watch = _Watch(route, request_id, request, None if after >= self._applied else after)
        route.watches[request_id] = watch
        self._index.add(watch, watch.selector)
        self._out.append(ToRoute(route.id, request_id, Watching(self._applied)))
        if watch.told is not None:
            route.behind[request_id] = watch
            self._catch_up(route)

    def _arrived(self, route: _Route, messages: int) -> None:
        """More than were sent is a mistake of the client, which counts as all."""
        for _ in range(min(messages, len(route.on_their_way))):
            route.bytes_on_their_way -= route.on_their_way.popleft()
        self._catch_up(route)

    # -- what is applied -----------------------------------------------------------------------------------------------

    def applied(self, index: int, changes: Sequence[Change] = ()) -> None:
        """The entry at ``index`` was applied, and changed this. Indexes rise."""
        self._applied = index
        if not changes:
            return
        events = Events(index, tuple(changes))
        self._history.append(events)
        concerned = {watch: None for change in changes for watch in self._index.candidates(change.key)}
        for watch in concerned:
            if watch.told is None and index > (watch.watch.after or 0):
                self._tell_live(watch, events)

    def _tell_live(self, watch: _Watch, events: Events) -> None:
        route = watch.route
        if self._has_room(route):
            self._send(watch, events.index, watch.wanted(events))
        else:
            watch.told = events.index - 1
            route.behind[watch.request_id] = watch

    def restored(self, index: int) -> None:
        """A snapshot took the place of the state: what it changed is not known, so every watch ends."""
        self._history.clear(index + 1)
        for route in list(self._routes.values()):
            for request_id, watch in route.watches.items():
                self._end(route, request_id, EndReason.HISTORY_OUTRUN, self._told(watch))
            self._forget(route)
        self._applied = index

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Go on where a turn ended, tell progress, forget connections that are gone."""
        for route in list(self._unfinished.values()):
            self._catch_up(route)
        while self._routes and next(iter(self._routes.values())).heard_at + self._limits.silence_s <= now:
            self._forget(next(iter(self._routes.values())))
        while self._by_progress and next(iter(self._by_progress.values())).progress_at <= now:
            route = next(iter(self._by_progress.values()))
            route.progress_at = now + self._limits.progress_s
            self._by_progress.move_to_end(route.id)
            for request_id, watch in route.watches.items():
                if watch.told is None:
                    self._out.append(ToRoute(route.id, request_id, WatchProgress(self._told(watch))))

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, 0 for at once; None if never."""
        if not self._routes:
            return None
        if self._unfinished:
            return 0.0
        silent = next(iter(self._routes.values())).heard_at + self._limits.silence_s
        return min(silent, next(iter(self._by_progress.values())).progress_at)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _catch_up(self, route: _Route) -> None:
        """Tell watches that are behind, in turn, while the connection has room and the turn lasts."""
        self._unfinished.pop(route.id, None)
        left = _TURN
        for request_id, watch in list(route.behind.items()):
            if not self._has_room(route):
                return
            if left <= 0:
                self._unfinished[route.id] = route
                return
            del route.behind[request_id]
            left -= self._tell_from_history(watch, left)
            if watch.told is not None and request_id in route.watches:
                route.behind[request_id] = watch  # at the end of the row
        if left <= 0 and route.behind:
            self._unfinished[route.id] = route

    def _tell_from_history(self, watch: _Watch, most: int) -> int:
        """Returns through how many entries it went."""
        told = self._told(watch)
        if told + 1 < self._history.oldest:
            self._drop(watch.route, watch.request_id)
            self._end(watch.route, watch.request_id, EndReason.TOO_SLOW, told)
            return 0
        count = 0
        for events in self._history.after(told):
            if count == most:
                return count
            count += 1
            changes = watch.wanted(events)
            if changes:
                if not self._has_room(watch.route):
                    return count
                self._send(watch, events.index, changes)
            watch.told = events.index
        watch.told = None
        return count + 1

    def _told(self, watch: _Watch) -> int:
        """Everything up to there that it wants was told."""
        return max(self._applied, watch.watch.after or 0) if watch.told is None else watch.told

    def _has_room(self, route: _Route) -> bool:
        limits = self._limits
        return not route.on_their_way or (
            len(route.on_their_way) < limits.window_messages and route.bytes_on_their_way < limits.window_bytes
        )

    def _send(self, watch: _Watch, index: int, changes: tuple[Change, ...]) -> None:
        reply = Events(index, changes)
        watch.route.on_their_way.append(reply.size)
        watch.route.bytes_on_their_way += reply.size
        self._out.append(ToRoute(watch.route.id, watch.request_id, reply))

    def _end(self, route: _Route, request_id: bytes, reason: EndReason, told: int) -> None:
        self._out.append(ToRoute(route.id, request_id, WatchEnded(reason, told, self._history.oldest)))

    def _drop(self, route: _Route, request_id: bytes) -> None:
        watch = route.watches.pop(request_id, None)
        route.behind.pop(request_id, None)
        if watch is not None:
            self._index.discard(watch, watch.selector)

    def _forget(self, route: _Route) -> None:
        for request_id in list(route.watches):
            self._drop(route, request_id)
        self._routes.pop(route.id, None)
        self._unfinished.pop(route.id, None)
        self._by_progress.pop(route.id, None)
