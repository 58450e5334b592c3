"""Watches over the log: selection, where they start, what they tell, how they end; R1 to R14."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_peer import ModelPeer, snapshot_bytes, state_entry
from model_shell import Shell
from model_watches import LineCodec, history, seen, start, take, watch, write
from support.schedules import scaled

from raft_client.core.log_watches import EventHistory
from raft_client.core.selectors import Key, Prefix, SelectorIndex, Tree, Where
from raft_client.core.watch_events import Phase, Progress, SnapshotEvent, WatchState
from raft_client.errors import ClientClosedError, HistoryOutrunError, InvalidArgumentError, ProtocolError
from raft_client.wire.key_changes import Change, ChangeKind
from raft_client.wire.log_entry import LogEntry, Position

# -- what is handed out -----------------------------------------------------------------------------------------------


def test_a_change_of_a_key_is_an_event() -> None:
    """A change, also a deletion and what follows it, is an event with watch id, position, kind, key and value (R3,
    R13)."""
    shell = start()
    w = watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1", b"a", b"a=2")
    events = take(shell, w)
    assert [(e.watch_id, e.position, e.changes) for e in events] == [
        (w.id, Position(1, 1), (Change(ChangeKind.SET, b"a", b"1"),)),
        (w.id, Position(3, 1), (Change(ChangeKind.DELETE, b"a"),)),
        (w.id, Position(4, 1), (Change(ChangeKind.SET, b"a", b"2"),)),
    ]


def test_every_watcher_of_a_key_is_served() -> None:
    """Several watches on a key, its parent and a condition all see its change, which is decoded once (R11)."""
    shell = start()
    selectors = [
        Key(b"servers/1"),
        Key(b"servers/1"),
        Prefix(b"serv"),
        Tree(b"servers"),
        Where(lambda c: c.value == b"up"),
    ]
    watches = [watch(shell, selector) for selector in selectors]
    other = watch(shell, Tree(b"server"))
    decoded = shell.codec.decoded
    write(shell, b"servers/1=up")
    assert [seen(take(shell, w)) for w in watches] == [[(1, [b"servers/1"])]] * 5
    assert take(shell, other) == []
    assert shell.codec.decoded == decoded + 1


def test_entries_of_others_are_passed_over() -> None:
    """Entries of other applications in the same log are ignored."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"-x", b"a=1", b"-y")
    assert seen(take(shell, w)) == [(2, [b"a"])]
    assert shell.machine.resume_after(w).index == 3


# -- where a watch starts ---------------------------------------------------------------------------------------------


def test_watches_resume_from_different_places_at_once() -> None:
    """Watches that resume from different places share one subscription once they have caught up (R4, R14)."""
    shell = start(history(40))
    watches = [watch(shell, Prefix(b"k"), after=after) for after in range(0, 40, 5)]
    write(shell, b"k=live")
    for after, w in zip(range(0, 40, 5), watches, strict=True):
        assert [index for index, _ in seen(take(shell, w))] == list(range(after + 1, 42))
    assert shell.listened == ["tcp://pub/1"]
    assert not shell.conversations


def test_what_was_seen_lately_is_resumed_from_memory() -> None:
    """A watch that is made again while others go on resumes from memory, without a request to the cluster."""
    shell = start()
    watch(shell, Key(b"other"))
    write(shell, b"a=1", b"a=2", b"a=3")
    asked = shell.ids
    w = watch(shell, Key(b"a"), after=1)
    assert seen(take(shell, w)) == [(2, [b"a"]), (3, [b"a"])]
    assert shell.ids == asked


def test_a_watch_starts_where_the_log_ended_after_it_was_made() -> None:
    """An answer to an earlier question about the log's end does not make a watch start before it was made."""
    shell = start(history(5))
    first = shell.machine.watch(Prefix(b""))
    shell.act()
    write(shell, b"a=1")
    second = shell.machine.watch(Prefix(b""))
    shell.act()
    shell.settle()
    assert (first.started_after.index, second.started_after.index) == (5, 6)
    assert seen(take(shell, first)) == [(6, [b"a"])]
    assert take(shell, second) == []


def test_a_leader_that_lags_does_not_fail_a_watch() -> None:
    """A watch whose start the former leader has told is not failed by a new leader that lags."""
    shell = start(history(9))
    shell.leader.applied = 5
    w = shell.machine.watch(Prefix(b""), after=8)
    shell.act()
    for _ in range(5):
        for call in list(shell.conversations):
            if shell.conversations[call].inbox:
                shell.deliver(call)
    assert w.error is None
    shell.leader.applied = None
    shell.settle()
    assert seen(take(shell, w)) == [(9, [b"k9"])]


