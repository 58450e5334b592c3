"""Watches under any schedule of broadcasts, losses, leaders, compactions and slow readers, against a second opinion."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_peer import ModelPeer
from model_watches import LineCodec, history, start, take, write

from raft_client.core.selectors import Prefix
from raft_client.core.watch_events import Progress, SnapshotEvent
from raft_client.core.watch_state import Phase, WatchState
from raft_client.errors import HistoryOutrunError
from raft_client.wire.key_changes import Change


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


WatchesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnySchedule = WatchesMachine.TestCase
