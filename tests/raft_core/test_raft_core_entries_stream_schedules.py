"""The stream of entries under any schedule: peers that compact and change, lost and repeated messages, slow readers."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from model_peer import IDENT, ModelPeer, snapshot_bytes
from stream_link import Link, log_of

from raft_client.core.entries_stream import EntriesStream
from raft_client.core.verdicts import Finished
from raft_client.wire.messages import SnapshotChunk


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


StreamMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnySchedule = StreamMachine.TestCase
