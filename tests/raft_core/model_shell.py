"""What a shell does for a subscription or watches, against naive peers: calls, follow-ups, one SUB socket, a clock."""

from __future__ import annotations

from typing import Any

from model_peer import IDENT, Log, ModelPeer, uint

from raft_client.core.calls import Again, Call, Failed, Finished, FollowUps, NotLeader, Retry
from raft_client.core.stream_actions import (
    Cancel,
    FollowUp,
    Freshness,
    Listen,
    Restart,
    StopListening,
    Submit,
)
from raft_client.core.subscription import Subscription
from raft_client.wire.log_entry import Position, SnapshotChunk


class Conversation:
    """A call under way: its ids, its peer, and the replies that have not arrived."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.peer: ModelPeer | None = None
        self.id = b""
        self.inbox: list[list[bytes]] = []


class Shell:
    """Carries out what a subscription or watches ask for: calls to a model cluster's leader, and one SUB socket."""

    def __init__(self, machine: Any, leader: ModelPeer) -> None:
        self.machine = machine
        self.leader = leader
        self.now = 0.0
        self.ids = 0
        self.conversations: dict[Call, Conversation] = {}
        self.sub: str | None = None
        self.listened: list[str] = []
        self.states: list[Freshness] = []  # one after the other; at first it is stale
        self.freshness = Freshness.STALE
        self.woken = 0  # as the consumer of a subscription

    def notify(self) -> None:
        self.woken += 1

    def act(self) -> None:
        """Carry out all actions, and look how fresh the machine is now."""
        while actions := self.machine.take_actions():
            for action in actions:
                self.act_on(action)
        if self.machine.state.freshness is not self.freshness and getattr(self.machine, "error", None) is None:
            self.freshness = self.machine.state.freshness
            self.states.append(self.freshness)

    def act_on(self, action: Any) -> None:
        match action:
            case Submit(call=call):
                assert call not in self.conversations
                self.conversations[call] = Conversation(call)
                self.send(call)
            case FollowUp(call=call, frames=follow_ups):
                for frames in follow_ups:
                    self.tell(call, frames)
            case Restart(call=call, last=last):
                self.tell(call, last or [])
                self.send(call)
            case Cancel(call=call, last=last):
                if last:
                    self.tell(call, last)
                del self.conversations[call]
            case Listen(url=url):
                assert self.sub is None
                self.sub = url
                self.listened.append(url)
            case StopListening(url=url):
                assert self.sub == url
                self.sub = None
            case _:
                raise AssertionError(action)

    def send(self, call: Call) -> None:
        """Ask the leader, under a new id."""
        conversation = self.conversations[call]
        self.ids += 1
        if conversation.peer is not None and conversation.peer is not self.leader:
            call.moved()
        conversation.id, conversation.peer, conversation.inbox = uint(self.ids), self.leader, []
        self.tell(call, call.frames())

    def tell(self, call: Call, frames: list[bytes]) -> None:
        """More frames under the present id."""
        conversation = self.conversations[call]
        assert conversation.peer is not None
        conversation.inbox += conversation.peer.receive(conversation.id, frames)

    def deliver(self, call: Call) -> None:
        """The oldest reply to a call arrives."""
        conversation = self.conversations[call]
        request_id, *frames = conversation.inbox.pop(0)
        if request_id != conversation.id:
            return
        verdict = call.receive(frames)
        match verdict:
            case FollowUps(frames=follow_ups, wake=wake):
                for follow_up in follow_ups:
                    self.tell(call, follow_up)
                if wake:
                    self.machine.wake(call, self.now)
            case Again(last=last):
                self.tell(call, last or [])
                self.send(call)
            case NotLeader() | Retry():
                self.send(call)
            case Finished(result=result, last=last):
                if last:
                    self.tell(call, last)
                del self.conversations[call]
                self.machine.finished(call, result, self.now)
            case Failed(error=error, last=last):
                if last:
                    self.tell(call, last)
                del self.conversations[call]
                self.machine.failed(call, error, self.now)
        self.act()

    def fail_over(self, leader: ModelPeer) -> None:
        """Another leader: what is under way is lost, and asked again there."""
        self.leader = leader
        for call in list(self.conversations):
            self.send(call)

    def broadcast(self, first: int, last: int, *, leader: ModelPeer | None = None) -> list[bytes]:
        """The frames of a broadcast of these entries; none when ``first`` is greater than ``last``."""
        frames = (leader or self.leader).log.frames[first - 1 : last]
        return [IDENT, b"\x01", uint(last), *frames]

    def hear(self, frames: list[bytes], url: str | None = None) -> None:
        """A broadcast arrives on the SUB socket, if there is one."""
        if self.sub is not None and (url is None or url == self.sub):
            self.machine.receive_broadcast(self.sub, frames, self.now)
            self.act()

    def heartbeat(self) -> None:
        """The leader's broadcast without entries."""
        self.hear(self.broadcast(self.leader.log.end + 1, self.leader.end))

    def advance(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        end = self.now + seconds
        while (deadline := self.machine.next_deadline()) is not None and deadline <= end:
            assert deadline >= self.now - 1e-9 or self.now == 0.0
            self.now = max(self.now, deadline)
            self.machine.tick(self.now)
            self.act()
        self.now = end

    def settle(self, limit: int = 5_000) -> None:
        """Deliver all that is under way."""
        for _ in range(limit):
            busy = [c for c, conversation in self.conversations.items() if conversation.inbox]
            if not busy:
                return
            self.deliver(busy[0])
        raise AssertionError("it never comes to rest")

    def take_all(self) -> list[Any]:
        """Everything that can be had now, with what arrives meanwhile."""
        taken = []
        while True:
            self.settle()
            batch = self.machine.next_batch(self.now)
            self.act()
            if batch is None:
                if not any(c.inbox for c in self.conversations.values()):
                    return taken
                continue
            taken.append(batch)


def log_of(count: int) -> Log:
    """A log of this many entries."""
    log = Log()
    for _ in range(count):
        log.append()
    return log


def subscribe(log: Log, after: Position | int | None = 0, **options: Any) -> Shell:
    """A subscription that was just started."""
    shell = Shell(Subscription(IDENT, after, **options), ModelPeer(log))
    shell.machine.consumer = shell
    shell.machine.start(shell.now)
    shell.act()
    return shell


def indexes(batches: list[Any]) -> list[int]:
    """The indexes of the entries in batches."""
    return [entry.index for batch in batches if not isinstance(batch, SnapshotChunk) for entry in batch]
