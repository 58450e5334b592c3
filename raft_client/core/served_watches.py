"""Watches that the leader serves: each is begun there, and goes on where it stopped when it has to be begun again.

::

    begin() --> waits for the greeting, and for its turn --> asked --Watching--> SERVED --events-->  queue
      ^                                                                            |
      +--- the connection or the session is over, the consumer has made room ------+
                                                                                   |
    the leader does not remember as much, or its log is another one: the log is read (log_watches) and tells

Invariant: a watch takes each event after ``watch.seen`` once, in order.
Invariant: what the leader is told to have arrived is what arrived in its session, also of watches that have ended here:
their calls stay until the leader says that they are over.

Source: State Watch pattern, "Handling Connection Failures"; ``docs/decisions/raft-watches.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from raft_client.core.calls import Call
from raft_client.core.log_watches import LogWatches
from raft_client.core.served_watch_calls import Greeting, ServedWatch, SessionCall, SessionReply
from raft_client.core.stream_actions import Cancel, FollowUp, Submit
from raft_client.core.watch_events import Phase, Progress, WatchState
from raft_client.core.watch_table import WatchTable
from raft_client.errors import ProtocolError, RaftError
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    EndReason,
    Events,
    NoSession,
    WatchEnded,
    Watching,
    WatchProgress,
    WatchReply,
)

#: So many are begun before the first of them is answered: a connection holds a thousand messages.
_BEGINS_AT_ONCE: Final = 256
#: The leader is told after each 64 messages with events; it sends four times as many ahead.
_ACK_EVERY: Final = 64
#: A leader forgets a client that is silent for 30 s, and the rarer its signs of life, the later a loss is noticed.
_MAX_HEARTBEAT_S: Final = 1.0


@attrs.define
class WatchSession:
    """The last session, and how many messages with events have arrived in it. It outlives the watches of a client."""

    number: int = 0  # 0: none yet
    messages: int = 0


class ServedWatches:
    """All watches of a client that its leader serves, and those that wait for that.

    ``heard`` is called before each reply of the leader is dealt with; it returns the time, in monotonic seconds.
    """

    def __init__(
        self, table: WatchTable, log: LogWatches, session: WatchSession, silence_s: float, heard: Callable[[], float]
    ) -> None:
        self._table = table
        self._log = log
        self._session = session
        self._heard = heard
        self._heartbeat_s = min(_MAX_HEARTBEAT_S, silence_s / 3.0)
        self._call: SessionCall | None = None
        self._is_greeted = False
        self._watches: dict[ServedWatch, WatchState | None] = {}  # None: it is ending
        self._asked: dict[ServedWatch, None] = {}  # of those, the unanswered ones
        #: For each sign of life that is under way: what must be answered before it is.
        self._due: deque[list[ServedWatch]] = deque()
        self._to_begin: dict[WatchState, None] = {}
        self._told = 0  # messages that the leader was told of
        #: When :meth:`tick` has something to do, in monotonic seconds; None: never.
        self.heartbeat_at: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the leader has been told the end of all of them, and nothing is missing of what it sent before."""
        return self._call is None

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def begin(self, watch: WatchState) -> None:
        """Serve this watch from where it is; nothing if that is under way.

        The leader compares terms. If the id of an entry is known, too, the log is asked first whether it has that.
        """
        if watch.served is None and watch.started_after is None and watch.after is not None and watch.after.entry_id:
            self._log.confirm(watch, watch.after)
        elif watch.served is None:
            self._to_begin[watch] = None
            if self._call is None:
                self._call = SessionCall(self._table.ident, self._session_reply)
                self._table.actions.append(Submit(self._call))
            self._begin_some()
            if watch in self._to_begin and watch.after is None and watch.started_after is None:
                # It has to wait, and what its client appends meanwhile comes after its start: that is asked for first.
                del self._to_begin[watch]
                self._log.ask_for_the_end(watch)

    def drop(self, watch: WatchState) -> None:
        """Serve it no longer."""
        self._to_begin.pop(watch, None)
        call, watch.served = watch.served, None
        if call is not None:
            self._watches[call] = None
            self._cancel(call)

    def _cancel(self, call: ServedWatch) -> None:
        frames = call.cancel()
        if frames is not None:
            self._table.actions.append(FollowUp(call, (frames,)))

    def tick(self, now: float) -> None:
        """Time has passed. While an answer is due, the request machine sees to it that one comes."""
        if self.heartbeat_at is not None and now >= self.heartbeat_at:
            self.heartbeat_at = now + self._heartbeat_s
            if self._call is not None and self._call.paused:
                self._acknowledge()

    def _begin_some(self) -> None:
        while self._to_begin and self._is_greeted and self._call is not None and len(self._asked) < _BEGINS_AT_ONCE:
            watch = next(iter(self._to_begin))
            del self._to_begin[watch]
            after = watch.after if watch.started_after is None else watch.seen
            call = watch.served = ServedWatch(self._table.ident, watch.selector, after, self._call, self._watch_reply)
            self._watches[call] = watch
            self._asked[call] = None
            self._table.actions.append(Submit(call))

    def _acknowledge(self) -> None:
        """Not while another peer is greeted: what comes meanwhile comes from the last one."""
        if self._call is not None and self._call.is_greeted:
            self._told = self._session.messages
            self._due.append(list(self._asked))
            frames = self._call.seen(self._session.number, self._session.messages)
            self._table.actions.append(FollowUp(self._call, (frames,)))

    # -- what the leader says ------------------------------------------------------------------------------------------

    def _watch_reply(self, call: ServedWatch, reply: WatchReply) -> None:
        if call not in self._watches:
            return  # it was cancelled, and the request machine does not know yet
        self._heard()
        if type(reply) is Events:
            self._events(call, reply)
        elif type(reply) is Watching:
            self._watching(call, reply)

    def _session_reply(self, call: SessionCall, reply: SessionReply) -> None:
        if call is not self._call:
            return  # likewise
        self.heartbeat_at = self._heard() + self._heartbeat_s
        match reply:
            case Greeting():
                self._is_greeted = True
                if reply.is_new:
                    self._due.clear()
                    self._begin_again(list(self._watches))
            case WatchProgress() if reply.session == self._session.number:
                self._progress(reply.place)
            case NoSession() if reply.session == self._session.number != 0:
                self._begin_again(list(self._watches))
        if isinstance(reply, WatchProgress | NoSession):
            self._ask_again(self._due.popleft() if self._due else [])
        self._begin_some()
        self._stop_if_unused()

    def _ask_again(self, calls: list[ServedWatch]) -> None:
        """These should have been answered: they were lost."""
        for call in calls:
            is_lost = self._asked.pop(call, call) is None and not call.is_over
            if is_lost and (watch := self._watches[call]) is not None:
                self.drop(watch)
                self.begin(watch)

    def _progress(self, position: Position) -> None:
        for call, watch in self._watches.items():
            if watch is None or call.is_over:  # what it lacks may come before this
                continue
            if watch.phase is Phase.SERVED and position.index > watch.seen.index:
                watch.seen = position
                if watch.tells_progress and watch.idle:
                    watch.push(Progress(watch.id, position), 0)

    def _watching(self, call: ServedWatch, reply: Watching) -> None:
        self._asked.pop(call, None)
        if reply.session != self._session.number:
            self._session.number, self._session.messages, self._told = reply.session, 0, 0
            self._begin_again([each for each in self._watches if each.is_begun])
        call.is_begun = True
        watch = self._watches[call]
        if watch is None:  # it ended before it was sent, so the leader was not told
            self._cancel(call)
        else:
            self._serve(watch, reply.place)
        self._begin_some()

    def _serve(self, watch: WatchState, applied: Position) -> None:
        if watch.after is None or watch.after == Position(applied.index):
            watch.start_after(applied)  # which has a term
        else:
            watch.start_after(watch.after)
        if watch.seen.index > applied.index:
            self.drop(watch)
            watch.phase = Phase.BEHIND
            self._log.read(watch)  # it finds out whether the log was ever that long
            return
        watch.confirms = False
        watch.phase = Phase.SERVED
        watch.known_index = applied.index
        watch.notify()

    def _events(self, call: ServedWatch, reply: Events) -> None:
        self._session.messages += 1
        if self._session.messages - self._told >= _ACK_EVERY:
            self._acknowledge()
        watch = self._watches[call]
        if watch is None or reply.position.index <= watch.seen.index:
            return
        self._table.offer(watch, reply.position, reply.changes)

    def finished(self, call: Call, result: object) -> bool:
        """A call is over; False if it is none of these."""
        if call is self._call:
            self._not_offered()
        elif isinstance(call, ServedWatch) and call in self._watches:
            watch = self._forget(call)
            if isinstance(result, WatchEnded):
                self._ended(watch, result.reason)
            elif watch is not None:
                self._is_greeted = False  # it will be, over the present connection
                self.begin(watch)
            self._begin_some()
            self._stop_if_unused()
        else:
            return False
        return True

    def _ended(self, watch: WatchState | None, reason: EndReason) -> None:
        if watch is None:
            return
        if reason is EndReason.TOO_MANY:
            self._refuse()
        elif reason is EndReason.CANCELLED:
            self.begin(watch)
        else:
            if watch.after is not None:
                watch.start_after(watch.after)
            watch.phase = Phase.BEHIND
            watch.confirms = reason is EndReason.OTHER_LOG or watch.confirms
            if watch.size <= self._table.room(watch):
                self._log.read(watch)

    def failed(self, call: Call, error: RaftError) -> bool:
        """A call is over with an error; False if it is none of these."""
        if call is self._call:
            self._not_offered()  # what the leader says cannot be read
        elif isinstance(call, ServedWatch) and call in self._watches:
            watch = self._forget(call)
            if watch is not None and isinstance(error, ProtocolError):
                self._table.end(watch, error)
            elif watch is not None:
                self._is_greeted = False  # the connection broke: the session's call is on its way to the next leader
                self.begin(watch)
            self._stop_if_unused()
        else:
            return False
        return True

    # -- the end -------------------------------------------------------------------------------------------------------

    def _forget(self, call: ServedWatch) -> WatchState | None:
        self._asked.pop(call, None)
        watch = self._watches.pop(call)
        if watch is not None:
            watch.served = None
            if watch.phase is Phase.SERVED:
                watch.phase = Phase.BEHIND
        return watch

    def _begin_again(self, calls: list[ServedWatch]) -> None:
        """These are over at the leader, or never came there."""
        for call in calls:
            self._table.actions.append(Cancel(call))
            watch = self._forget(call)
            if watch is not None:
                self._to_begin[watch] = None

    def _not_offered(self) -> None:
        self._table.source = self._log
        self._call = None
        self.close()

    def _refuse(self) -> None:
        """The leader has no room: the log is read, and it is told the end of those that it has."""
        self._table.source = self._log
        self._to_begin.clear()
        for watch in list(self._watches.values()):
            if watch is not None:
                self.drop(watch)

    def stop(self) -> None:
        """Without watches nothing is asked, once the leader has said that they are over."""
        self._table.source = self
        self._stop_if_unused()

    def _stop_if_unused(self) -> None:
        if not self._watches and (self._table.source is not self or not self._table.watches):
            self.close()

    def close(self) -> None:
        """Ask no longer, whatever comes."""
        self._begin_again(list(self._watches))
        self._to_begin.clear()
        if self._call is not None:
            self._table.actions.append(Cancel(self._call))
        self._call = self.heartbeat_at = None
        self._is_greeted = False
