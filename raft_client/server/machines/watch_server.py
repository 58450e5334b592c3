"""The peer's side of State Watch: who watches what, and what is to be told to whom. Pure.

What was not told to a watch yet is read from the history, which all watches share, when its connection takes more. So a
slow client costs nothing, and holds up nobody.

* A *live* watch was told everything that was applied, or is just about to be.
* A watch that is *behind* begins in the past, or its connection had no room. It goes through the history
  (:class:`HistoryCursor`), or waits until its client has taken some of what is on its way.
  When the history drops what it was not told, it ends, and is told why.

Invariant: a watch is told of each change that it wants after its position exactly once, in order, or it ends and says
so, or its session ends, which the next Seen is told.
Invariant: each watch of a cursor was sent all that it wants of the items before the cursor's place; and of the item
at that place and later ones only those up to its ``told``.
Invariant: one turn takes a bounded number of steps, whatever clients ask for and entries hold.

A ROUTER is not told of connections that end: a client says that it is still here, or its session ends. Any peer serves
watches, the leader or not: each tells what it has applied, in the order of the log.

Source: State Watch pattern; facts (kvstore and watch) §8.4, R1 to R14; ``docs/decisions/raft-watches.md``.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.core.selectors import Key, Prefix, SelectorIndex
from raft_client.server.machines.change_history import ChangeHistory, size_of
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    EndReason,
    Events,
    NoSession,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raft_client.core.selectors import Selector
    from raft_client.server.machines.change_history import Item
    from raft_client.wire.key_changes import Change
    from raft_client.wire.watch_messages import WatchReply, WatchRequest

# -- sessions ----------------------------------------------------------------------------------------------------------


#: Places of watches that were discarded are given back when there are so many of them, and more than others.
_SLACK: Final = 1_000


@attrs.frozen(kw_only=True)
class WatchServerLimits:
    """Sizes in bytes, times in seconds."""

    #: What is remembered, for watches that begin at an earlier index or are behind.
    history_bytes: int = 32 * 1024 * 1024
    sessions: int = 10_000
    watches: int = 100_000
    watches_of_a_session: int = 10_000
    #: Of keys and request ids.
    key_bytes: int = 32 * 1024 * 1024
    key_bytes_of_a_session: int = 1024 * 1024
    #: What one client is sent before it says that something arrived: messages, and bytes; but always one message.
    window_messages: int = 256
    window_bytes: int = 1024 * 1024
    #: The same, of all clients.
    window_bytes_of_all: int = 64 * 1024 * 1024
    #: A client that says nothing for this long is gone.
    silence_s: float = 30.0


@attrs.define(eq=False)
class Session:
    """The watches of one connection."""

    route: bytes
    number: int
    heard_at: float
    watches: dict[bytes, Watch] = attrs.field(factory=dict)
    #: Those that wait until the client has taken some of what is on its way, in this order.
    waiting: dict[Watch, None] = attrs.field(factory=dict)
    #: Those that are not live, and a position that none of them is before; None if there are none.
    behind: dict[Watch, None] = attrs.field(factory=dict)
    behind_from: Position | None = None
    #: Messages with events that were sent, those that the client has said to have, and the sizes of the others.
    sent: int = 0
    seen: int = 0
    on_their_way: deque[int] = attrs.field(factory=deque)
    bytes_on_their_way: int = 0
    #: Bytes of their keys and request ids.
    key_bytes: int = 0
    is_over: bool = False

    def is_full(self, limits: WatchServerLimits, key_bytes: int) -> bool:
        """Whether a watch with a key and request id of these bytes is one too many."""
        return (
            len(self.watches) >= limits.watches_of_a_session
            or self.key_bytes + key_bytes > limits.key_bytes_of_a_session
        )

    def has_sent(self, size: int) -> None:
        """A message with events is on its way."""
        self.on_their_way.append(size)
        self.bytes_on_their_way += size
        self.sent += 1

    def has_seen(self, messages: int) -> int:
        """So many have arrived in all. Returns how many bytes are not on their way any more.

        More than were sent is a mistake of the client, which counts as all.
        """
        before = self.bytes_on_their_way
        while self.seen < min(messages, self.sent):
            self.seen += 1
            self.bytes_on_their_way -= self.on_their_way.popleft()
        return before - self.bytes_on_their_way

    def has_room(self, limits: WatchServerLimits, bytes_of_all: int) -> bool:
        """Where nothing is on its way, one message may always be, so nobody waits for ever for others."""
        return not self.on_their_way or (
            len(self.on_their_way) < limits.window_messages
            and self.bytes_on_their_way < limits.window_bytes
            and bytes_of_all < limits.window_bytes_of_all
        )

    def falls_behind(self, watch: Watch, position: Position) -> None:
        """It is not live; it was told everything up to this position."""
        if watch not in self.behind:
            self.behind[watch] = None
            self.behind_from = position if self.behind_from is None else min(self.behind_from, position)

    def caught_up(self, watch: Watch) -> None:
        """It is live, or over."""
        if self.behind.pop(watch, watch) is None and not self.behind:
            self.behind_from = None


@attrs.define(eq=False)
class Watch:
    """One watch: everything that it wants of entries up to the index ``told`` was sent, and perhaps of more."""

    session: Session
    request_id: bytes
    request: BeginWatch
    told: int
    #: The cursor that it is with; None: it waits, or is over.
    cursor: HistoryCursor | None = None

    @property
    def selector(self) -> Selector:
        return Prefix(self.request.key) if self.request.is_prefix else Key(self.request.key)

    @property
    def key_bytes(self) -> int:
        return len(self.request_id) + len(self.request.key)


class IndexQueue:
    """Watches by an index, the lowest first. Each is in it once."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Watch]] = []
        self._numbers: dict[Watch, int] = {}
        self._count = count()

    def all(self) -> list[Watch]:
        """All, in the order in which they came."""
        return list(self._numbers)

    @property
    def lowest(self) -> int | None:
        """The lowest index; None if there is none."""
        self._drop_discarded()
        return self._heap[0][0] if self._heap else None

    def add(self, index: int, watch: Watch) -> None:
        """It must not be in it."""
        number = self._numbers[watch] = next(self._count)
        heappush(self._heap, (index, number, watch))

    def discard(self, watch: Watch) -> None:
        """Also if it is not in it."""
        if self._numbers.pop(watch, None) is None:
            return
        if len(self._heap) > 2 * len(self._numbers) + _SLACK:
            self._heap = [each for each in self._heap if self._numbers.get(each[2]) == each[1]]
            heapify(self._heap)

    def pop(self, most: int) -> Watch | None:
        """Take out the watch of the lowest index, if that is not above ``most``."""
        self._drop_discarded()
        if not self._heap or self._heap[0][0] > most:
            return None
        watch = heappop(self._heap)[2]
        del self._numbers[watch]
        return watch

    def _drop_discarded(self) -> None:
        while self._heap and self._numbers.get(self._heap[0][2]) != self._heap[0][1]:
            heappop(self._heap)


