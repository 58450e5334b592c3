"""The stream of entries, against a naive peer: order, gaps, snapshots, changes of the leader, slow consumers; and any
schedule of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from model_peer import ENTRIES, IDENT, Log, ModelPeer, snapshot_bytes, state_entry, uint
from model_shell import indexes, log_of
from support.schedules import scaled

from raft_client.core.calls import Again, Failed, Finished, FollowUps, NotLeader, Retry, Verdict
from raft_client.core.entries_stream import EntriesStream, SnapshotPolicy
from raft_client.errors import HistoryOutrunError, InvalidArgumentError, OutOfDateLogError, ProtocolError
from raft_client.wire.log_entry import SnapshotChunk


class Link:
    """What the request machine does for a streaming call, without time: ids, follow-ups, asking again."""

    def __init__(self, call: EntriesStream, peer: ModelPeer) -> None:
        self.call = call
        self.peer = peer
        self.inbox: list[list[bytes]] = []  # replies under way, request id in front
        self.verdict: Verdict | None = None  # the final one
        self.sends = 0
        self.ids = 0
        self.send()

    def send(self) -> None:
        """The call's frames under a new id."""
        self.ids += 1
        self.tell(self.call.frames())

    def tell(self, frames: list[bytes]) -> None:
        """Frames under the present id."""
        self.sends += 1
        self.inbox += self.peer.receive(uint(self.ids), frames)

    def switch(self, peer: ModelPeer) -> None:
        """The link breaks with all that is under way; the stream goes on at another peer."""
        self.inbox.clear()
        self.peer = peer
        self.call.moved()
        self.send()

    def deliver(self) -> Verdict | None:
        """The oldest reply arrives."""
        request_id, *frames = self.inbox.pop(0)
        if request_id != uint(self.ids) or self.verdict is not None:
            return None
        verdict = self.call.receive(frames)
        match verdict:
            case FollowUps(frames=follow_ups):
                for follow_up in follow_ups:
                    self.tell(follow_up)
            case Again(last=last):
                self.tell(last or [])
                self.send()
            case Finished() | Failed():
                self.verdict = verdict
                if verdict.last:
                    self.tell(verdict.last)
        return verdict

    def take(self, now: float = 0.0) -> Any:
        """The consumer takes a batch; what was held back is sent."""
        batch = self.call.next_batch(now)
        match self.call.resume():
            case FollowUps(frames=follow_ups):
                for follow_up in follow_ups:
                    self.tell(follow_up)
            case Again(last=last):
                self.tell(last or [])
                self.send()
        return batch

    def run(self, limit: int = 10_000) -> list[Any]:
        """Deliver and take until it ends; returns the batches."""
        batches = []
        for _ in range(limit):
            if self.inbox:
                self.deliver()
            while (batch := self.take()) is not None:
                batches.append(batch)
            if self.verdict is not None and not self.inbox:
                return batches
            assert self.inbox, "the stream hangs: nobody owes anything"
        raise AssertionError("the stream does not end")


def snapshot(batches: list[Any]) -> bytes:
    """The bytes of the snapshot chunks in batches."""
    return b"".join(batch.data for batch in batches if isinstance(batch, SnapshotChunk))


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_the_first_request_has_the_node_librarys_bytes() -> None:
    """The first request from the start, and after an index with a count, has the Node client's bytes (facts §4)."""
    assert EntriesStream(b"ident", 0).frames() == [ENTRIES, b"ident", b"\x00"]
    assert EntriesStream(b"ident", 5, count=3).frames() == [ENTRIES, b"ident", b"\x05", b"\x03"]
    assert EntriesStream(b"ident", 5).stop() == [ENTRIES, b"ident", b"\x05", b"\x00"]


def test_each_message_gets_one_follow_up_with_its_last_index() -> None:
    """Each message gets one follow-up with its last index."""
    call = EntriesStream(b"", 0)
    verdict = call.receive([b"\x02", b"\xc0", b"\x02", state_entry(1), state_entry(2)])
    assert verdict == FollowUps(([ENTRIES, b"", b"\x02"],), wake=True)


