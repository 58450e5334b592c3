"""Mirrors under random schedules of writes, pages, events, slow readers and ends of watches; mutants that they find."""

from __future__ import annotations

import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from raft_client import (
    Change,
    ChangeKind,
    ClientClosedError,
    ConnectionLostError,
    ForkedClientError,
    HistoryOutrunError,
    MirrorEvent,
    NoLeaderError,
    OutOfDateLogError,
    Position,
    Previous,
    Progress,
    ProtocolError,
    RequestTimeoutError,
    TermMismatchError,
    WatchEvent,
)
from raft_client.core import key_value_calls, mirrors
from raft_client.core.calls import Finished
from raft_client.core.key_value_calls import ReadPage
from raft_client.core.mirrors import ChangeQueue, Mirror
from raft_client.wire.key_value_messages import Outrun, Page, ReadKeys

PREFIX = b"p/"
KEYS = (b"p/a", b"p/b", b"p/c", b"p/d", b"p/e", b"o", b"q")
SCHEDULES = 200


class Signal:
    """What waits for something; counts how often it was woken."""

    def __init__(self) -> None:
        self.woken = 0

    def notify(self) -> None:
        self.woken += 1


class Log:
    """Entries that set and delete keys, in terms that rise."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, tuple[Change, ...]]] = []
        self.term = 1
        #: What keys were before this entry is forgotten.
        self.oldest = 0

    @property
    def end(self) -> int:
        return len(self.entries)

    def position(self, index: int) -> Position:
        return Position(index, self.entries[index - 1][0] if index else 0)

    def write(self, *changes: tuple[bytes, bytes | None]) -> None:
        kinds = {True: ChangeKind.DELETE, False: ChangeKind.SET}
        made = tuple(Change(kinds[value is None], key, value) for key, value in changes)
        self.entries.append((self.term, made))

    def at(self, index: int) -> dict[bytes, bytes]:
        """The keys with the prefix as they were there."""
        found: dict[bytes, bytes] = {}
        for _, changes in self.entries[:index]:
            for change in changes:
                if change.value is None:
                    found.pop(change.key, None)
                elif change.key.startswith(PREFIX):
                    found[change.key] = change.value
        return found

    def answer(self, call: ReadPage) -> Page | Outrun:
        """As a peer answers, by the bytes of the question."""
        asked = ReadKeys.from_frames(call.frames())
        index = self.end if asked.at is None else asked.at
        if index < self.oldest:
            return Outrun(self.oldest, self.end)
        found = [item for item in sorted(self.at(index).items()) if asked.first <= item[0] < asked.end]
        page, rest = found[: asked.limit], found[asked.limit :]
        return Page(self.position(index), rest[0][0] if rest else b"", tuple(page))


class Reader:
    """Takes events when it likes to, and does what they say to what it knows."""

    def __init__(self, mirror: Mirror, limit: int) -> None:
        self.queue = ChangeQueue(limit, Signal())
        mirror.add_reader(self.queue)
        self.known = dict(mirror.values)
        self.position = mirror.position or Position(0)

    def take(self) -> MirrorEvent | None:
        event = self.queue.pop()
        if event is not None:
            assert event.position.index > self.position.index
            assert event.changes
            self.position = event.position
            for change in event.changes:
                assert change.previous == Previous(self.known.get(change.key))
                assert (change.kind is ChangeKind.DELETE) == (change.value is None)
                if change.value is None:
                    del self.known[change.key]
                else:
                    self.known[change.key] = change.value
        return event


class Schedule:
    """A log, a mirror of it with readers, and what may happen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log = Log()
        self.mirror = Mirror(b"", PREFIX)
        self.readers: list[Reader] = []
        self.watched = 0  # the watch has handed out the entries up to here
        self.read_at = -1  # what was shown when a watch ended last
        self.shown = -1
        self.steps: list[Callable[[], None]] = [
            self.write, self.write, self.write, self.forget, self.new_term, self.go_on, self.go_on, self.go_on,
            self.go_on, self.fail, self.join, self.take, self.take,
        ]  # fmt: skip

    def run(self, steps: int = 80) -> None:
        for _ in range(steps):
            self.random.choice(self.steps)()
            self.check()
        while self.mirror.is_reading or self.watched < self.log.end:
            self.go_on()
            self.check()
        assert self.mirror.position == self.log.position(self.log.end)
        for reader in self.readers:
            while reader.take():
                pass
            assert reader.known == self.mirror.values

    def check(self) -> None:
        assert self.mirror.error is None
        if self.mirror.position is None:
            assert self.mirror.values == {}
            return
        index = self.mirror.position.index
        assert index >= self.shown, "it shows an older state"
        assert self.mirror.position == self.log.position(index)
        assert self.mirror.values == self.log.at(index)
        assert self.mirror.shows(index)
        assert not self.mirror.shows(index + 1)
        self.shown = index

    # -- what may happen -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        keys = self.random.choices(KEYS, k=self.random.randint(1, 3))
        self.log.write(*((key, self.random.choice([None, b"1", b"2", b"%d" % self.log.end])) for key in keys))

    def forget(self) -> None:
        if self.random.random() < 0.3:
            self.log.oldest = self.log.end

    def new_term(self) -> None:
        self.log.term += 1

    def go_on(self) -> None:
        """The next page, or the next item of the watch, or one that was handed out before."""
        if self.mirror.is_reading:
            self.page()
            return
        for _ in range(self.random.randint(1, 3)):
            if self.watched < self.log.end:
                self.watched += 1
                self.item(self.watched)
        if self.random.random() < 0.1 and self.watched:
            self.item(self.random.randint(1, self.watched))

    def page(self) -> None:
        call = self.mirror.next_page()
        if self.mirror.position is not None and self.random.random() < 0.1:
            self.mirror.page_failed(self.random.choice([NoLeaderError(), RequestTimeoutError(), OutOfDateLogError()]))
            return
        answer = self.log.answer(call)
        if isinstance(answer, Outrun):
            self.mirror.page_failed(HistoryOutrunError(snapshot_index=answer.oldest))
            return
        verdict = call.receive(answer.to_frames())
        assert isinstance(verdict, Finished)
        self.mirror.take_page(verdict.result)
        if not self.mirror.is_reading:
            assert self.mirror.position is not None
            self.watched = self.mirror.position.index

    def item(self, index: int) -> None:
        changes = tuple(each for each in self.log.entries[index - 1][1] if each.key.startswith(PREFIX))
        position = self.log.position(index)
        self.mirror.take_item(WatchEvent(1, position, changes) if changes else Progress(1, position))

    def fail(self) -> None:
        """The watch ends; if the log has not grown since the last time, by an exception that has cut it."""
        if self.mirror.is_reading or self.random.random() < 0.5:
            return
        may_be_any = self.read_at < self.shown
        self.read_at = self.shown
        errors = (
            [HistoryOutrunError(), ProtocolError(), OutOfDateLogError(), ValueError("a handler's")]
            if may_be_any
            else [ConnectionLostError()]
        )
        self.mirror.watch_ended(self.random.choice(errors))

    def join(self) -> None:
        if self.mirror.position is not None and len(self.readers) < 4:
            self.readers.append(Reader(self.mirror, self.random.choice([1, 1_000, 10**6])))

    def take(self) -> None:
        if self.readers:
            self.random.choice(self.readers).take()


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_calls, "PAGE_KEYS", 2)


