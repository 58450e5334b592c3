"""The subscription, against naive peers and broadcasts that get lost, come late or twice, and change their leader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_peer import IDENT, Log, ModelPeer, snapshot_bytes, uint
from model_shell import Shell, indexes, log_of, subscribe
from support.schedules import scaled

from raft_client.core.calls import NotLeader
from raft_client.core.entries_stream import SnapshotPolicy
from raft_client.core.stream_actions import Freshness
from raft_client.errors import ClientClosedError, HistoryOutrunError, ProtocolError
from raft_client.wire.log_entry import SnapshotChunk


def caught_up(log: Log) -> Shell:
    """A subscription that has handed out what was there."""
    shell = subscribe(log)
    shell.take_all()
    return shell


def append(shell: Shell, count: int = 1, *, lost: bool = False) -> None:
    """New entries, broadcast together."""
    first = shell.leader.log.end + 1
    for _ in range(count):
        shell.leader.log.append()
    if not lost:
        shell.hear(shell.broadcast(first, shell.leader.log.end))


def lose_connection(shell: Shell, url: str) -> None:
    """libzmq tells that the connection of a SUB socket broke."""
    shell.machine.connection_lost(url, shell.now)
    shell.act()
    shell.settle()


def expect(shell: Shell, index: int) -> None:
    """The application knows of an entry."""
    shell.machine.expect(index, shell.now)
    shell.act()


# -- what happens -----------------------------------------------------------------------------------------------------


def test_what_is_there_comes_and_then_what_is_broadcast() -> None:
    """History comes first, then the live entries, and every index once."""
    shell = subscribe(log_of(20))
    assert indexes(shell.take_all()) == list(range(1, 21))
    assert shell.sub == "tcp://pub/1"
    append(shell, 3)
    append(shell)
    assert indexes(shell.take_all()) == [21, 22, 23, 24]
    assert shell.states == [Freshness.FRESH]


def test_a_subscription_can_start_now() -> None:
    """A subscription from now starts at the end of the log that the leader tells; before, nothing is read or listened
    to."""
    shell = subscribe(log_of(20), after=None)
    assert (shell.machine.is_placed, shell.listened) == (False, [])
    assert shell.take_all() == []
    assert shell.machine.is_placed
    append(shell, 2)
    assert indexes(shell.take_all()) == [21, 22]
    assert shell.machine.taken.term > 0


def test_a_lost_broadcast_is_fetched() -> None:
    """A lost broadcast shows as a gap at the next one and is read from the log; meanwhile the subscription is stale by
    it."""
    shell = caught_up(log_of(2))
    shell.heartbeat()
    append(shell, 3, lost=True)
    append(shell)
    assert shell.machine.state.freshness is Freshness.STALE
    assert shell.machine.state.missing == 4
    assert indexes(shell.take_all()) == [3, 4, 5, 6]
    assert shell.machine.state.freshness is Freshness.FRESH


def test_a_heartbeat_shows_a_gap() -> None:
    """A heartbeat shows the gap if no entry follows the lost ones."""
    shell = caught_up(log_of(2))
    append(shell, 3, lost=True)
    shell.heartbeat()
    assert indexes(shell.take_all()) == [3, 4, 5]


def test_broadcasts_wait_while_a_gap_is_filled() -> None:
    """What is broadcast while a gap is read is neither lost nor handed out early."""
    shell = caught_up(log_of(2))
    append(shell, 2, lost=True)
    append(shell)
    asked = shell.ids
    append(shell, 2)
    assert shell.machine.next_batch(0.0) is None
    assert indexes(shell.take_all()) == [3, 4, 5, 6, 7]
    assert shell.ids == asked, "they were kept, and not read again"


def test_broadcasts_of_other_clusters_are_ignored() -> None:
    """Broadcasts of another cluster, which a SUB socket lets through if its ident starts like ours, are ignored (facts
    §1.4)."""
    shell = caught_up(log_of(2))
    shell.leader.log.append()
    for frames in ([b"test2", *shell.broadcast(3, 3)[1:]], [b""], [], [IDENT], [IDENT, b"\x01", b"", b"x"]):
        shell.hear(frames)
    assert shell.machine.next_batch(0.0) is None
    shell.hear(shell.broadcast(3, 3))
    assert indexes(shell.take_all()) == [3]


def test_silence_leads_to_the_new_leader() -> None:
    """After a second without a broadcast the leader is searched, and what was missed is read from it."""
    shell = caught_up(log := log_of(2))
    shell.heartbeat()
    shell.advance(0.9)
    assert shell.machine.state.freshness is Freshness.FRESH
    log.append()
    shell.fail_over(ModelPeer(log, name="2"))
    shell.advance(0.2)
    assert shell.states[-1] is Freshness.SILENT
    assert indexes(shell.take_all()) == [3]
    assert shell.listened == ["tcp://pub/1", "tcp://pub/2"]
    append(shell)
    assert indexes(shell.take_all()) == [4]
    assert shell.states[-1] is Freshness.FRESH


def _with_pauses_of(seconds: float, log: Log) -> Shell:
    shell = caught_up(log)
    for _ in range(5):
        shell.advance(seconds)
        shell.heartbeat()
    return shell


def test_a_pause_out_of_the_ordinary_leads_to_the_new_leader() -> None:
    """Three times as long as any was: the leader is asked, and where another one leads, that one is listened to."""
    shell = _with_pauses_of(0.1, log := log_of(2))
    log.append()
    shell.fail_over(ModelPeer(log, name="2"))
    shell.advance(0.29)
    assert shell.take_all() == []
    shell.advance(0.02)
    assert indexes(shell.take_all()) == [3]
    assert shell.listened == ["tcp://pub/1", "tcp://pub/2"]
    assert Freshness.SILENT not in shell.states


def test_a_leader_that_lives_and_pauses_is_listened_to_as_before() -> None:
    """It is asked once, and not again before it has broadcast; its pauses are ordinary then. When it is silent for as
    long as the caller says, the connection is made anew."""
    shell = _with_pauses_of(0.1, log_of(2))
    asked = shell.ids
    shell.advance(0.9)
    shell.settle()
    assert shell.ids > asked
    asked = shell.ids
    shell.heartbeat()
    shell.advance(0.9)
    shell.settle()
    assert (shell.listened, shell.ids, shell.states) == (["tcp://pub/1"], asked, [Freshness.FRESH])
    shell.advance(0.2)
    shell.settle()
    assert shell.listened == ["tcp://pub/1", "tcp://pub/1"]


def test_leaders_that_broadcast_rarely_are_not_asked() -> None:
    """Node peers do so twice a second; three pauses of theirs are longer than the silence that is waited for."""
    shell = _with_pauses_of(0.5, log_of(2))
    asked = shell.ids
    shell.advance(0.9)
    shell.settle()
    assert shell.ids == asked


def test_the_same_leader_is_listened_to_anew() -> None:
    """A connection to the same leader that is silent is made anew, as often as that happens."""
    shell = caught_up(log_of(2))
    for _ in range(3):
        shell.advance(1.1)
        shell.take_all()
    assert shell.listened == ["tcp://pub/1"] * 4


def test_a_hint_saves_the_silence() -> None:
    """When the client has found another leader, the subscription follows at once."""
    shell = caught_up(log := log_of(2))
    shell.heartbeat()
    shell.fail_over(ModelPeer(log, name="2"))
    shell.machine.leader_changed(shell.now)
    shell.act()
    shell.settle()
    assert shell.sub == "tcp://pub/2"


def test_a_broken_connection_saves_the_silence() -> None:
    """When the connection to the leader breaks, the new one is looked for at once, and nothing counts as silent yet."""
    log = log_of(2)
    shell = caught_up(log)
    shell.advance(0.5)
    shell.heartbeat()
    shell.fail_over(ModelPeer(log, name="2"))
    log.append()
    lose_connection(shell, "tcp://pub/9")
    assert shell.sub == "tcp://pub/1", "that of another socket, which is closed"
    lose_connection(shell, "tcp://pub/1")
    assert shell.sub == "tcp://pub/2"
    assert indexes(shell.take_all()) == [3]
    assert Freshness.SILENT not in shell.states


def test_a_connection_that_cannot_be_made_is_not_tried_in_a_loop() -> None:
    """A leader at whose URL nobody listens is asked for it ten times a second, and not in a loop."""
    shell = caught_up(log_of(2))
    for _ in range(100):
        shell.advance(0.01)
        lose_connection(shell, "tcp://pub/1")
    assert 9 <= len(shell.listened) <= 12


def test_a_connection_that_comes_back_is_kept() -> None:
    """libzmq connects again by itself: if the leader is heard before it was looked for, nothing is done."""
    shell = caught_up(log_of(2))
    lose_connection(shell, "tcp://pub/1")
    shell.heartbeat()
    shell.advance(0.3)
    assert shell.listened == ["tcp://pub/1"]


def test_what_is_expected_is_read_soon_if_it_is_not_broadcast() -> None:
    """An index that an append has answered is waited for a tenth of a second, and then read."""
    shell = caught_up(log_of(2))
    shell.heartbeat()
    shell.leader.log.append()
    shell.leader.log.append()
    expect(shell, 4)
    assert shell.machine.state.missing == 2
    shell.hear(shell.broadcast(3, 3))
    asked = shell.ids
    shell.advance(0.09)
    assert (indexes(shell.take_all()), shell.ids) == ([3], asked), "the next broadcast may be on its way"
    shell.advance(0.02)
    assert indexes(shell.take_all()) == [4]
    expect(shell, 4)
    deadline = shell.machine.next_deadline()
    assert deadline is not None
    assert deadline > shell.now + 0.1, "it is there already"


def test_what_is_expected_before_it_is_known_where_the_log_ends_counts() -> None:
    """A subscription from now on can be told what to expect before the leader has told the end of the log."""
    log = log_of(2)
    shell = subscribe(log, after=None)
    expect(shell, 3)
    shell.settle()
    log.append()
    shell.advance(0.11)
    assert indexes(shell.take_all()) == [3], "no broadcast told of it"


def test_broadcasts_from_a_former_url_are_ignored() -> None:
    """A broadcast from a former URL, on its way when the socket was closed, is ignored."""
    shell = caught_up(log_of(2))
    shell.leader.log.append()
    shell.machine.receive_broadcast("tcp://pub/9", shell.broadcast(3, 3), 0.0)
    assert shell.machine.next_batch(0.0) is None


def test_only_the_leaders_broadcasts_are_asked_for() -> None:
    """Only the leader is asked for its broadcast URL, because nobody speaks at that of another peer."""
    shell = subscribe(log_of(1))
    peer = ModelPeer(log_of(1), leads=False, leader_name="2")
    finder = next(iter(shell.conversations))
    assert finder.receive(peer.receive(b"\x01", finder.frames())[0][1:]) == NotLeader("2")


def test_a_leader_that_lags_is_not_asked_in_a_loop() -> None:
    """A new leader that lags behind lost broadcasts is asked ten times a second, and not in a loop."""
    log = log_of(5)
    shell = caught_up(log)
    append(shell, 2, lost=True)
    shell.leader.applied = 5
    shell.hear([IDENT, b"\x01", uint(7)])
    before = shell.ids
    for _ in range(10):
        shell.hear([IDENT, b"\x01", uint(7)])
        shell.settle()
        shell.advance(0.1)
    assert shell.ids - before < 15
    shell.settle()
    shell.leader.applied = None
    shell.advance(0.2)
    assert indexes(shell.take_all()) == [6, 7]


# -- compacted logs ---------------------------------------------------------------------------------------------------


def test_history_that_was_outrun_ends_the_subscription_if_so_asked() -> None:
    """A subscription that refuses snapshots ends at one, after what came before, with an error that says where it
    ends."""
    log = log_of(20)
    shell = subscribe(log, snapshot=SnapshotPolicy.REFUSE)
    taken = shell.take_all()
    append(shell, 5, lost=True)
    shell.leader.compacted = 23
    shell.heartbeat()
    taken += shell.take_all()
    assert indexes(taken) == list(range(1, 21))
    assert isinstance(shell.machine.error, HistoryOutrunError)
    assert shell.machine.error.snapshot_index == 23
    assert shell.sub is None
    assert not shell.conversations


# -- slow consumers ---------------------------------------------------------------------------------------------------


def test_a_slow_consumer_misses_nothing() -> None:
    """A full queue drops broadcasts, which are read from the log when there is room."""
    shell = subscribe(log_of(0), buffer_bytes=200)
    shell.take_all()
    shell.heartbeat()
    for _ in range(50):
        append(shell)
    assert shell.machine.position < 15
    assert shell.states[-1] is Freshness.STALE
    assert shell.machine.state.missing > 35
    assert not shell.conversations, "nothing is read before there is room"
    assert indexes(shell.take_all()) == list(range(1, 51))
    assert shell.states[-1] is Freshness.FRESH


def test_a_slow_consumer_stops_the_reader() -> None:
    """While history is read, no more than the buffer and the peer's window is held for a slow consumer."""
    shell = subscribe(log_of(500), buffer_bytes=200)
    shell.settle()
    assert shell.machine.position < 60
    for _ in range(40):
        append(shell, 5)
    assert indexes(shell.take_all()) == list(range(1, 701))