# -- progress and state -----------------------------------------------------------------------------------------------


def test_an_idle_watch_hears_of_progress() -> None:
    """An idle watch is told its progress, from which it can resume, and progress never overtakes an event (R6)."""
    shell = start(progress_s=10.0)
    idle, busy = watch(shell, Key(b"never")), watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1")
    shell.advance(10.5)
    assert take(shell, idle) == [Progress(idle.id, Position(2, 1))]
    assert [item.index for item in take(shell, busy)] == [1]
    shell.advance(10)
    assert take(shell, idle) == []
    assert take(shell, busy) == [Progress(busy.id, Position(2, 1))]


def test_the_resume_point_is_what_was_handed_out() -> None:
    """The position of a watch is the last event taken, or the end of the log if nothing is queued."""
    shell = start(history(3))
    w = shell.machine.watch(Prefix(b"a"))
    assert shell.machine.resume_after(w) is None
    shell.act()
    shell.settle()
    assert shell.machine.resume_after(w).index == 3
    write(shell, b"a=1", b"b=1", b"a=2", b"b=2")
    assert shell.machine.resume_after(w).index == 3
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w).index == 4
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w).index == 7


def test_a_cancelled_watch_says_where_to_resume() -> None:
    """The position of a cancelled watch is before what was queued, so that the next watch gets it."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1", b"a=2", b"a=3")
    shell.machine.next_item(w, 0.0)
    shell.machine.cancel(w)
    assert shell.machine.resume_after(w).index == 1
    again = watch(shell, Prefix(b""), after=shell.machine.resume_after(w))
    assert [index for index, _ in seen(take(shell, again))] == [2, 3]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read_ends_the_watches() -> None:
    """An unreadable entry ends the watches, which could not tell what they missed, after the events before it."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1", b"!", b"b=1")
    assert seen(take(shell, w)) == [(1, [b"a"])]
    assert isinstance(w.error, ProtocolError)
    assert "entry 2: ValueError: broken" in w.error.message
    behind = watch(shell, Prefix(b""), after=0)
    assert seen(take(shell, behind)) == [(1, [b"a"])]
    assert isinstance(behind.error, ProtocolError)


def test_an_unreadable_entry_in_the_middle_of_history_stops_the_reader() -> None:
    """An unreadable entry in history stops the reader: the peer is told, and nothing after the entry is handed out."""
    log = history(30)
    log.frames[9] = log.frames[9][:20] + b"!"
    shell = start(log)
    w = watch(shell, Prefix(b""), after=0)
    assert [index for index, _ in seen(take(shell, w))] == list(range(1, 10))
    assert isinstance(w.error, ProtocolError)
    assert not shell.conversations
    assert not shell.leader.streams
    assert shell.machine.position == 0