@pytest.mark.parametrize("start", range(0, SCHEDULES, 50))
def test_a_mirror_shows_the_keys_at_its_position_and_tells_all_that_differs(start: int) -> None:
    """Whatever happens, it never shows an older state, and what readers are told leads to what is shown."""
    for seed in range(start, start + 50):
        try:
            Schedule(seed).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# -- mutants -----------------------------------------------------------------------------------------------------------

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def mutant(change: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    MUTANTS[change.__name__] = change
    return change


@mutant
def applies_an_older_event(patch: pytest.MonkeyPatch) -> None:
    """What was read is overwritten by what had happened before."""

    def take_item(self: Mirror, item: Any) -> None:
        assert self.position is not None
        changes = self._apply(item.changes) if isinstance(item, WatchEvent) else []
        self._advance(max(item.position, self.position), changes)

    patch.setattr(Mirror, "take_item", take_item)


@mutant
def misses_the_difference_after_reading_again(patch: pytest.MonkeyPatch) -> None:
    """The keys are shown as they are, and nobody is told what has become of them."""
    patch.setattr(mirrors, "_difference", lambda _before, _after: [])


@mutant
def does_not_tell_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A key that was deleted meanwhile is not among the differences."""
    difference = mirrors._difference

    def of_what_is_left(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> list[Change]:
        return [change for change in difference(before, after) if change.value is not None]

    patch.setattr(mirrors, "_difference", of_what_is_left)


@mutant
def is_complete_before_the_reading_ends(patch: pytest.MonkeyPatch) -> None:
    """The first page is shown as if it were all."""

    def take_page(self: Mirror, page: Page) -> None:
        assert self._range is not None
        self._read.update(self._range.take(page))
        self._show(page.position)

    patch.setattr(Mirror, "take_page", take_page)


@mutant
def shows_pages_as_they_come(patch: pytest.MonkeyPatch) -> None:
    """While it reads again, new values are among old ones."""
    take_page = Mirror.take_page

    def show(self: Mirror, page: Page) -> None:
        take_page(self, page)
        self.values.update(self._read)

    patch.setattr(Mirror, "take_page", show)


@mutant
def keeps_pages_of_a_reading_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    """What another position had, and has been deleted since, stays."""
    patch.setattr(Mirror, "_begin", lambda self: setattr(self, "_range", self._new_range()))


@mutant
def asks_for_the_same_pages_when_they_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A reading that was outrun goes on where it was, without the position."""
    begin = Mirror._begin

    def go_on(self: Mirror) -> None:
        following = b"" if self._range is None else self._range._following
        begin(self)
        if following:
            assert self._range is not None
            self._range._following = following

    patch.setattr(Mirror, "_begin", go_on)


@mutant
def a_full_queue_drops_what_comes(patch: pytest.MonkeyPatch) -> None:
    """A slow reader misses what there was no room for."""
    push = ChangeQueue.push

    def drop(self: ChangeQueue, event: MirrorEvent) -> None:
        if self.size <= self._limit:
            push(self, event)

    patch.setattr(ChangeQueue, "push", drop)


@mutant
def a_difference_forgets_what_was_first(patch: pytest.MonkeyPatch) -> None:
    """Merged events say what a key had before the last of them."""

    def merge(self: ChangeQueue, event: MirrorEvent) -> None:
        assert self._differing is not None
        self._position = event.position
        for change in event.changes:
            assert change.previous is not None
            self._differing[change.key] = (change.previous.value, change.value)

    patch.setattr(ChangeQueue, "_merge", merge)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of getting it wrong is found by the schedules."""
    MUTANTS[name](monkeypatch)
    for seed in range(SCHEDULES):
        try:
            Schedule(seed).run()
        except Exception:  # noqa: BLE001 - whatever shows that something is wrong
            return
    pytest.fail(f"{SCHEDULES} schedules did not find it")


# -- the end -----------------------------------------------------------------------------------------------------------


def following(*values: tuple[bytes, bytes | None], term: int = 2) -> tuple[Mirror, Log]:
    """A mirror that follows, at the entry 3."""
    log, mirror = Log(), Mirror(b"", PREFIX)
    log.term = term
    for _ in range(2):
        log.write((b"o", b""))
    log.write(*values or ((b"p/a", b"1"),))
    read(mirror, log)
    return mirror, log


def read(mirror: Mirror, log: Log) -> None:
    while mirror.is_reading:
        answer = log.answer(mirror.next_page())
        assert isinstance(answer, Page)
        mirror.take_page(answer)


@pytest.mark.parametrize(
    ("entries", "term", "error"),
    [(2, 2, OutOfDateLogError), (3, 1, TermMismatchError), (3, 3, TermMismatchError), (4, 1, TermMismatchError)],
)
def test_another_log_ends_it(entries: int, term: int, error: type[Exception]) -> None:
    """What is read again cannot be an older state, nor that of a log with other terms; what was shown stays."""
    mirror, _ = following()
    signal = Signal()
    mirror.add_waiting(signal)
    reader = Reader(mirror, 1_000)
    mirror.watch_ended(HistoryOutrunError())
    other = Log()
    other.term = term
    for _ in range(entries):
        other.write((b"p/a", b"other"))
    read(mirror, other)
    assert isinstance(mirror.error, error)
    assert (mirror.values, mirror.position) == ({b"p/a": b"1"}, Position(3, 2))
    assert (signal.woken, reader.take()) == (1, None)


@pytest.mark.parametrize("error", [TermMismatchError(), ClientClosedError(), ForkedClientError()])
def test_what_reading_cannot_mend_ends_it(error: Exception) -> None:
    """A watch that ended with this would end again."""
    mirror, _ = following()
    mirror.watch_ended(error)
    assert mirror.error is error
    assert not mirror.is_reading
    mirror.end(ClientClosedError())
    assert mirror.error is error  # the first one


def test_reading_that_does_not_help_ends_it() -> None:
    """When the watch ends again where it ended the last time, it ends with that; not if it was cut by an exception."""
    mirror, log = following()
    for _ in range(3):
        mirror.watch_ended(ConnectionLostError())
        assert mirror.is_reading
        read(mirror, log)
    mirror.watch_ended(error := ProtocolError("an entry that cannot be read"))
    assert mirror.error is error


@pytest.mark.parametrize("error", [NoLeaderError(), ProtocolError()])
def test_the_first_reading_fails_with_its_error(error: Exception) -> None:
    """Nothing was shown: whoever wants the mirror is told why there is none."""
    mirror = Mirror(b"", PREFIX)
    mirror.page_failed(error)
    assert mirror.error is error


def test_a_position_without_a_term_contradicts_nothing() -> None:
    """A watch that reads the log may not know the term of where it is."""
    mirror, log = following()
    mirror.take_item(Progress(1, Position(4)))
    log.write((b"p/a", b"2"))
    mirror.watch_ended(HistoryOutrunError())
    read(mirror, log)
    assert (mirror.error, mirror.position, mirror.values) == (None, Position(4, 2), {b"p/a": b"2"})


def test_what_is_told_in_a_difference() -> None:
    """It says so; a key that is as before is not in it, and if all are, there is nothing to tell."""
    mirror, log = following((b"p/a", b"1"), (b"p/b", b"1"))
    quick, slow = Reader(mirror, 10_000), Reader(mirror, 1)
    for values in ((b"p/a", b"2"), (b"p/b", None)), ((b"p/a", b"1"), (b"p/c", b"3")), ((b"p/c", None), (b"p/b", b"1")):
        log.write(*values)
        mirror.take_item(WatchEvent(1, log.position(log.end), log.entries[-1][1]))
    events = [quick.take() for _ in range(3)]
    assert [event and (event.index, event.is_difference) for event in events] == [(4, False), (5, False), (6, False)]
    assert slow.take() is None
    log.write((b"p/a", None), (b"p/c", b"4"))
    mirror.watch_ended(HistoryOutrunError())
    read(mirror, log)
    told = MirrorEvent(
        Position(7, 2),
        (
            Change(ChangeKind.DELETE, b"p/a", None, Previous(b"1")),
            Change(ChangeKind.SET, b"p/c", b"4", Previous(None)),
        ),
        is_difference=True,
    )
    assert quick.take() == told == slow.take()


def test_a_reader_that_left_is_told_nothing() -> None:
    """Twice is harmless."""
    mirror, log = following()
    reader, signal = Reader(mirror, 1_000), Signal()
    mirror.add_waiting(signal)
    for _ in range(2):
        mirror.drop_reader(reader.queue)
    mirror.drop_waiting(signal)
    log.write((b"p/a", b"2"))
    mirror.take_item(WatchEvent(1, log.position(4), log.entries[3][1]))
    assert (reader.take(), signal.woken) == (None, 0)


def test_a_reader_that_was_dropped_costs_nothing_more() -> None:
    """Without an end of its own, as after ``break`` in a loop over the changes, its queue goes with it."""
    mirror, _log = following()
    reader = Reader(mirror, 1_000)
    assert len(mirror._queues) == 1
    del reader
    gc.collect()
    assert len(mirror._queues) == 0