# -- cursors in the history --------------------------------------------------------------------------------------------
# A *cursor* goes through the history, item by item, for all its watches. Live watches have one, which stands at
# the end of the history. Those that begin in the past, or had no room, go through it together in another one, until
# they are where the live ones are. So an item costs a look-up for each of its changes, and then only for watches that
# want it, and thousands of watches that begin again at the same time do not go through the history one by one.
#
# A cursor can stop after each step: what a turn may take is counted in steps, whatever entries and watches there are.


#: What sending a message costs, in steps: a step is to look at something, about a microsecond.
_SEND_STEPS: Final = 5


@attrs.define(eq=False)
class _Group:
    """The watches of a cursor that want the same."""

    selector: Selector
    watches: dict[Watch, None] = attrs.field(factory=dict)


class HistoryCursor:
    """``place``: that of the item that comes next, or is being told."""

    def __init__(self, place: int) -> None:
        self.place: int = place
        self._index: SelectorIndex[_Group] = SelectorIndex()
        self._groups: dict[Selector, _Group] = {}
        self._work: Iterator[int] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def may_join_at(self) -> int:
        """A watch that was told everything before this place, or a later one, may join."""
        return self.place if self._work is None else self.place + 1

    @property
    def is_between_items(self) -> bool:
        """Whether it tells no item just now."""
        return self._work is None

    def add(self, watch: Watch) -> None:
        """It is told of all items from the place on, but those up to its ``told``."""
        selector = watch.selector
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = _Group(selector)
            self._index.add(group, selector)
        group.watches[watch] = None
        watch.cursor = self
        self._count += 1

    def discard(self, watch: Watch) -> None:
        """It must be with this cursor."""
        selector = watch.selector
        group = self._groups[selector]
        del group.watches[watch]
        watch.cursor = None
        self._count -= 1
        if not group.watches:
            del self._groups[selector]
            self._index.discard(group, selector)

    def some(self) -> Watch:
        """Any of them; there must be one."""
        return next(iter(next(iter(self._groups.values())).watches))

    def run(self, history: ChangeHistory, steps: int, tell: Callable[[Watch, Events, int], None]) -> int:
        """Go on for this many steps, or until the end. Returns how many are left.

        ``tell`` is called with the watch, the events and their size; it may take the watch away from the cursor.
        """
        while steps > 0:
            if self._work is None:
                if self.place >= history.end or not self._count:
                    return steps
                self._work = self._tell(history.at(self.place), tell)
            for cost in self._work:
                steps -= cost
                if steps <= 0:
                    return 0
            self._work = None
            self.place += 1
            steps -= 1
        return 0

    def skip_to(self, place: int) -> None:
        """Nothing before it is wanted, or it is lost."""
        self.place = max(self.place, place)
        self._work = None

    def _tell(self, item: Item, tell: Callable[[Watch, Events, int], None]) -> Iterator[int]:
        """What it yields is what it cost."""
        concerned: dict[_Group, list[int]] = {}
        for number, change in enumerate(item.changes):
            for group in self._index.candidates(change.key):
                concerned.setdefault(group, []).append(number)
            yield 1
        for group, numbers in concerned.items():
            if len(numbers) == len(item.changes):
                changes = item.changes
            else:
                changes = tuple(item.changes[number] for number in numbers)
            events, size = Events(item.position, changes), size_of(changes)
            yield 1 + len(numbers) // 10
            for watch in list(group.watches):
                if watch.cursor is self and watch.told < item.at:
                    tell(watch, events, size)
                    yield _SEND_STEPS
                else:
                    yield 1


