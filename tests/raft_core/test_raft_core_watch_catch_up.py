"""Watches that fall behind: history that was compacted, and consumers that are slow; R2, R5 and R8."""

from __future__ import annotations

from model_peer import snapshot_bytes
from model_shell import Shell
from model_watches import history, seen, start, take, watch, write

from raft_client.core.selectors import Prefix
from raft_client.core.watch_events import SnapshotEvent
from raft_client.core.watch_state import Phase
from raft_client.errors import HistoryOutrunError, SubscriberOverflowError

# -- compaction -------------------------------------------------------------------------------------------------------


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
    assert isinstance(shell.machine.next_item(w, 0.0), SnapshotEvent)
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
    shell.machine._table.history.clear()
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


# -- slow consumers ---------------------------------------------------------------------------------------------------


def test_a_slow_consumer_reads_again_and_misses_nothing() -> None:
    """A watch with a full queue goes back to the log and misses nothing, and the others do not notice (R8)."""
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
    """A slow consumer that asks for an error gets what was queued, then the reason, and the others go on (R8)."""
    shell = start(watch_bytes=1000)
    slow, quick = watch(shell, Prefix(b""), overflow="error"), watch(shell, Prefix(b""))
    for n in range(100):
        write(shell, b"k=%d" % n)
    items = take(shell, slow)
    assert [index for index, _ in seen(items)] == list(range(1, len(items) + 1))
    assert isinstance(slow.error, SubscriberOverflowError)
    assert len(seen(take(shell, quick))) == 100


def test_a_slow_consumer_of_history_stops_its_reader() -> None:
    """While a slow consumer catches up, no more than the queue, the reader's buffer and the peer's window is held."""
    shell = start(history(30_000), watch_bytes=1000)
    shell.leader.batch = 500
    w = watch(shell, Prefix(b""), after=0)
    assert w.size < 100_000
    assert w.seen.index < 1_000
    assert w.reader is not None
    assert w.reader.position < 15_000
    assert len(take(shell, w)) == 30_000


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
