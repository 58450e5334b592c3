"""Watches over the log: selection, catching up, slow consumers, compaction, leaders that change; R1 to R14."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_peer import IDENT, Log, ModelPeer, snapshot_bytes
from model_shell import Shell

from raft_client.core.hub import WatchHub, WatchReady
from raft_client.core.selectors import Key, Prefix, Selector, SelectorIndex, Tree, Where
from raft_client.core.streaming import Freshness
from raft_client.core.watch import Phase, Progress, SnapshotEvent, Watch, WatchEvent
from raft_client.errors import (
    ClientClosedError,
    HistoryOutrunError,
    InvalidArgumentError,
    OutOfDateLogError,
    ProtocolError,
    SubscriberOverflowError,
)
from raft_client.wire.changes import Change, ChangeKind


class LineCodec:
    """Entries such as ``b"a/1=x;b/2"``: sets a/1 and deletes b/2. ``!`` is broken, ``-`` belongs to others."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, data: bytes) -> list[Change]:
        self.decoded += 1
        if data.startswith(b"!"):
            raise ValueError("broken")
        if data.startswith(b"-"):
            return []
        changes = []
        for part in data.split(b";"):
            key, equals, value = part.partition(b"=")
            kind = ChangeKind.SET if equals else ChangeKind.DELETE
            changes.append(Change(kind, key, value if equals else None))
        return changes


def start(log: Log | None = None, **options: Any) -> Shell:
    """A hub without watches, and a cluster."""
    codec = LineCodec()
    shell = Shell(WatchHub(IDENT, codec, **options), ModelPeer(log or Log()))
    shell.codec = codec  # for tests that count
    return shell


def write(shell: Shell, *datas: bytes, lost: bool = False) -> None:
    """New entries, broadcast together unless that is lost."""
    first = shell.leader.log.end + 1
    for data in datas:
        shell.leader.log.append(data)
    if not lost:
        shell.hear(shell.broadcast(first, shell.leader.log.end))


def watch(shell: Shell, selector: Selector, **options: Any) -> Watch:
    """A watch that has started."""
    made: Watch = shell.machine.watch(selector, **options)
    shell.act()
    shell.settle()
    return made


def take(shell: Shell, watch: Watch) -> list[Any]:
    """All that the watch has, with what arrives meanwhile."""
    items = []
    while True:
        shell.settle()
        item = shell.machine.next_item(watch, shell.now)
        shell.act()
        if item is None:
            if not any(c.inbox for c in shell.conversations.values()):
                return items
            continue
        items.append(item)


def seen(items: list[Any]) -> list[tuple[int, list[bytes]]]:
    """Index and keys of events."""
    return [(i.index, [c.key for c in i.changes]) for i in items if isinstance(i, WatchEvent)]


# -- what is handed out -----------------------------------------------------------------------------------------------


def test_a_change_of_a_key_is_an_event() -> None:
    """An event has watch id, index, kind, key and value; a deletion is one, and so is what follows it (R3, R13)."""
    shell = start()
    w = watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1", b"a", b"a=2")
    events = take(shell, w)
    assert [(e.watch_id, e.index, e.changes) for e in events] == [
        (w.id, 1, (Change(ChangeKind.SET, b"a", b"1"),)),
        (w.id, 3, (Change(ChangeKind.DELETE, b"a"),)),
        (w.id, 4, (Change(ChangeKind.SET, b"a", b"2"),)),
    ]


def test_all_changes_of_one_entry_are_one_event() -> None:
    """A transaction is not torn apart, and only what was asked for is in it (R1)."""
    shell = start()
    w = watch(shell, Prefix(b"a/"))
    write(shell, b"a/1=x;b=y;a/2=z;a/1")
    (event,) = take(shell, w)
    assert [(c.kind, c.key) for c in event.changes] == [("set", b"a/1"), ("set", b"a/2"), ("delete", b"a/1")]


def test_every_watcher_of_a_key_is_served() -> None:
    """Several watches on one key, its parent, and a condition all see the change; it is decoded once (R11)."""
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
    """A log may hold entries of several applications."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"-x", b"a=1", b"-y")
    assert seen(take(shell, w)) == [(2, [b"a"])]
    assert shell.machine.resume_after(w) == 3


# -- where a watch starts ---------------------------------------------------------------------------------------------


def history(count: int) -> Log:
    """Entries that set key k1, k2, k3 and so on."""
    log = Log()
    for n in range(1, count + 1):
        log.append(b"k%d=%d" % (n, n))
    return log


def test_a_watch_starts_at_the_end_unless_told_otherwise() -> None:
    """The number from which it starts is known as soon as it has started (R2)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b""))
    assert w.started_after == 5
    assert w.is_live
    write(shell, b"a=1")
    assert seen(take(shell, w)) == [(6, [b"a"])]