# -- whole streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "count", "expected"), [(0, None, (1, 20)), (7, None, (8, 20)), (7, 5, (8, 12)), (18, 9, (19, 20))]
)
def test_the_entries_that_were_asked_for_come(after: int, count: int | None, expected: tuple[int, int]) -> None:
    """Entries come from the start, from the middle, and a given number of them, with the data that was appended."""
    link = Link(EntriesStream(IDENT, after, count=count), ModelPeer(log_of(20)))
    batches = link.run()
    assert indexes(batches) == list(range(expected[0], expected[1] + 1))
    assert all(entry.data == b"data %d" % entry.index for batch in batches for entry in batch)
    assert link.verdict == Finished(expected[1])


def test_at_the_end_of_the_log_nothing_comes() -> None:
    """A stream that begins after the last entry finishes at once."""
    link = Link(EntriesStream(IDENT, 20), ModelPeer(log_of(20)))
    assert link.run() == []
    assert link.verdict == Finished(20)


def test_an_empty_log_has_no_entries() -> None:
    """A stream of an empty log finishes at once, with the index 0."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(Log()))
    assert link.run() == []
    assert link.verdict == Finished(0)


def test_a_compacted_log_is_a_snapshot_and_then_entries() -> None:
    """A compacted log comes as the snapshot's chunks in order, then the entries after its index; a count counts entries
    only."""
    link = Link(EntriesStream(IDENT, 2, count=4), ModelPeer(log_of(20), compacted=10))
    batches = link.run()
    assert snapshot(batches) == snapshot_bytes(10, 50)
    assert indexes(batches) == [11, 12, 13, 14]
    assert link.call.snapshot_index == 10


@pytest.mark.parametrize("length", [1, 20, 21, 40, 60])
def test_snapshots_of_any_length_come_whole(length: int) -> None:
    """Snapshots of one chunk, of full chunks, and with a rest come whole."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log_of(5), compacted=3, snapshot_length=length))
    batches = link.run()
    assert snapshot(batches) == snapshot_bytes(3, length)
    assert indexes(batches) == [4, 5]


def test_the_snapshot_alone_can_be_asked_for() -> None:
    """A count of 0 gives the snapshot alone, or nothing if there is none, and is never sent first."""
    link = Link(EntriesStream(IDENT, 0, count=0), ModelPeer(log_of(20), compacted=10))
    batches = link.run()
    assert (snapshot(batches), indexes(batches)) == (snapshot_bytes(10, 50), [])
    assert link.verdict == Finished(10)
    link = Link(EntriesStream(IDENT, 0, count=0), ModelPeer(log_of(20)))
    assert link.run() == []
    assert isinstance(link.verdict, Finished)


def test_a_snapshot_can_be_refused() -> None:
    """A reader that refuses snapshots is told where the snapshot ends, and the peer is told to stop."""
    link = Link(EntriesStream(IDENT, 2, snapshot=SnapshotPolicy.REFUSE), ModelPeer(log_of(20), compacted=10))
    assert link.run() == []
    assert isinstance(link.verdict, Failed)
    assert isinstance(link.verdict.error, HistoryOutrunError)
    assert link.verdict.error.snapshot_index == 10
    assert link.peer.streams == {}


def test_a_snapshot_can_be_skipped() -> None:
    """A reader that skips snapshots gets the entries after it, and can see what was skipped."""
    link = Link(EntriesStream(IDENT, 2, snapshot=SnapshotPolicy.SKIP), ModelPeer(log_of(20), compacted=10))
    assert indexes(link.run()) == list(range(11, 21))
    assert link.call.snapshot_index == 10


