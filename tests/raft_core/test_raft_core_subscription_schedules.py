"""Subscriptions under any schedule of broadcasts, losses and changes of the leader."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_peer import ModelPeer, snapshot_bytes
from model_shell import log_of
from subscription_shell import subscribe

from raft_client.core.freshness import Freshness
from raft_client.wire.messages import SnapshotChunk


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


SubscriptionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnySchedule = SubscriptionMachine.TestCase
