"""What runs a stream of entries against a naive peer, without time, and reads the batches that come of it."""

from __future__ import annotations

from typing import Any

from model_peer import Log, ModelPeer, uint

from raft_client.core.entries_stream import EntriesStream
from raft_client.core.verdicts import Again, Failed, Finished, FollowUps, Verdict
from raft_client.wire.messages import SnapshotChunk

__all__ = ["Link", "indexes", "log_of", "snapshot"]


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


def log_of(count: int) -> Log:
    """A log of this many entries."""
    log = Log()
    for _ in range(count):
        log.append()
    return log


def indexes(batches: list[Any]) -> list[int]:
    """The indexes of the entries in batches."""
    return [entry.index for batch in batches if not isinstance(batch, SnapshotChunk) for entry in batch]


def snapshot(batches: list[Any]) -> bytes:
    """The bytes of the snapshot chunks in batches."""
    return b"".join(batch.data for batch in batches if isinstance(batch, SnapshotChunk))