def test_a_stream_that_is_stopped_leaves_nothing_behind() -> None:
    """A follow-up with a count of 0 lets the peer forget a stream that is stopped."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log_of(100)))
    link.deliver()
    assert link.peer.streams
    link.tell(link.call.stop())
    assert not link.peer.streams


# -- changes of the leader --------------------------------------------------------------------------------------------


def test_a_peer_that_does_not_lead_names_the_leader() -> None:
    """When a peer that does not lead names the leader, the request machine learns it."""
    peer = ModelPeer(log_of(3), leads=False, leader_name="2")
    assert Link(EntriesStream(IDENT, 0), peer).deliver() == NotLeader("2")
    peer.leader_name = None
    assert Link(EntriesStream(IDENT, 0), peer).deliver() == NotLeader(None)


def test_another_peer_goes_on_at_the_right_index() -> None:
    """After a break another peer is asked for what follows the last index, with the rest of the count."""
    log = log_of(50)
    link = Link(EntriesStream(IDENT, 0, count=40), ModelPeer(log))
    for _ in range(3):
        link.deliver()
    link.switch(ModelPeer(log, batch=7))
    assert indexes(link.run()) == list(range(1, 41))


@pytest.mark.parametrize(("index", "length", "maker"), [(10, 200, 1), (15, 70, 0)], ids=["the same", "a newer one"])
def test_another_peer_starts_the_snapshot_again(index: int, length: int, maker: int) -> None:
    """Another peer starts the snapshot again, and the old chunks are void: its own may have the same index, term and
    size, but not the same bytes."""
    log = log_of(20)
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log, compacted=10, snapshot_length=200))
    for _ in range(5):
        link.deliver()
    link.switch(ModelPeer(log, compacted=index, snapshot_length=length, snapshot_maker=maker))
    batches = link.run()
    starts = [n for n, batch in enumerate(batches) if isinstance(batch, SnapshotChunk) and batch.is_first]
    assert len(starts) == 2
    assert snapshot(batches[starts[1] :]) == snapshot_bytes(index, length, maker)
    assert indexes(batches) == list(range(index + 1, 21))


def test_the_same_peer_goes_on_in_the_middle_of_the_snapshot() -> None:
    """The same peer, asked anew on the same link after a long pause, goes on in the middle of its snapshot."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log_of(20), compacted=10, snapshot_length=200))
    for _ in range(5):
        link.deliver()
    link.inbox.clear()
    link.send()
    assert len(link.inbox[0]) == 5
    link.deliver()
    assert next(reply[2][1:6] for reply in link.inbox if reply[0] == uint(link.ids)) == b"\xce\x00\x00\x00\x64"
    batches = link.run()
    assert snapshot(batches) == snapshot_bytes(10, 200)
    assert indexes(batches) == list(range(11, 21))


def test_a_reader_goes_on_after_the_chunk_that_an_earlier_one_has_kept() -> None:
    """A reader that has kept a part of the snapshot is sent the rest, once the peer has said that it is the same one;
    another one, also at another peer meanwhile, comes from its start."""
    log, data = log_of(20), snapshot_bytes(10, 200)
    earlier = Link(EntriesStream(IDENT, 0), ModelPeer(log, compacted=10, snapshot_length=200))
    kept = [batch for batch in earlier.run() if isinstance(batch, SnapshotChunk)][:7]
    link = Link(EntriesStream(IDENT, 0, snapshot_after=kept[-1]), ModelPeer(log, compacted=10, snapshot_length=200))
    batches = link.run()
    assert (batches[0].offset, snapshot(kept) + snapshot(batches)) == (140, data)
    assert indexes(batches) == list(range(11, 21))
    newer = Link(EntriesStream(IDENT, 0, snapshot_after=kept[-1]), ModelPeer(log, compacted=15, snapshot_length=200))
    assert snapshot(newer.run()) == snapshot_bytes(15, 200)
    moved = Link(EntriesStream(IDENT, 0, snapshot_after=kept[-1]), ModelPeer(log, compacted=10, snapshot_length=200))
    moved.switch(ModelPeer(log, compacted=10, snapshot_length=200, snapshot_maker=1))
    assert snapshot(moved.run()) == snapshot_bytes(10, 200, 1)