# -- watch server ------------------------------------------------------------------------------------------------------


#: What one turn may take: sending a message is five steps, a look at an entry or a watch one or two. About 10 ms.
_TURN_STEPS: Final = 5_000
#: What each cursor gets, before the others have theirs.
_ROUND_STEPS: Final = 200
#: Cursors beside that of the live watches. Watches that fit to none of them wait for the next one.
_MOST_CURSORS: Final = 4


@attrs.frozen
class ToRoute:
    """Send ``reply`` to this routing id, with this request id."""

    route: bytes
    request_id: bytes
    reply: WatchReply


class WatchServer:
    """All watches at one peer. Replies are collected for :meth:`take`; ``now`` is monotonic seconds.

    After each report of what happened, call :meth:`turn`, and again at :meth:`next_deadline`.
    """

    def __init__(self, applied: Position, limits: WatchServerLimits | None = None, *, first_session: int = 1) -> None:
        """``first_session``: numbers of sessions go up from here; no other start of a peer may use the same."""
        self._limits = limits or WatchServerLimits()
        #: Whether the peer leads, which clients are told.
        self.leads = False
        #: How many watches there are, and messages with events that were sent.
        self.watch_count: int = 0
        self.events_sent: int = 0
        #: Watches, and sessions, that ended, by what for.
        self.ended: Counter[str] = Counter()
        self._history = ChangeHistory(self._limits.history_bytes, applied)
        self._next_session = first_session
        #: In the order of ``heard_at``.
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._live = HistoryCursor(self._history.end)
        self._cursors_behind: list[HistoryCursor] = []
        self._next_cursor = HistoryCursor(self._history.end)
        #: Their watches are still to be taken away, and those that were outrun to be told.
        self._over: deque[Session] = deque()
        self._outrun: deque[HistoryCursor] = deque()
        #: Watches that wait for room, by what they were told; those after an index that is still to come.
        self._waiting = IndexQueue()
        self._ahead = IndexQueue()
        #: Those that have watches that wait, and room.
        self._returning: dict[Session, None] = {}
        self._key_bytes = self._bytes_on_their_way = 0
        self._out: list[ToRoute] = []

    # -- figures -------------------------------------------------------------------------------------------------------

    @property
    def session_count(self) -> int:
        """How many clients watch."""
        return len(self._sessions)

    @property
    def history_bytes(self) -> int:
        """What the history takes in memory."""
        return self._history.bytes

    @property
    def oldest(self) -> int:
        """Watches can begin after the index before this one, or later."""
        return self._history.oldest

    def take(self) -> list[ToRoute]:
        """What is to be sent, in order."""
        out, self._out = self._out, []
        return out

    # -- what clients ask ----------------------------------------------------------------------------------------------

    def request(self, route: bytes, request_id: bytes, request: WatchRequest, now: float) -> None:
        """A request has come through the connection ``route``."""
        session = self._sessions.get(route)
        if session is not None:
            session.heard_at = now
            self._sessions.move_to_end(route)
        match request:
            case BeginWatch():
                self._begin(session, route, request_id, request, now)
            case CancelWatch():
                if session is not None and (watch := session.watches.get(request_id)) is not None:
                    self._drop(watch)
                self._say_ended(route, request_id, EndReason.CANCELLED)
            case Seen() if session is not None and session.number == request.session:
                self._bytes_on_their_way -= session.has_seen(request.messages)
                if session.waiting:
                    self._returning[session] = None
                position = session.behind_from or self._told_live()
                self._say(route, request_id, WatchProgress(session.number, position, self.leads, position.entry_id))
            case Seen():
                self._say(route, request_id, NoSession(request.session))

    def refused(self, route: bytes) -> None:
        """What was to be sent to this connection was not taken: nobody knows what its client has. It may be gone."""
        self._end_session(route, "refused")

    def _begin(self, session: Session | None, route: bytes, request_id: bytes, request: BeginWatch, now: float) -> None:
        """One whose request id is in use begins anew: its client has asked again."""
        if session is not None and (known := session.watches.get(request_id)) is not None:
            self._drop(known)
        reason = self._why_not(session, len(request_id) + len(request.key), request.after)
        if reason is not None:
            self.ended[reason.name.lower()] += 1
            self._say_ended(route, request_id, reason)
            return
        if session is None:
            session = self._sessions[route] = Session(route, self._next_session, now)
            self._next_session += 1
        told = self._history.index if request.after is None else request.after.index
        watch = session.watches[request_id] = Watch(session, request_id, request, told)
        session.key_bytes += watch.key_bytes
        self._key_bytes += watch.key_bytes
        self.watch_count += 1
        if told > self._history.index:
            self._ahead.add(told, watch)
        applied = self._history.applied
        self._say(route, request_id, Watching(session.number, applied, applied.entry_id))
        self._join(watch)

    def _why_not(self, session: Session | None, key_bytes: int, after: Position | None) -> EndReason | None:
        limits, history = self._limits, self._history
        own = Session(b"", 0, 0.0) if session is None else session
        is_full = own.is_full(limits, key_bytes) or (session is None and len(self._sessions) >= limits.sessions)
        if is_full or self.watch_count >= limits.watches or self._key_bytes + key_bytes > limits.key_bytes:
            return EndReason.TOO_MANY
        if after is None:
            return None
        if after.index + 1 < history.oldest:
            return EndReason.HISTORY_OUTRUN
        return EndReason.OTHER_LOG if history.contradicts(after) else None

    # -- what is applied -----------------------------------------------------------------------------------------------

    def applied(self, index: int, term: int, changes: tuple[Change, ...] = (), entry_id: bytes = b"") -> None:
        """The entry at ``index`` was applied, and changed this. Indexes rise.

        Entries that changed nothing may be left out, but the first one of a term, and the last one of all.
        ``entry_id`` is the id of the newest entry up to there that has one, those that were left out among them.
        """
        is_new_term = term != self._history.term
        self._history.append(index, term, changes, entry_id)
        if is_new_term:
            for watch in self._ahead.all():
                self._compare(watch)
        while (watch_ahead := self._ahead.pop(index)) is not None:
            self._compare(watch_ahead)

    def _compare(self, watch: Watch) -> None:
        if watch.request.after is not None and self._history.contradicts(watch.request.after):
            self._end(watch, EndReason.OTHER_LOG)

    def restored(self, applied: Position) -> None:
        """A snapshot took the place of the state: what it changed is not known, so all sessions end."""
        for route in list(self._sessions):
            self._end_session(route, "restored")
        self._history.restored(applied)
        self._live, self._next_cursor = HistoryCursor(self._history.end), HistoryCursor(self._history.end)
        self._cursors_behind.clear()
        self._outrun.clear()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Tell what there is to be told, end what is to end; as much as fits into a turn."""
        while (
            self._sessions and (first := next(iter(self._sessions.values()))).heard_at + self._limits.silence_s <= now
        ):
            self._end_session(first.route, "silent")
        steps = self._clean_up(_TURN_STEPS)
        steps = self._end_slow(steps)
        steps = self._return(steps)
        self._run(steps)

    def next_deadline(self) -> float | None:
        """When :meth:`turn` has something to do, 0 for at once; None if never."""
        if self._has_work():
            return 0.0
        if not self._sessions:
            return None
        return next(iter(self._sessions.values())).heard_at + self._limits.silence_s

    def _has_work(self) -> bool:
        if self._over or self._outrun or self._returning or self._cursors_behind or len(self._next_cursor):
            return True
        is_slow = (told := self._waiting.lowest) is not None and told + 1 < self._history.oldest
        return is_slow or (len(self._live) > 0 and self._live.place < self._history.end)

    def _clean_up(self, steps: int) -> int:
        """Take away the watches of sessions that are over."""
        while self._over and steps > 0:
            watches = self._over[0].watches
            while watches and steps > 0:
                self._drop(next(iter(watches.values())))
                steps -= 2
            if not watches:
                self._over.popleft()
        return steps

    def _end_slow(self, steps: int) -> int:
        """End what has missed something: watches that waited, and those of cursors that the history has overtaken."""
        history = self._history
        while steps > 0 and (watch := self._waiting.pop(history.oldest - 2)) is not None:
            self._end(watch, EndReason.TOO_SLOW)
            steps -= 5
        for cursor in (self._live, self._next_cursor, *self._cursors_behind):
            if len(cursor) and cursor.place < history.first:
                self._outrun.append(cursor)
        if self._live.place < history.first:
            self._live = HistoryCursor(history.end)
        if self._next_cursor.place < history.first:
            self._next_cursor = HistoryCursor(history.end)
        self._cursors_behind = [cursor for cursor in self._cursors_behind if cursor.place >= history.first]
        while self._outrun and steps > 0:
            cursor = self._outrun[0]
            while len(cursor) and steps > 0:
                watch = cursor.some()
                cursor.discard(watch)
                if watch.told + 1 < history.oldest:
                    self._end(watch, EndReason.TOO_SLOW)
                else:
                    self._join(watch)
                steps -= 5
            if not len(cursor):
                self._outrun.popleft()
        return steps

    def _return(self, steps: int) -> int:
        """Watches that waited go on, as many as there is room for messages: each has one at least to be sent."""
        for session in list(self._returning):
            has_room = session.has_room(self._limits, self._bytes_on_their_way)
            room = self._limits.window_messages - len(session.on_their_way) if has_room else 0
            while session.waiting and room > 0 and steps > 0:
                watch = next(iter(session.waiting))
                del session.waiting[watch]
                self._waiting.discard(watch)
                self._join(watch)
                room -= 1
                steps -= 2
            if room <= 0 or not session.waiting:
                del self._returning[session]
            if steps <= 0:
                break
        return steps

    def _run(self, steps: int) -> None:
        """Each cursor has its share of the turn; that of the live watches is the first."""
        while steps > 0:
            if len(self._next_cursor) and len(self._cursors_behind) < _MOST_CURSORS:
                self._cursors_behind.append(self._next_cursor)
                self._next_cursor = HistoryCursor(self._history.end)
            before = steps
            if not len(self._live):
                self._live.skip_to(self._history.end)
            for cursor in (self._live, *self._cursors_behind):
                steps -= _ROUND_STEPS - cursor.run(self._history, _ROUND_STEPS, self._tell)
            for cursor in self._cursors_behind:
                steps = self._merge(cursor, steps)
            self._cursors_behind = [cursor for cursor in self._cursors_behind if len(cursor)]
            if steps == before:
                return

    def _merge(self, cursor: HistoryCursor, steps: int) -> int:
        """What has come to where the live watches are becomes live."""
        while len(cursor) and steps > 0 and cursor.is_between_items and cursor.place >= self._live.may_join_at:
            watch = cursor.some()
            cursor.discard(watch)
            watch.told = max(watch.told, self._history.before(cursor.place).index)
            self._join(watch)
            steps -= 2
        return steps

    # -- inside --------------------------------------------------------------------------------------------------------

    def _join(self, watch: Watch) -> None:
        """Join the nearest cursor that is not beyond what this watch was sent."""
        self._told_live()
        place = self._history.place_after(watch.told)
        if place >= self._live.may_join_at:
            watch.session.caught_up(watch)
            self._live.add(watch)
            return
        watch.session.falls_behind(watch, self._history.before(place))
        cursors = [cursor for cursor in self._cursors_behind if cursor.may_join_at <= place]
        if cursors:
            max(cursors, key=lambda cursor: cursor.place).add(watch)
            return
        self._next_cursor.place = min(self._next_cursor.place, place)
        self._next_cursor.add(watch)

    def _told_live(self) -> Position:
        """What all live watches were told; nothing while some of them are still to be told that they are too slow."""
        if not len(self._live):
            self._live.skip_to(self._history.end)
        if self._outrun or self._live.place < self._history.first:
            return Position(0)
        return self._history.before(self._live.place)

    def _tell(self, watch: Watch, events: Events, size: int) -> None:
        session = watch.session
        if session.is_over:
            return
        index = events.position.index
        if watch.cursor is not None and not session.has_room(self._limits, self._bytes_on_their_way):
            session.falls_behind(watch, self._history.before(watch.cursor.place))
            watch.cursor.discard(watch)
            watch.told = index - 1
            session.waiting[watch] = None
            self._waiting.add(watch.told, watch)
            return
        session.has_sent(size)
        self._bytes_on_their_way += size
        watch.told = index
        self.events_sent += 1
        self._say(session.route, watch.request_id, events)

    def _end(self, watch: Watch, reason: EndReason) -> None:
        self._drop(watch)
        if not watch.session.is_over:
            self.ended[reason.name.lower()] += 1
            self._say_ended(watch.session.route, watch.request_id, reason)

    def _drop(self, watch: Watch) -> None:
        session = watch.session
        del session.watches[watch.request_id]
        session.waiting.pop(watch, None)
        session.caught_up(watch)
        self._waiting.discard(watch)
        self._ahead.discard(watch)
        if watch.cursor is not None:
            watch.cursor.discard(watch)
        session.key_bytes -= watch.key_bytes
        self._key_bytes -= watch.key_bytes
        self.watch_count -= 1

    def _end_session(self, route: bytes, reason: str) -> None:
        session = self._sessions.pop(route, None)
        if session is not None:
            session.is_over = True
            self.ended[reason] += 1
            self._bytes_on_their_way -= session.bytes_on_their_way
            self._returning.pop(session, None)
            self._over.append(session)

    def _say(self, route: bytes, request_id: bytes, reply: WatchReply) -> None:
        self._out.append(ToRoute(route, request_id, reply))

    def _say_ended(self, route: bytes, request_id: bytes, reason: EndReason) -> None:
        self._say(route, request_id, WatchEnded(reason, self._history.oldest, self._history.applied))