@pytest.mark.parametrize("after", [0, 3, 5])
def test_a_watch_resumes_after_an_index(after: int) -> None:
    """Everything after the index comes, exclusively, also under a prefix; then it is live (R4)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b"k"), after=after)
    write(shell, b"k9=1")
    assert [index for index, _ in seen(take(shell, w))] == [*range(after + 1, 6), 6]
    assert w.is_live


def test_watches_resume_from_different_places_at_once() -> None:
    """One subscription serves them all once they have caught up (R4, R14)."""
    shell = start(history(40))
    watches = [watch(shell, Prefix(b"k"), after=after) for after in range(0, 40, 5)]
    write(shell, b"k=live")
    for after, w in zip(range(0, 40, 5), watches, strict=True):
        assert [index for index, _ in seen(take(shell, w))] == list(range(after + 1, 42))
    assert shell.listened == ["tcp://pub/1"]
    assert not shell.conversations


def test_what_was_seen_lately_is_resumed_from_memory() -> None:
    """A watch that is cancelled and made again while others go on costs the cluster nothing."""
    shell = start()
    watch(shell, Key(b"other"))
    write(shell, b"a=1", b"a=2", b"a=3")
    asked = shell.ids
    w = watch(shell, Key(b"a"), after=1)
    assert seen(take(shell, w)) == [(2, [b"a"]), (3, [b"a"])]
    assert shell.ids == asked


def test_a_watch_starts_where_the_log_ended_after_it_was_made() -> None:
    """An answer to an earlier question must not make a watch start before its own time."""
    shell = start(history(5))
    first = shell.machine.watch(Prefix(b""))
    shell.act()
    write(shell, b"a=1")
    second = shell.machine.watch(Prefix(b""))
    shell.act()
    shell.settle()
    assert (first.started_after, second.started_after) == (5, 6)
    assert seen(take(shell, first)) == [(6, [b"a"])]
    assert take(shell, second) == []


def test_a_watch_may_start_in_the_future_only_if_it_exists() -> None:
    """An index beyond the log is a cluster that lost its data, or another cluster; that is said (R5)."""
    shell = start(history(5))
    w = watch(shell, Prefix(b""), after=9)
    assert isinstance(w.error, OutOfDateLogError)
    assert shell.machine.count == 0


def test_a_leader_that_lags_does_not_fail_a_watch() -> None:
    """What this client was told of by the former leader is there soon."""
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


# -- compaction -------------------------------------------------------------------------------------------------------


def compacted(index: int = 10, end: int = 20) -> Shell:
    """A hub on a log whose first entries exist in a snapshot only."""
    shell = start(history(end))
    shell.leader.compacted = index
    return shell


def test_history_that_was_outrun_is_said() -> None:
    """A watch that starts before the compaction ends with the place of the snapshot; nothing is skipped (R5)."""
    shell = compacted()
    w = watch(shell, Prefix(b""), after=4)
    good = watch(shell, Prefix(b""), after=10)
    assert take(shell, w) == []
    assert isinstance(w.error, HistoryOutrunError)
    assert w.error.snapshot_index == 10
    assert len(seen(take(shell, good))) == 10


def test_a_watch_can_list_anew() -> None:
    """With relist the snapshot comes, then the events after it, in one go and without a gap (R2)."""
    shell = compacted()
    w = watch(shell, Prefix(b""), after=4, relist=True)
    items = take(shell, w)
    chunks = [item for item in items if isinstance(item, SnapshotEvent)]
    assert b"".join(event.chunk.data for event in chunks) == snapshot_bytes(10, 50)
    assert items[: len(chunks)] == chunks
    assert [index for index, _ in seen(items)] == list(range(11, 21))
    assert chunks[0].index == 10
    write(shell, b"a=1")
    assert seen(take(shell, w)) == [(21, [b"a"])]


def test_half_a_snapshot_is_no_place_to_resume_from() -> None:
    """Until its last chunk was handed out the watch stands where it was."""
    shell = compacted()
    w = shell.machine.watch(Prefix(b""), after=4, relist=True)
    shell.act()
    while w.idle:
        busy = next(c for c, conversation in shell.conversations.items() if conversation.inbox)
        shell.deliver(busy)
    assert isinstance(shell.machine.next_item(w, 0.0), SnapshotEvent)
    assert w.idle
    assert shell.machine.resume_after(w) == 4
    shell.machine.cancel(w)
    assert shell.machine.resume_after(w) == 4


def test_a_reader_does_not_ask_a_leader_that_lags_in_a_loop() -> None:
    """The hub heard of more from the former leader than the new one hands out yet; ten times a second is enough."""
    shell = start()
    watch(shell, Prefix(b"x"))
    write(shell, *[b"a=%d" % n for n in range(5)])
    shell.leader.applied = 3
    shell.machine._recent.clear()
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
    """After a long break the log may have been compacted beyond them: each ends, or lists anew, and the hub goes on."""
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


# -- slow consumers ---------------------------------------------------------------------------------------------------


def test_a_slow_consumer_reads_again_and_misses_nothing() -> None:
    """A full queue sends the watch back to the log; the others do not notice (R8)."""
    shell = start(watch_bytes=1000)
    slow, quick = watch(shell, Prefix(b"")), watch(shell, Prefix(b""))
    taken = []
    for n in range(100):
        write(shell, b"k=%d" % n)
        taken += take(shell, quick)
    assert [index for index, _ in seen(taken)] == list(range(1, 101))
    assert slow.phase is Phase.BEHIND
    assert slow.size < 1300
    assert [index for index, _ in seen(take(shell, slow))] == list(range(1, 101))
    assert slow.is_live


def test_a_slow_consumer_can_ask_for_an_error() -> None:
    """Then the watch ends, after what was queued, with its reason; the others go on (R8)."""
    shell = start(watch_bytes=1000)
    slow, quick = watch(shell, Prefix(b""), overflow="error"), watch(shell, Prefix(b""))
    for n in range(100):
        write(shell, b"k=%d" % n)
    items = take(shell, slow)
    assert [index for index, _ in seen(items)] == list(range(1, len(items) + 1))
    assert isinstance(slow.error, SubscriberOverflowError)
    assert len(seen(take(shell, quick))) == 100


def test_a_slow_consumer_of_history_stops_its_reader() -> None:
    """While it catches up nobody holds more than the queue, the reader's buffer and the peer's window."""
    shell = start(history(30_000), watch_bytes=1000)
    shell.leader.batch = 500
    w = watch(shell, Prefix(b""), after=0)
    assert w.size < 100_000
    assert w.seen < 1_000
    assert w.reader is not None
    assert w.reader.position < 15_000
    assert len(take(shell, w)) == 30_000


def test_a_consumer_that_was_away_for_long_gets_a_new_stream() -> None:
    """The peer has forgotten the stream of its reader by then."""
    shell = start(history(20_000), watch_bytes=1000)
    shell.leader.batch = 500
    w = watch(shell, Prefix(b""), after=0)
    assert w.reader is not None
    assert w.reader.paused
    shell.leader.streams.clear()
    shell.now += 60.0
    items = take(shell, w)
    assert [index for index, _ in seen(items)] == list(range(1, 20_001))


# -- progress and state -----------------------------------------------------------------------------------------------


def test_an_idle_watch_hears_of_progress() -> None:
    """It can resume from there and is not outrun by a compaction; progress never overtakes an event (R6)."""
    shell = start(progress_s=10.0)
    idle, busy = watch(shell, Key(b"never")), watch(shell, Key(b"a"))
    write(shell, b"a=1", b"b=1")
    shell.advance(10.5)
    assert take(shell, idle) == [Progress(idle.id, 2)]
    assert [item.index for item in take(shell, busy)] == [1]
    shell.advance(10)
    assert take(shell, idle) == []
    assert take(shell, busy) == [Progress(busy.id, 2)]


def test_silence_and_recovery_are_visible() -> None:
    """The state of the subscription is that of all live watches (R7)."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1")
    assert shell.machine.state.freshness is Freshness.FRESH
    shell.fail_over(ModelPeer(shell.leader.log, name="2"))
    shell.advance(1.1)
    write(shell, b"b=1", lost=True)
    shell.settle()
    write(shell, b"c=1")
    assert [index for index, _ in seen(take(shell, w))] == [1, 2, 3]
    assert shell.states == [Freshness.SILENT, Freshness.FRESH, Freshness.SILENT, Freshness.FRESH]