# -- the end ----------------------------------------------------------------------------------------------------------


def test_closing_ends_everything() -> None:
    """Closing cancels calls and tells their peers, closes the SUB socket, and hands out nothing more."""
    shell = subscribe(log_of(100))
    shell.deliver(next(c for c in shell.conversations if hasattr(c, "stop")))
    shell.machine.close()
    shell.act()
    assert shell.machine.next_batch(0.0) is None
    assert isinstance(shell.machine.error, ClientClosedError)
    assert not shell.conversations
    assert not shell.leader.streams
    assert shell.machine.next_deadline() is None
    shell.machine.close()
    shell.machine.tick(9.0)
    shell.machine.leader_changed(9.0)
    assert not shell.machine.take_actions()


@pytest.mark.parametrize("which", [0, 1])
def test_a_call_that_fails_ends_the_subscription(which: int) -> None:
    """When the search or the reader fails, the subscription ends with its error."""
    shell = subscribe(log_of(5))
    call = list(shell.conversations)[which]
    del shell.conversations[call]
    error = ProtocolError("broken")
    woken = shell.woken
    shell.machine.failed(call, error, 0.0)
    shell.act()
    assert shell.machine.error is error
    assert shell.woken > woken
    assert not shell.conversations


# -- any schedule ------------------------------------------------------------------------------------------------------


