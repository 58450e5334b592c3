"""Decide for a mirror of the keys with one prefix what to ask next, what to show, and which events readers get.

::

    READING ---the last page is here---> FOLLOWING ---each event of a watch is applied---> FOLLOWING
       ^                                     |
       +------ the watch cannot go on -------+   history was outrun, an entry does not say what it did, ...

What a watch can no longer tell is read: all keys at one position, as they were shown before meanwhile. What differs
then is told as changes.

Invariant: what is shown is what the keys were at ``position``, all of it, and ``position`` never goes back.
Invariant: what a reader is told leads from the keys as they were when it began to the keys as they are shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final
from weakref import WeakSet

import attrs

from raft_client.core.key_value_calls import Range, ReadPage, bounds_of
from raft_client.core.stream_actions import Consumer
from raft_client.core.watch_events import WatchEvent, WatchItem
from raft_client.errors import (
    ClientClosedError,
    ConnectionLostError,
    ForkedClientError,
    HistoryOutrunError,
    LogError,
    OutOfDateLogError,
    TermMismatchError,
    TransportError,
)
from raft_client.wire.key_changes import Change, ChangeKind, Previous
from raft_client.wire.key_value_messages import Page
from raft_client.wire.log_entry import Position

#: What an event, and a change in it, costs beside keys and values.
_EVENT_BYTES: Final = 100
#: What reading cannot mend when a watch has ended with it. Much else can end one: an outrun history, a transaction with
#: comparisons in a watch that reads the log, an exception of a signal's handler that came while an event was looked at.
_FINAL: Final = (ClientClosedError, ForkedClientError, TermMismatchError)


@attrs.frozen
class MirrorEvent:
    """All changes of a mirror since the event before, up to ``position``.

    Each change has in ``previous`` what the key had. With ``is_difference`` the event leaves out the steps in between
    and says only what differs, because the mirror has read its keys again, its reader was slow, or it is the first one
    of ``changes(initial=True)``, which says what differs from no keys at all.
    """

    position: Position
    changes: tuple[Change, ...]
    is_difference: bool = False

    @property
    def index(self) -> int:
        """The number of the last entry that it stands for."""
        return self.position.index


# -- the events of readers ---------------------------------------------------------------------------------------------


class ChangeQueue:
    """Keeps the events that one reader has not taken yet.

    When more than ``limit`` bytes wait, the queue merges them into one event, and further ones into that, until the
    reader comes: so it holds no more than what the reader has seen and what the mirror shows now differ by.
    """

    def __init__(self, limit: int, consumer: Consumer) -> None:
        self._limit = limit
        self._consumer = consumer
        self._events: deque[MirrorEvent] = deque()
        self.size: int = 0  # bytes of these
        #: Key -> its value in the last event that the reader took, and now; None while single events wait.
        self._differing: dict[bytes, tuple[bytes | None, bytes | None]] | None = None
        self._position = Position(0)  # of the difference

    def push(self, event: MirrorEvent) -> None:
        """This happened next."""
        if self._differing is None:
            self._events.append(event)
            self.size += _size(event)
            if self.size > self._limit and len(self._events) > 1:
                self._differing = {}
                for waiting in self._events:
                    self._merge(waiting)
                self._events.clear()
                self.size = 0
        else:
            self._merge(event)
        self._consumer.notify()

    def pop(self) -> MirrorEvent | None:
        """The next event; None if there is none."""
        if self._differing is not None:
            differing, self._differing = self._differing, None
            changes = tuple(_change(key, *values) for key, values in differing.items())
            return MirrorEvent(self._position, changes, is_difference=True) if changes else None
        if not self._events:
            return None
        event = self._events.popleft()
        self.size -= _size(event)
        return event

    def notify(self) -> None:
        """The mirror has ended."""
        self._consumer.notify()

    def _merge(self, event: MirrorEvent) -> None:
        assert self._differing is not None  # noqa: S101 - its callers see to it
        self._position = event.position
        for change in event.changes:
            before = change.previous.value if change.previous is not None else None
            first, _ = self._differing.get(change.key, (before, None))
            if first == change.value:
                self._differing.pop(change.key, None)
            else:
                self._differing[change.key] = (first, change.value)


def _size(event: MirrorEvent) -> int:
    size = _EVENT_BYTES
    for change in event.changes:
        before = change.previous.value if change.previous is not None else None
        size += _EVENT_BYTES + len(change.key) + len(change.value or b"") + len(before or b"")
    return size


def _change(key: bytes, before: bytes | None, value: bytes | None) -> Change:
    return Change(ChangeKind.DELETE if value is None else ChangeKind.SET, key, value, Previous(before))


# -- the mirror --------------------------------------------------------------------------------------------------------


class Mirror:
    """Everything that is decided about one mirror. No clock, no sockets.

    While :attr:`is_reading`, ask for :meth:`next_page` and give its answer to :meth:`take_page`, or its error to
    :meth:`page_failed`; then watch the prefix after :attr:`position`, and give what comes to :meth:`take_item` and
    :meth:`watch_ended`. With an :attr:`error` it is over.
    """

    def __init__(self, ident: bytes, prefix: bytes) -> None:
        self._ident = ident
        self.prefix: bytes = prefix
        #: What is shown. Empty before all of it was read for the first time.
        self.values: dict[bytes, bytes] = {}
        #: What is shown is what keys were there; None: nothing is shown yet.
        self.position: Position | None = None
        #: Why nothing more will change.
        self.error: Exception | None = None
        self._range: Range | None = self._new_range()  # None: a watch is followed
        self._read: dict[bytes, bytes] = {}  # what its pages had
        self._failed_at: Position | None = None  # where the last watch ended that should not have
        self._queues: WeakSet[ChangeQueue] = WeakSet()  # a reader that was dropped takes its queue with it
        self._waiting: list[Consumer] = []  # for a position

    @property
    def is_reading(self) -> bool:
        """Whether the next step is to ask for a page; else it is to watch. Nothing of the kind, if it is over."""
        return self._range is not None and self.error is None

    # -- reading -------------------------------------------------------------------------------------------------------

    def next_page(self) -> ReadPage:
        """The question that is next while it reads."""
        assert self._range is not None  # noqa: S101 - it reads
        return self._range.next_page()

    def take_page(self, page: Page) -> None:
        """The answer to it. With the last page all of them are shown."""
        assert self._range is not None  # noqa: S101 - it reads
        self._read.update(self._range.take(page))
        position = self._range.position
        assert position is not None  # noqa: S101 - a page was taken
        if (error := self._contradiction(position)) is not None:
            self.end(error)
        elif self._range.is_complete:
            self._show(position)

    def page_failed(self, error: Exception) -> None:
        """There is no such page: all of them are asked for again, the same one is, or it is over."""
        if isinstance(error, HistoryOutrunError):
            self._begin()
        elif self.position is None or not isinstance(error, TransportError | OutOfDateLogError):
            self.end(error)

    def _show(self, position: Position) -> None:
        is_first = self.position is None
        shown, self.values = self.values, self._read
        self._range, self._read = None, {}
        changes = [] if is_first else _difference(shown, self.values)
        self._advance(position, changes, is_difference=True)

    def _contradiction(self, position: Position) -> LogError | None:
        """Why a position of now cannot be of the log that is mirrored: a log grows, and its terms do not fall."""
        known = self.position
        if known is None:
            return None
        if position.index < known.index:
            return OutOfDateLogError(f"the log ends at {position}, and the mirror has shown {known}: it is another log")
        is_same = position.index == known.index
        if known.term and position.term and (position.term != known.term if is_same else position.term < known.term):
            return TermMismatchError(
                f"the log has the position {position}, and the mirror has shown {known}: it is another log",
                index=known.index,
                term=known.term,
                found_term=position.term,
            )
        return None

    # -- following -----------------------------------------------------------------------------------------------------

    def take_item(self, item: WatchItem) -> None:
        """The watch has handed this out."""
        if self.position is None or item.position.index <= self.position.index:
            return  # what was read shows it
        changes = self._apply(item.changes) if isinstance(item, WatchEvent) else []
        self._advance(item.position, changes)

    def watch_ended(self, error: Exception) -> None:
        """Read again what the watch can no longer say; end if a watch fails twice at one position, as reading did not
        help."""
        is_again = self._failed_at == self.position
        self._failed_at = self.position
        is_lost = isinstance(error, ConnectionLostError)  # an exception has cut it, which says nothing of the log
        if isinstance(error, _FINAL) or (is_again and not is_lost):
            self.end(error)
        else:
            self._begin()

    def _begin(self) -> None:
        self._range, self._read = self._new_range(), {}

    def _new_range(self) -> Range:
        return Range(self._ident, *bounds_of(self.prefix, None, None), None, keys_only=False, stale=False)

    def _apply(self, changes: Iterable[Change]) -> list[Change]:
        """Make them, in their order. Returns what was really changed."""
        done = []
        for change in changes:
            before = self.values.get(change.key)
            if change.value is not None:
                self.values[change.key] = change.value
            elif before is not None:
                del self.values[change.key]
            else:
                continue
            done.append(_change(change.key, before, change.value))
        return done

    def _advance(self, position: Position, changes: list[Change], *, is_difference: bool = False) -> None:
        self.position = position
        if changes:
            event = MirrorEvent(position, tuple(changes), is_difference)
            for queue in self._queues:
                queue.push(event)
        self._notify()

    # -- who listens ---------------------------------------------------------------------------------------------------

    def add_reader(self, queue: ChangeQueue, *, initial: bool = False) -> None:
        """Tell it what happens from now on; with ``initial`` what is shown now, first."""
        if initial:
            assert self.position is not None  # noqa: S101 - readers come when all is read
            changes = tuple(_change(key, None, value) for key, value in sorted(self.values.items()))
            queue.push(MirrorEvent(self.position, changes, is_difference=True))
        self._queues.add(queue)

    def drop_reader(self, queue: ChangeQueue) -> None:
        """Tell it nothing more."""
        self._queues.discard(queue)

    def shows(self, index: int) -> bool:
        """Whether the entry at ``index`` is among what is shown."""
        return self.position is not None and self.position.index >= index

    def add_waiting(self, consumer: Consumer) -> None:
        """Notify it when the position changes, and at the end."""
        self._waiting.append(consumer)

    def drop_waiting(self, consumer: Consumer) -> None:
        """Notify it no longer."""
        self._waiting.remove(consumer)

    def _notify(self) -> None:
        for consumer in self._waiting:
            consumer.notify()

    def end(self, error: Exception) -> None:
        """Nothing more changes. What is shown stays."""
        if self.error is None:
            self.error = error
            self._read = {}
            self._notify()
            for queue in self._queues:
                queue.notify()


def _difference(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> list[Change]:
    gone = [_change(key, value, None) for key, value in before.items() if key not in after]
    return gone + [_change(key, before.get(key), value) for key, value in after.items() if before.get(key) != value]