@pytest.mark.parametrize("chunk", [SnapshotChunk(9, 1, 0, 3, b"abc"), 7, b"abc"])
def test_what_no_snapshot_goes_on_after_is_refused(chunk: Any) -> None:
    """A snapshot goes on after one of its chunks, and not after its last one: the entries do."""
    with pytest.raises(InvalidArgumentError, match="snapshot"):
        EntriesStream(IDENT, 0, snapshot_after=chunk)


def test_a_peer_that_ignores_the_offset_is_broken() -> None:
    """A peer that always ignores the offset fails the stream after some attempts."""
    call = EntriesStream(IDENT, 0)
    pieces = [[b"\x03", b"\x93" + bytes((offset, 9, 1)), b"\x05", b"abc"] for offset in (0, 3)]
    for piece in pieces:
        call.receive(piece)
    verdicts = [call.receive(pieces[0]) for _ in range(6)]
    assert [type(verdict) for verdict in verdicts] == [Again] * 5 + [Failed]


def test_no_peer_is_asked_for_more_than_its_snapshot_has() -> None:
    """A new peer is asked for the snapshot from its start: beyond its end, a Node peer would never release it (facts
    §1.4)."""
    log = log_of(20)
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log, compacted=10, snapshot_length=200))
    for _ in range(5):
        link.deliver()
    short = ModelPeer(log, compacted=12, snapshot_length=30)
    asked: list[list[bytes]] = []
    answer = short.receive
    short.receive = lambda request_id, frames: asked.append(frames) or answer(request_id, frames)
    link.switch(short)
    batches = link.run()
    assert all(len(frames) < 5 for frames in asked)
    starts = [n for n, batch in enumerate(batches) if isinstance(batch, SnapshotChunk) and batch.is_first]
    assert snapshot(batches[starts[-1] :]) == snapshot_bytes(12, 30)


def test_a_snapshot_that_stopped_half_way_is_void_once_entries_came() -> None:
    """After entries of another peer, half a snapshot is void and starts again from its first byte."""
    log = log_of(20)
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log, compacted=15))
    link.deliver()
    link.switch(ModelPeer(log))
    link.deliver()
    while link.take() is not None:
        pass
    link.switch(ModelPeer(log, compacted=15))
    batches = link.run()
    assert snapshot(batches) == snapshot_bytes(15, 50)
    assert indexes(batches) == [16, 17, 18, 19, 20]


def test_a_leader_that_lags_is_asked_again_later() -> None:
    """A leader that lags is asked again later by this stream alone: seen entries are not lost, nor is the end reached.
    For all other calls it is still the leader."""
    link = Link(EntriesStream(IDENT, 15), ModelPeer(log_of(20), applied=10))
    verdict = link.deliver()
    assert isinstance(verdict, Retry)
    assert (verdict.after_s, verdict.doubts_leader) == (0.3, True)
    link.switch(ModelPeer(log_of(20)))
    assert indexes(link.run()) == list(range(16, 21))


def test_a_log_that_ends_before_the_index_is_out_of_date() -> None:
    """A log that ends before the start index, as of another cluster or after a loss of data, is an error and not an
    end."""
    link = Link(EntriesStream(IDENT, 15), ModelPeer(log_of(10)))
    for _ in range(20):
        if link.verdict is None:
            assert isinstance(link.deliver(), Retry) or link.verdict is not None
            link.switch(link.peer)
    assert isinstance(link.verdict, Failed)
    assert isinstance(link.verdict.error, OutOfDateLogError)
    assert "ends at 10, before 15" in link.verdict.error.message


# -- what should not happen -------------------------------------------------------------------------------------------