def test_the_resume_point_is_what_was_handed_out() -> None:
    """With events in the queue it is the last one taken; without, all that the log has had."""
    shell = start(history(3))
    w = shell.machine.watch(Prefix(b"a"))
    assert shell.machine.resume_after(w) is None
    shell.act()
    shell.settle()
    assert shell.machine.resume_after(w) == 3
    write(shell, b"a=1", b"b=1", b"a=2", b"b=2")
    assert shell.machine.resume_after(w) == 3
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w) == 4
    shell.machine.next_item(w, 0.0)
    assert shell.machine.resume_after(w) == 7


def test_a_cancelled_watch_says_where_to_resume() -> None:
    """What was queued and not handed out is not lost: the next watch gets it."""
    shell = start()
    w = watch(shell, Prefix(b""))
    write(shell, b"a=1", b"a=2", b"a=3")
    shell.machine.next_item(w, 0.0)
    shell.machine.cancel(w)
    assert shell.machine.resume_after(w) == 1
    again = watch(shell, Prefix(b""), after=shell.machine.resume_after(w))
    assert [index for index, _ in seen(take(shell, again))] == [2, 3]


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read_ends_the_watches() -> None:
    """They could not tell what they missed; what came before is handed out first."""
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
    """Its peer is told; nothing behind the entry is handed out."""
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
    """The exception is the watch's error (R12)."""
    shell = start(history(1))
    bad = watch(shell, Where(lambda c: c.value.startswith(b"x")))  # fails for deletions
    bad_behind = shell.machine.watch(Where(lambda c: c.value // 0), after=0)
    good = watch(shell, Prefix(b""))
    write(shell, b"a=x", b"a", b"a=y")
    assert seen(take(shell, bad)) == [(2, [b"a"])]
    assert isinstance(bad.error, AttributeError)
    assert isinstance(bad_behind.error, TypeError)
    assert len(take(shell, good)) == 3


@pytest.mark.parametrize("after", [-1, 2**53])
def test_impossible_starts_are_refused(after: int) -> None:
    """An index is not negative and has at most 53 bits."""
    with pytest.raises(InvalidArgumentError):
        start().machine.watch(Prefix(b""), after=after)


@pytest.mark.parametrize("make", [lambda: Key("a"), lambda: Prefix(None), lambda: Tree(b"a", "/")])
def test_selectors_are_bytes(make: Any) -> None:
    """Text is encoded by the shells."""
    with pytest.raises(InvalidArgumentError):
        make()


# -- the end ----------------------------------------------------------------------------------------------------------


def test_cancelling_is_final() -> None:
    """Nothing more is handed out, not even what was queued; again it does nothing (R9)."""
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
    """The last watch takes the subscription with it, at whatever point it is; the next one starts anew (R10)."""
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


def test_closing_ends_all_watches() -> None:
    """Each watch is told; later ones are refused."""
    shell = start()
    watches = [watch(shell, Prefix(b"")), watch(shell, Key(b"a"))]
    shell.others.clear()
    shell.machine.close()
    shell.act()
    assert shell.others == [WatchReady(w) for w in watches]
    assert all(isinstance(w.error, ClientClosedError) for w in watches)
    with pytest.raises(ClientClosedError):
        shell.machine.watch(Prefix(b""))


def test_a_question_that_fails_ends_the_watches_that_wait_for_it() -> None:
    """A cluster that cannot be asked where its log ends is an error of the watch."""
    shell = start()
    w = shell.machine.watch(Prefix(b""))
    shell.act()
    (call,) = shell.conversations
    del shell.conversations[call]
    shell.machine.failed(call, ProtocolError("broken"), 0.0)
    shell.act()
    assert isinstance(w.error, ProtocolError)


# -- the index of selectors -------------------------------------------------------------------------------------------

KEYS = st.lists(st.sampled_from([b"a", b"b", b"/"]), max_size=4).map(b"".join)
SELECTORS = st.one_of(KEYS.map(Key), KEYS.map(Prefix), KEYS.map(Tree))


@given(st.lists(SELECTORS, max_size=8), st.data(), KEYS)
def test_the_index_finds_exactly_what_matches(selectors: list[Any], data: st.DataObject, key: bytes) -> None:
    """Looking up prefixes by length gives what asking every selector gives, also after some were removed."""
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


# -- any schedule -----------------------------------------------------------------------------------------------------


class HubMachine(RuleBasedStateMachine):
    """Watches come and go, start anywhere, are slow; broadcasts get lost; leaders change and compact."""

    @initialize(watch_bytes=st.sampled_from([1, 500, 100_000]))
    def begin(self, watch_bytes: int) -> None:
        self.log = history(8)
        self.shell = start(self.log, watch_bytes=watch_bytes)
        self.watches: list[tuple[Watch, list[Any]]] = []
        self.names = 1

    @rule(after=st.none() | st.integers(0, 8), prefix=st.sampled_from([b"", b"k", b"k1"]), relist=st.booleans())
    def add(self, after: int | None, prefix: bytes, relist: bool) -> None:
        made = self.shell.machine.watch(Prefix(prefix), after=after, relist=relist)
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

    def check(self, made: Watch, items: list[Any]) -> None:
        """A naive second opinion: what the log has for the watch, from its start on, snapshots standing for gaps."""
        if made.started_after is None:
            assert not items
            return
        position = made.started_after
        for item in items:
            if isinstance(item, SnapshotEvent):
                assert made.relist
                assert item.index > position
                position = item.index if item.chunk.is_last else position
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

    def wanted(self, made: Watch, index: int) -> tuple[Change, ...]:
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


HubMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnySchedule = HubMachine.TestCase