def test_a_predicate_that_fails_ends_its_watch_alone() -> None:
    """An exception of a predicate ends its own watch and is its error (R12)."""
    shell = start(history(1))
    bad = watch(shell, Where(lambda c: c.value.startswith(b"x")))  # fails for deletions
    bad_behind = shell.machine.watch(Where(lambda c: c.value // 0), after=0)
    good = watch(shell, Prefix(b""))
    write(shell, b"a=x", b"a", b"a=y")
    assert seen(take(shell, bad)) == [(2, [b"a"])]
    assert isinstance(bad.error, AttributeError)
    assert isinstance(bad_behind.error, TypeError)
    assert len(take(shell, good)) == 3


# -- the end ----------------------------------------------------------------------------------------------------------


def test_cancelling_is_final() -> None:
    """A cancelled watch hands out nothing more, not even what was queued, and cancelling again does nothing (R9)."""
    shell = start()
    w, other = watch(shell, Prefix(b"")), watch(shell, Prefix(b""))
    write(shell, b"a=1")
    shell.machine.cancel(w)
    shell.machine.cancel(w)
    write(shell, b"b=1")
    assert take(shell, w) == []
    assert isinstance(w.error, ClientClosedError)
    assert len(take(shell, other)) == 2
    assert shell.machine.count == 1


@pytest.mark.parametrize("progress", range(6))
def test_without_watches_nothing_is_left(progress: int) -> None:
    """The last watch ends the subscription at whatever point it is, and the next watch starts a new one (R10)."""
    shell = start(history(100))
    w = shell.machine.watch(Prefix(b""), after=0)
    shell.act()
    for _ in range(progress):
        shell.deliver(next(c for c, conversation in shell.conversations.items() if conversation.inbox))
    shell.machine.cancel(w)
    shell.act()
    assert not shell.conversations
    assert shell.sub is None
    assert shell.machine.count == 0
    assert shell.machine.next_deadline() is None
    assert not shell.leader.streams
    again = watch(shell, Prefix(b""), after=98)
    assert len(take(shell, again)) == 2


class Consumer:
    """Counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def notify(self) -> None:
        self.woken += 1


def test_closing_ends_all_watches() -> None:
    """Closing ends each watch and tells it, and later watches are refused."""
    shell = start()
    watches = [watch(shell, Prefix(b"")), watch(shell, Key(b"a"))]
    consumers = [Consumer(), Consumer()]
    for each, consumer in zip(watches, consumers, strict=True):
        each.consumer = consumer
    shell.machine.close()
    shell.act()
    assert [consumer.woken for consumer in consumers] == [1, 1]
    assert all(isinstance(w.error, ClientClosedError) for w in watches)
    with pytest.raises(ClientClosedError):
        shell.machine.watch(Prefix(b""))


def test_a_question_that_fails_ends_the_watches_that_wait_for_it() -> None:
    """When the question for the log's end fails, the watches that wait for it end with its error."""
    shell = start()
    w = shell.machine.watch(Prefix(b""))
    shell.act()
    (call,) = shell.conversations
    del shell.conversations[call]
    shell.machine.failed(call, ProtocolError("broken"), 0.0)
    shell.act()
    assert isinstance(w.error, ProtocolError)


# -- compacted history (R2, R5) ----------------------------------------------------------------------------------------


def compacted(index: int = 10, end: int = 20) -> Shell:
    """Watches on a log whose first entries exist in a snapshot only."""
    shell = start(history(end))
    shell.leader.compacted = index
    return shell


def test_history_that_was_outrun_is_said() -> None:
    """A watch that starts before a compaction ends with the place of the snapshot, and skips nothing (R5)."""
    shell = compacted()
    w = watch(shell, Prefix(b""), after=4)
    good = watch(shell, Prefix(b""), after=10)
    assert take(shell, w) == []
    assert isinstance(w.error, HistoryOutrunError)
    assert w.error.snapshot_index == 10
    assert len(seen(take(shell, good))) == 10


def test_a_watch_can_list_anew() -> None:
    """With relist a watch gets the snapshot, then the events after it, without a gap (R2)."""
    shell = compacted()
    w = watch(shell, Prefix(b""), after=4, relist=True)
    items = take(shell, w)
    chunks = [item for item in items if isinstance(item, SnapshotEvent)]
    assert b"".join(event.chunk.data for event in chunks) == snapshot_bytes(10, 50)
    assert items[: len(chunks)] == chunks
    assert [chunk.position for chunk in chunks] == [Position(4), Position(4), Position(10, 1)]
    assert [index for index, _ in seen(items)] == list(range(11, 21))
    assert chunks[0].chunk.index == 10
    write(shell, b"a=1")
    assert seen(take(shell, w)) == [(21, [b"a"])]


def test_half_a_snapshot_is_no_place_to_resume_from() -> None:
    """Until a snapshot's last chunk was handed out, the position of the watch stays before it."""
    shell = compacted()
    w = shell.machine.watch(Prefix(b""), after=4, relist=True)
    shell.act()
    while w.idle:
        busy = next(c for c, conversation in shell.conversations.items() if conversation.inbox)
        shell.deliver(busy)
    piece = shell.machine.next_item(w, 0.0)
    assert isinstance(piece, SnapshotEvent)
    assert piece.position.index == 4
    assert w.idle
    assert shell.machine.resume_after(w).index == 4
    shell.machine.cancel(w)
    assert shell.machine.resume_after(w).index == 4


def test_a_reader_does_not_ask_a_leader_that_lags_in_a_loop() -> None:
    """A new leader that lags behind what the watches heard from the old one is asked ten times a second."""
    shell = start()
    watch(shell, Prefix(b"x"))
    write(shell, *[b"a=%d" % n for n in range(5)])
    shell.leader.applied = 3
    shell.machine._log._recent.clear()
    w = shell.machine.watch(Prefix(b"a"), after=3)
    shell.act()
    asked = shell.ids
    for _ in range(10):
        shell.settle(limit=50)
        shell.advance(0.1)
    assert shell.ids - asked < 15
    shell.settle()
    shell.leader.applied = None
    shell.advance(0.2)
    assert [index for index, _ in seen(take(shell, w))] == [4, 5]


def test_live_watches_are_outrun_too() -> None:
    """When the log was compacted beyond live watches in a long break, each ends or lists anew, and the others go on."""
    shell = start(history(3))
    plain, again = watch(shell, Prefix(b"")), watch(shell, Prefix(b""), relist=True)
    write(shell, b"a=1")
    write(shell, *[b"b=%d" % n for n in range(20)], lost=True)
    shell.leader.compacted = 20
    shell.heartbeat()
    items, relisted = take(shell, plain), take(shell, again)
    assert seen(items) == [(4, [b"a"])]
    assert isinstance(plain.error, HistoryOutrunError)
    assert [index for index, _ in seen(relisted)] == [4, 21, 22, 23, 24]
    assert sum(isinstance(item, SnapshotEvent) for item in relisted) == 3
    late = watch(shell, Prefix(b""), after=20)
    write(shell, b"c=1")
    assert seen(take(shell, again)) == [(25, [b"c"])]
    assert [index for index, _ in seen(take(shell, late))] == [21, 22, 23, 24, 25]


# -- slow consumers (R8) -----------------------------------------------------------------------------------------------


def test_a_slow_consumer_of_history_stops_its_reader() -> None:
    """While a slow consumer catches up, no more than the queue, the reader's buffer and the peer's window is held."""
    shell = start(history(20_000), watch_bytes=1000)
    shell.leader.batch = 500
    w = watch(shell, Prefix(b""), after=0)
    assert w.size < 100_000
    assert w.seen.index < 1_000
    assert w.reader is not None
    assert w.reader.position < 15_000
    assert len(take(shell, w)) == 20_000


def test_a_consumer_that_was_away_for_long_gets_a_new_stream() -> None:
    """A consumer that was away for long gets a new stream, because the peer has forgotten the old one."""
    shell = start(history(20_000), watch_bytes=1000)
    shell.leader.batch = 500
    w = watch(shell, Prefix(b""), after=0)
    assert w.reader is not None
    assert w.reader.paused
    shell.leader.streams.clear()
    shell.now += 60.0
    items = take(shell, w)
    assert [index for index, _ in seen(items)] == list(range(1, 20_001))


# -- any schedule ------------------------------------------------------------------------------------------------------


class WatchesMachine(RuleBasedStateMachine):
    """Watches come and go, start anywhere, are slow; broadcasts get lost; leaders change and compact."""

    @initialize(watch_bytes=st.sampled_from([1, 500, 100_000]))
    def begin(self, watch_bytes: int) -> None:
        self.log = history(8)
        self.shell = start(self.log, watch_bytes=watch_bytes)
        self.watches: list[tuple[WatchState, list[Any]]] = []
        self.names = 1

    @rule(after=st.none() | st.integers(0, 8), prefix=st.sampled_from([b"", b"k", b"k1"]), relist=st.booleans())
    def add(self, after: int | None, prefix: bytes, relist: bool) -> None:
        made = self.shell.machine.watch(Prefix(prefix), after=after, relist=relist, queue_bytes=self.shell.watch_bytes)
        self.shell.act()
        self.watches.append((made, []))

    @rule(
        keys=st.lists(st.sampled_from([b"k1=x", b"k2", b"z=1", b"k1=a;z=b;k12"]), min_size=1, max_size=4),
        lost=st.booleans(),
    )
    def write(self, keys: list[bytes], lost: bool) -> None:
        write(self.shell, *keys, lost=lost)

    @rule()
    def heartbeat(self) -> None:
        self.shell.heartbeat()

    @precondition(lambda self: any(c.inbox for c in self.shell.conversations.values()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        busy = [c for c, conversation in self.shell.conversations.items() if conversation.inbox]
        self.shell.deliver(busy[data.draw(st.integers(0, len(busy) - 1))])

    @precondition(lambda self: self.watches)
    @rule(data=st.data(), count=st.integers(1, 4))
    def take(self, data: st.DataObject, count: int) -> None:
        made, items = data.draw(st.sampled_from(self.watches))
        for _ in range(count):
            if (item := self.shell.machine.next_item(made, self.shell.now)) is not None:
                items.append(item)
            self.shell.act()

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        made, items = data.draw(st.sampled_from(self.watches))
        self.shell.machine.cancel(made)
        self.shell.act()
        self.watches.remove((made, items))

    @rule(compacted=st.integers(0, 15), hint=st.booleans())
    def change_leader(self, compacted: int, hint: bool) -> None:
        self.names += 1
        self.shell.fail_over(ModelPeer(self.log, name=str(self.names), compacted=min(compacted, self.log.end)))
        if hint:
            self.shell.machine.leader_changed(self.shell.now)
            self.shell.act()

    @rule(seconds=st.sampled_from([0.05, 0.6, 1.2, 11.0]))
    def wait(self, seconds: float) -> None:
        self.shell.advance(seconds)

    def check(self, made: WatchState, items: list[Any]) -> None:
        """A naive second opinion: what the log has for the watch, from its start on, snapshots standing for gaps."""
        if made.started_after is None:
            assert not items
            return
        position = made.started_after.index
        for item in items:
            if isinstance(item, SnapshotEvent):
                assert made.relist
                assert item.chunk.index > position
                position = item.position.index if item.chunk.is_last else position
                continue
            assert item.index > position
            for index in range(position + 1, item.index + 1):
                wanted = self.wanted(made, index)
                if index < item.index or isinstance(item, Progress):
                    assert not wanted, f"entry {index} was left out"
                else:
                    assert item.changes == wanted
            position = item.index
        if made.error is None:
            assert not any(self.wanted(made, index) for index in range(position + 1, self.log.end + 1))
        else:
            assert isinstance(made.error, HistoryOutrunError)
            assert not made.relist

    def wanted(self, made: WatchState, index: int) -> tuple[Change, ...]:
        changes = LineCodec().decode(self.log.frames[index - 1][20:])
        return tuple(change for change in changes if made.selector.matches(change))

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        for _ in range(4):
            for made, items in self.watches:
                items += take(self.shell, made)
            self.shell.advance(0.2)
            self.shell.heartbeat()
        for made, items in self.watches:
            items += take(self.shell, made)
            self.check(made, items)
            assert made.phase is Phase.LIVE or made.error is not None
        for made, _ in self.watches:
            self.shell.machine.cancel(made)
        self.shell.act()
        assert not self.shell.conversations
        assert self.shell.sub is None


WatchesMachine.TestCase.settings = settings(
    max_examples=max(30, scaled(150, 1500)), stateful_step_count=40, deadline=None
)
TestAnySchedule = pytest.mark.scaled(WatchesMachine.TestCase)


# -- what finds the watches of a key, and the entries in memory --------------------------------------------------------

KEYS = st.lists(st.sampled_from([b"a", b"b", b"/"]), max_size=4).map(b"".join)
SELECTORS = st.one_of(KEYS.map(Key), KEYS.map(Prefix), KEYS.map(Tree))


@pytest.mark.parametrize("make", [lambda: Key("a"), lambda: Prefix(None), lambda: Tree(b"a", "/")])
def test_selectors_are_bytes(make: Any) -> None:
    """A selector that is not bytes is refused, because the shells encode text."""
    with pytest.raises(InvalidArgumentError):
        make()


@given(st.lists(SELECTORS, max_size=8), st.data(), KEYS)
def test_the_index_finds_exactly_what_matches(selectors: list[Any], data: st.DataObject, key: bytes) -> None:
    """The index by length of prefix finds what asking every selector finds, also after some were removed."""
    index: SelectorIndex[int] = SelectorIndex()
    for number, selector in enumerate(selectors):
        index.add(number, selector)
    removed = data.draw(st.sets(st.sampled_from(range(len(selectors))))) if selectors else set()
    for number in removed:
        index.discard(number, selectors[number])
        index.discard(number, selectors[number])
    change = Change(ChangeKind.DELETE, key)
    found = list(index.candidates(key))
    assert len(found) == len(set(found))
    assert set(found) == {n for n, s in enumerate(selectors) if n not in removed and s.matches(change)}
    assert len(index) == len(selectors) - len(removed)


@given(st.integers(1, 50), st.lists(st.integers(0, 300), max_size=30), st.integers(0, 2000), st.integers(0, 90))
def test_what_is_there_is_there_without_a_gap(first: int, lengths: list[int], limit: int, index: int) -> None:
    """Either every entry after an index is in the history or none, and no more is kept than allowed."""
    entries = [LogEntry(first + n, state_entry(n, bytes(length))) for n, length in enumerate(lengths)]
    recent = EventHistory(limit)
    for entry in entries:
        recent.append(entry)
    found = list(recent.after(index))
    wanted = [entry for entry in entries if entry.index > index]
    assert found in ([], wanted)
    assert sum(entry.size + 100 for entry in found) <= limit
    if sum(entry.size + 100 for entry in wanted) <= limit and index + 1 >= first:
        assert found == wanted
    recent.clear()
    assert list(recent.after(index)) == []
    for entry in entries:  # it has as much room as a new one
        recent.append(entry)
    assert list(recent.after(index)) == found
