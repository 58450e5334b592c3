"""Whatever happens, each watch is told each change of its keys once and in order, or that it missed some.

Mistakes that are planted in the WatchServer are found by the schedules: so these would find such a mistake.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from watch_model import Schedule

from raft_client.server.machines import watch_server
from raft_client.server.machines.change_history import ChangeHistory
from raft_client.server.machines.watch_server import HistoryCursor, Session, WatchServer
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import EndReason

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_SCHEDULES = 400


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few steps that a turn ends in the middle of an entry."""
    monkeypatch.setattr(watch_server, "_TURN_STEPS", 14)
    monkeypatch.setattr(watch_server, "_ROUND_STEPS", 5)
    monkeypatch.setattr(watch_server, "_MOST_CURSORS", 2)


@pytest.mark.parametrize("first", range(0, MOST_SCHEDULES, 50))
def test_nothing_is_missed_and_nothing_told_twice(first: int) -> None:
    """In any schedule each watch is told everything once and in order, or that it is not."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + 50):
        seen.update(Schedule(seed).run())
    for what in ("Events", "WatchProgress", "NoSession", "TOO_SLOW", "HISTORY_OUTRUN", "OTHER_LOG", "TOO_MANY"):
        assert seen[what], f"the schedules do not lead to {what}"


# -- mistakes ----------------------------------------------------------------------------------------------------------

_MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {}


def mutant(owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The function takes the place of this method; it is given the right one first."""

    def plant(broken: Callable[..., Any]) -> Callable[..., Any]:
        function = broken.fget if isinstance(broken, property) else broken
        assert function is not None
        _MUTANTS[function.__name__] = (owner, name, broken)
        return broken

    return plant


@mutant(ChangeHistory, "place_after")
def tells_the_entry_at_the_position_again(right: Any, self: Any, index: int) -> int:
    return int(self._start + max(bisect_left(self._indexes, index), self._dropped))


@mutant(ChangeHistory, "append")
def forgets_where_terms_begin(right: Any, self: Any, index: int, term: int, changes: Any = (), *rest: Any) -> None:
    if changes:
        right(self, index, term, changes, *rest)
    else:
        self.index, self.term = index, term


@mutant(ChangeHistory, "oldest")
@property  # type: ignore[misc]  # mypy: it takes the place of one in a class
def says_that_it_reaches_back_further(self: Any) -> int:
    return int(self._before.at)


@mutant(ChangeHistory, "contradicts")
def takes_positions_of_any_log(right: Any, self: Any, position: Position) -> bool:
    return False


@mutant(ChangeHistory, "contradicts")
def compares_only_what_is_applied(right: Any, self: Any, position: Position) -> bool:
    return bool(position.index <= self.index and right(self, position))


@mutant(WatchServer, "_compare")
def compares_positions_only_at_the_begin(right: Any, self: Any, watch: Any) -> None:
    pass


@mutant(WatchServer, "_join")
def joins_the_live_watches_whatever_it_missed(right: Any, self: Any, watch: Any) -> None:
    self._told_live()
    watch.session.caught_up(watch)
    self._live.add(watch)


@mutant(HistoryCursor, "may_join_at")
@property  # type: ignore[misc]  # mypy: it takes the place of one in a class
def joins_in_the_middle_of_an_entry(self: Any) -> int:
    return int(self.place)


@mutant(HistoryCursor, "add")
def begins_where_live_watches_are(right: Any, self: Any, watch: Any) -> None:
    if watch.request.after is None and not watch.session.sent:
        watch.told = 0
    right(self, watch)


@mutant(WatchServer, "_tell")
def drops_what_a_slow_client_has_no_room_for(right: Any, self: Any, watch: Any, events: Any, size: int) -> None:
    if watch.session.has_room(self._limits, self._bytes_on_their_way):
        right(self, watch, events, size)


@mutant(WatchServer, "_tell")
def skips_what_had_no_room(right: Any, self: Any, watch: Any, events: Any, size: int) -> None:
    right(self, watch, events, size)
    if watch.cursor is None:
        self._waiting.discard(watch)
        watch.told += 1
        self._waiting.add(watch.told, watch)


@mutant(Session, "falls_behind")
def tells_progress_to_watches_that_are_behind(right: Any, self: Any, watch: Any, position: Any) -> None:
    pass