class SubscriptionMachine(RuleBasedStateMachine):
    """Broadcasts that are lost, repeated, late and reordered; leaders that change and compact; a lazy consumer."""

    @initialize(after=st.integers(0, 10), buffer=st.sampled_from([1, 100, 1_000_000]))
    def begin(self, after: int, buffer: int) -> None:
        self.log = log_of(10)
        self.shell = subscribe(self.log, after, buffer_bytes=buffer)
        self.expected = after + 1
        self.partial = b""
        self.in_the_air: list[list[bytes]] = []
        self.names = 1

    def check(self, batches: list[Any]) -> None:
        for batch in batches:
            if isinstance(batch, SnapshotChunk):
                self.partial = batch.data if batch.is_first else self.partial + batch.data
                wholes = [snapshot_bytes(batch.index, batch.size, maker) for maker in range(self.names + 1)]
                assert any(whole[: batch.end] == self.partial for whole in wholes)
                assert batch.index >= self.expected
                self.expected = batch.index + 1 if batch.is_last else self.expected
            else:
                for entry in batch:
                    assert entry.index == self.expected
                    assert entry.data == b"data %d" % entry.index
                    self.expected += 1

    @rule(count=st.integers(1, 5), fate=st.sampled_from(["heard", "heard", "lost", "late"]))
    def append(self, count: int, fate: str) -> None:
        first = self.log.end + 1
        for _ in range(count):
            self.log.append()
        frames = self.shell.broadcast(first, self.log.end)
        if fate == "heard":
            self.shell.hear(frames)
        elif fate == "late":
            self.in_the_air.append(frames)

    @precondition(lambda self: self.in_the_air)
    @rule(data=st.data(), again=st.booleans())
    def late_broadcast(self, data: st.DataObject, again: bool) -> None:
        place = data.draw(st.integers(0, len(self.in_the_air) - 1))
        self.shell.hear(self.in_the_air[place])
        if not again:
            del self.in_the_air[place]

    @rule()
    def heartbeat(self) -> None:
        self.shell.heartbeat()

    @precondition(lambda self: any(c.inbox for c in self.shell.conversations.values()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        busy = [c for c, conversation in self.shell.conversations.items() if conversation.inbox]
        self.shell.deliver(busy[data.draw(st.integers(0, len(busy) - 1))])

    @rule(compacted=st.integers(0, 30), batch=st.integers(1, 5), hint=st.booleans())
    def change_leader(self, compacted: int, batch: int, hint: bool) -> None:
        self.names += 1
        compacted = min(compacted, self.log.end)
        peer = ModelPeer(self.log, name=str(self.names), compacted=compacted, batch=batch, snapshot_maker=self.names)
        self.shell.fail_over(peer)
        if hint:
            self.shell.machine.leader_changed(self.shell.now)
            self.shell.act()

    @rule()
    def lose_connection(self) -> None:
        if self.shell.sub is not None:
            self.shell.machine.connection_lost(self.shell.sub, self.shell.now)
            self.shell.act()

    @rule()
    def expect(self) -> None:
        self.shell.machine.expect(self.log.end, self.shell.now)
        self.shell.act()

    @rule(seconds=st.sampled_from([0.05, 0.6, 1.2, 7.0]))
    def wait(self, seconds: float) -> None:
        if seconds > 5:
            self.shell.leader.streams.clear()
            for call, conversation in list(self.shell.conversations.items()):
                if not conversation.inbox and not call.paused:
                    self.shell.send(call)  # the request machine's time-out
        self.shell.advance(seconds)

    @rule()
    def take(self) -> None:
        batch = self.shell.machine.next_batch(self.shell.now)
        self.shell.act()
        if batch is not None:
            self.check([batch])

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        assert self.shell.machine.error is None
        for _ in range(4):
            for call, conversation in list(self.shell.conversations.items()):
                if not conversation.inbox and not call.paused:
                    self.shell.send(call)
            self.check(self.shell.take_all())
            self.shell.advance(0.2)
            self.shell.heartbeat()
        self.check(self.shell.take_all())
        assert self.expected == self.log.end + 1
        assert self.shell.machine.state.freshness is Freshness.FRESH
        assert self.shell.states[-1] is Freshness.FRESH


SubscriptionMachine.TestCase.settings = settings(
    max_examples=max(30, scaled(150, 1500)), stateful_step_count=40, deadline=None
)
TestAnySchedule = pytest.mark.scaled(SubscriptionMachine.TestCase)