def test_a_lost_message_is_asked_for_again() -> None:
    """A lost message is requested again, so that the consumer never sees a gap."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log_of(30)))
    del link.inbox[1]
    assert indexes(link.run()) == list(range(1, 31))


def test_a_peer_that_always_leaves_a_gap_is_broken() -> None:
    """A peer that always leaves a gap fails the stream after some attempts."""
    call = EntriesStream(IDENT, 0)
    gap = [b"\x02", b"\xc0", b"\x05", state_entry(5)]
    verdicts = [call.receive(gap) for _ in range(6)]
    assert all(isinstance(verdict, Again) for verdict in verdicts[:5])
    assert isinstance(verdicts[5], Failed)
    assert isinstance(verdicts[5].error, ProtocolError)


def test_a_lost_chunk_is_asked_for_again() -> None:
    """A lost chunk is requested again, so that the consumer never sees a hole in a snapshot."""
    link = Link(EntriesStream(IDENT, 0), ModelPeer(log_of(20), compacted=10, snapshot_length=100))
    link.deliver()
    del link.inbox[0]
    batches = link.run()
    assert snapshot(batches) == snapshot_bytes(10, 100)
    assert indexes(batches) == list(range(11, 21))


def test_more_than_was_asked_for_is_cut_off() -> None:
    """When a peer sends more than was asked for, the consumer gets what it asked for, and the peer is told to stop."""
    call = EntriesStream(IDENT, 0, count=2)
    verdict = call.receive([b"\x02", b"\xc0", b"\x03", *map(state_entry, (1, 2, 3))])
    assert verdict == Finished(2, last=[ENTRIES, IDENT, b"\x02", b"\x00"])
    batch = call.next_batch(0.0)
    assert isinstance(batch, tuple)
    assert indexes([batch]) == [1, 2]


def test_a_last_message_that_leaves_entries_out_is_a_gap() -> None:
    """A last message that names an end beyond the entries that came is a gap, and not the end."""
    assert isinstance(EntriesStream(IDENT, 0).receive([b"\x01", b"\xc0", b"\x05"]), Again)


def test_a_snapshot_of_the_past_is_no_answer() -> None:
    """A snapshot that ends before the start index is ignored, because it belongs to another request."""
    assert isinstance(EntriesStream(IDENT, 9).receive([b"\x03", b"\x93\x00\x01\x01", b"\x09", b"x"]), Again)


@pytest.mark.parametrize("options", [{"count": -1}, {"buffer_bytes": 0}])
def test_impossible_streams_are_refused(options: dict[str, Any]) -> None:
    """An impossible stream is refused before anything is sent."""
    with pytest.raises(InvalidArgumentError):
        EntriesStream(IDENT, 0, **options)


# -- back-pressure ----------------------------------------------------------------------------------------------------


def test_a_slow_consumer_stops_the_peer() -> None:
    """While the queue is full no follow-up is sent, so that no more than the peer's window comes."""
    link = Link(EntriesStream(IDENT, 0, buffer_bytes=100), ModelPeer(log_of(300)))
    while link.inbox:
        link.deliver()
    sent = link.sends
    assert link.call.paused
    assert link.call.position < 40
    batches = [link.take()]
    assert link.sends == sent, "half of the queue must be free first"
    while (batch := link.take()) is not None:
        batches.append(batch)
    assert not link.call.paused
    assert indexes(batches + link.run()) == list(range(1, 301))


def test_follow_ups_go_out_in_the_order_of_their_messages() -> None:
    """A follow-up that is held back is not overtaken by a younger one, even if there is room again."""
    call = EntriesStream(IDENT, 0, buffer_bytes=350)
    assert call.next_batch(0.0) is None
    message = [[b"\x02", b"\xc0", uint(n), state_entry(n, bytes(130 if n < 4 else 10))] for n in range(1, 5)]
    assert [len(call.receive(frames).frames) for frames in message[:3]] == [1, 1, 0]
    call.next_batch(0.0)
    assert call.resume() is None
    assert call.receive(message[3]).frames == ()
    call.next_batch(0.0)
    call.next_batch(0.0)
    assert call.resume() == FollowUps(tuple([ENTRIES, IDENT, uint(n)] for n in (3, 4)))