@mutant(WatchServer, "_told_live")
def tells_progress_of_what_is_still_to_be_told(right: Any, self: Any) -> Position:
    right(self)
    applied: Position = self._history.applied
    return applied


@mutant(Session, "caught_up")
def forgets_who_is_behind_when_one_has_caught_up(right: Any, self: Any, watch: Any) -> None:
    right(self, watch)
    self.behind_from = None


@mutant(WatchServer, "request")
def answers_any_session(right: Any, self: Any, route: bytes, request_id: bytes, request: Any, now: float) -> None:
    session = self._sessions.get(route)
    if session is not None and hasattr(request, "session"):
        request = type(request)(b"", session.number, request.messages)
    right(self, route, request_id, request, now)


@mutant(WatchServer, "request")
def numbers_sessions_from_the_same_number(
    right: Any, self: Any, route: bytes, request_id: bytes, request: Any, now: float
) -> None:
    if route not in self._sessions:
        self._next_session = 1
    right(self, route, request_id, request, now)


@mutant(WatchServer, "refused")
def goes_on_when_a_message_was_refused(right: Any, self: Any, route: bytes) -> None:
    pass


@mutant(WatchServer, "restored")
def goes_on_after_a_snapshot(right: Any, self: Any, applied: Position) -> None:
    self._history.restored(applied)
    self._live.skip_to(self._history.end)


@mutant(WatchServer, "_end_slow")
def goes_on_with_what_is_left_of_the_history(right: Any, self: Any, steps: int) -> int:
    for cursor in (self._live, self._next_cursor, *self._cursors_behind):
        if cursor.place < self._history.first:
            cursor.skip_to(self._history.first)
    while (watch := self._waiting.pop(self._history.oldest - 2)) is not None:
        watch.told = self._history.oldest - 1
        self._waiting.add(watch.told, watch)
    return steps


@mutant(WatchServer, "_end_slow")
def takes_slow_watches_away_without_a_word(right: Any, self: Any, steps: int) -> int:
    self._say_ended, say = (lambda *_: None), self._say_ended
    try:
        return int(right(self, steps))
    finally:
        self._say_ended = say


@mutant(WatchServer, "_drop")
def leaves_a_watch_that_was_cancelled_among_the_others(right: Any, self: Any, watch: Any) -> None:
    cursor, watch.cursor = watch.cursor, None
    right(self, watch)
    watch.cursor = cursor


@mutant(WatchServer, "_return")
def wakes_nobody_who_waited_for_room(right: Any, self: Any, steps: int) -> int:
    self._returning.clear()
    return steps


@mutant(WatchServer, "_return")
def wakes_one_watch_of_a_client_alone(right: Any, self: Any, steps: int) -> int:
    steps = right(self, steps)
    for session in self._sessions.values():
        while len(session.waiting) > 2:
            session.waiting.popitem()
    return steps


@mutant(Session, "has_seen")
def counts_what_arrived_from_the_last_time(right: Any, self: Any, messages: int) -> int:
    return int(right(self, self.seen + messages))


@mutant(WatchServer, "_merge")
def makes_watches_live_before_they_are_there(right: Any, self: Any, cursor: Any, steps: int) -> int:
    while len(cursor) and cursor.is_between_items and cursor.place + 1 >= self._live.may_join_at:
        watch = cursor.some()
        cursor.discard(watch)
        watch.session.caught_up(watch)
        self._live.add(watch)
    return steps


@mutant(WatchServer, "_why_not")
def takes_one_watch_too_few(right: Any, self: Any, session: Any, key_bytes: int, after: Any) -> EndReason | None:
    if self.watch_count >= self._limits.watches - 1:
        return EndReason.TOO_MANY
    reason: EndReason | None = right(self, session, key_bytes, after)
    return reason


@pytest.mark.parametrize("name", _MUTANTS)
@pytest.mark.turns(3)
@pytest.mark.ci
def test_a_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes makes one of the first schedules fail."""
    owner, method, broken = _MUTANTS[name]
    right = getattr(owner, method)
    planted = broken if isinstance(broken, property) else lambda *arguments: broken(right, *arguments)
    monkeypatch.setattr(owner, method, planted)
    for seed in range(MOST_SCHEDULES):
        try:
            Schedule(seed).run()
        except (AssertionError, KeyError, IndexError):
            return
    pytest.fail(f"{name} is not found in {MOST_SCHEDULES} schedules")