def test_after_a_long_pause_the_stream_is_asked_for_anew() -> None:
    """After a long pause the stream is requested anew, since the peer would take old follow-ups for new requests."""
    link = Link(EntriesStream(IDENT, 0, buffer_bytes=100), ModelPeer(log_of(300)))
    batches = [batch for batch in [link.take(now=0.0)] if batch]
    while link.inbox:
        link.deliver()
    link.peer.streams.clear()
    before = link.ids
    while (batch := link.take(now=10.0)) is not None:
        batches.append(batch)
    assert link.ids == before + 1
    assert indexes(batches + link.run()) == list(range(1, 301))


# -- any schedule ------------------------------------------------------------------------------------------------------


class StreamMachine(RuleBasedStateMachine):
    """Peers that compact, lag and change, messages that get lost or come twice, a consumer that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.log = log_of(12)
        self.now = 0.0
        self.link = Link(EntriesStream(IDENT, 0, buffer_bytes=150), ModelPeer(self.log))
        self.expected = 1
        self.partial = b""
        self.makers = 0

    def check(self, batch: Any) -> None:
        """What the consumer sees: consecutive entries, or the pieces of one snapshot in order."""
        if isinstance(batch, SnapshotChunk):
            self.partial = batch.data if batch.is_first else self.partial + batch.data
            wholes = [snapshot_bytes(batch.index, batch.size, maker) for maker in range(self.makers + 1)]
            assert any(whole[: batch.end] == self.partial for whole in wholes)
            assert batch.index >= self.expected
            if batch.is_last:
                self.expected = batch.index + 1
                self.partial = b""
            return
        for entry in batch:
            assert entry.index == self.expected
            assert entry.data == b"data %d" % entry.index
            self.expected += 1

    @precondition(lambda self: self.link.inbox)
    @rule()
    def deliver(self) -> None:
        self.link.deliver()
        assert self.link.verdict is None or isinstance(self.link.verdict, Finished)

    @precondition(lambda self: len(self.link.inbox) > 1)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.link.inbox.insert(1, list(self.link.inbox[0]))

    @precondition(lambda self: self.link.verdict is None)
    @rule(compacted=st.integers(0, 40), batch=st.integers(1, 6), length=st.sampled_from([1, 50, 50, 50, 90]))
    def change_leader(self, compacted: int, batch: int, length: int) -> None:
        # A lagging leader ends in Retry: the machine would wait and come again, so here nobody lags.
        compacted = min(compacted, self.log.end)
        self.makers += 1
        peer = ModelPeer(self.log, compacted=compacted, snapshot_length=length, batch=batch)
        peer.snapshot_maker = self.makers
        self.link.switch(peer)

    @rule(count=st.integers(1, 10))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append()

    @rule(idle=st.sampled_from([0.0, 0.0, 0.0, 10.0]))
    def take(self, idle: float) -> None:
        self.now += idle
        if idle:
            self.link.peer.streams.clear()
            self.link.inbox.clear() if not self.link.call.paused else None
        if (batch := self.link.take(self.now)) is not None:
            self.check(batch)
        if idle and self.link.verdict is None and not self.link.call.paused and not self.link.inbox:
            self.link.send()  # the request machine's own time-out

    def teardown(self) -> None:
        for batch in self.link.run() if self.link.verdict is None or self.link.inbox else []:
            self.check(batch)
        while (batch := self.link.take()) is not None:
            self.check(batch)
        assert isinstance(self.link.verdict, Finished)
        assert self.link.verdict.result == self.expected - 1


StreamMachine.TestCase.settings = settings(
    max_examples=max(30, scaled(150, 1500)), stateful_step_count=40, deadline=None
)
TestAnySchedule = pytest.mark.scaled(StreamMachine.TestCase)
