"""Callers of one client: what each of them asked, what it may get, and what it must not.

Each caller knows only what the world did to *it*: whether its link broke, whether its own time was up, whether a peer
refused its own id. That is the whole list of its excuses; what other callers do is on no list.
"""

from __future__ import annotations

from typing import Any

import attrs
from model_peer import snapshot_bytes
from raft_network import IDENT, ClientDriver

from raft_client.core.calls import Append, Custom
from raft_client.core.entries_stream import EntriesStream
from raft_client.core.find_broadcast import FindBroadcast
from raft_client.core.request import Request
from raft_client.core.verdicts import Again
from raft_client.errors import (
    ConnectionLostError,
    NoLeaderError,
    OutOfDateLogError,
    RaftError,
    RequestExpiredError,
    RequestTimeoutError,
    TransportError,
)
from raft_client.wire.messages import SnapshotChunk

__all__ = ["Appender", "CustomCaller", "Finder", "Reader"]


@attrs.define(eq=False)
class Appender:
    """One append. ``number`` is its data and its request id; ``is_new``: this is the first call with it."""

    client: ClientDriver
    number: int
    timeout: float | None
    is_new: bool = True
    is_cancelled: bool = False
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        call = Append(IDENT, b"%d" % self.number, self.number.to_bytes(12, "big"), has_new_id=self.is_new)
        self.request = self.client.submit(call, self, timeout=self.timeout)

    @property
    def data(self) -> bytes:
        return b"%d" % self.number

    def check(self, outcome: Any) -> None:
        """The index is where the data stands; an error has a reason of its own, and "not applied" is true."""
        log = self.client.cluster.log
        if not isinstance(outcome, RaftError):
            assert log[outcome - 1] == self.data
            return
        if isinstance(outcome, RequestExpiredError):
            assert self.number.to_bytes(12, "big") in self.client.cluster.refused
        else:
            assert isinstance(outcome, TransportError)
            assert self.timeout is not None
            assert self.client.time >= self.request.deadline
        self.check_truth(outcome)

    def check_truth(self, error: RaftError) -> None:
        """Now and at any later time."""
        assert error.may_have_been_applied or self.data not in self.client.cluster.log
        assert error.request_id is not None
        assert error.request_id.raw == self.number.to_bytes(12, "big")


@attrs.define(eq=False)
class CustomCaller:
    """One message to the state machine, which answers it at once, later, or never."""

    client: ClientDriver
    kind: str
    number: int
    timeout: float | None
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        call = Custom(IDENT, self.kind, (b"%d" % self.number,))
        self.request = self.client.submit(call, self, timeout=self.timeout)

    @property
    def link(self) -> int | None:
        """The one on which it was sent; it is sent once."""
        links = self.client.links_of.get(self.request.request_id, set())
        assert len(links) <= 1
        return next(iter(links), None)

    def check(self, outcome: Any) -> None:
        """Its own answer, or its own link broke, or its own time is up."""
        if isinstance(outcome, ConnectionLostError):
            assert self.link in self.client.broken
            assert outcome.may_have_been_applied
        elif isinstance(outcome, RaftError):
            assert isinstance(outcome, RequestTimeoutError | NoLeaderError)
            assert self.timeout is not None
            assert self.client.time >= self.request.deadline
            assert outcome.may_have_been_applied is (self.link is not None)
        else:
            assert outcome == [b"custom", b"%d" % self.number]

    def check_waiting(self) -> None:
        """While it waits the client keeps its link."""
        assert self.link is None or self.link in self.client.broken or self.link in self.client.links.values()


@attrs.define(eq=False)
class Finder:
    """A subscription's question where the leader broadcasts, which these peers never answer."""

    client: ClientDriver
    request: Request = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.request = self.client.submit(FindBroadcast(IDENT), self)

    def check(self, outcome: Any) -> None:
        raise AssertionError(f"nobody answered, and still: {outcome}")


@attrs.define(eq=False)
class Reader:
    """One stream of entries, and what its reader made of it. ``is_mistaken``: it asks for what never was."""

    client: ClientDriver
    after: int
    is_mistaken: bool
    call: EntriesStream = attrs.field(init=False)
    request: Request = attrs.field(init=False)
    expected: int = attrs.field(init=False)
    piece: bytes = b""
    may_lag: bool = False  # a peer was cut off while it read

    def __attrs_post_init__(self) -> None:
        self.expected = self.after + 1
        self.call = EntriesStream(IDENT, self.after, buffer_bytes=150)
        self.request = self.client.submit(self.call, self)

    def take(self) -> bool:
        """The next batch, as the shells do it; what it holds is what the log holds."""
        batch = self.call.next_batch(self.client.time)
        verdict = self.call.resume()
        if isinstance(verdict, Again):
            self.client.machine.again(self.request, verdict.last, self.client.time)
        elif verdict is not None:
            for frames in verdict.frames:
                self.client.machine.follow_up(self.request, frames, self.client.time)
        self.client.perform()
        if isinstance(batch, SnapshotChunk):
            self._check_chunk(batch)
        elif batch is not None:
            for entry in batch:
                assert entry.index == self.expected
                assert entry.data == self.client.cluster.log[entry.index - 1]
                self.expected += 1
        return batch is not None

    def _check_chunk(self, chunk: SnapshotChunk) -> None:
        self.piece = chunk.data if chunk.is_first else self.piece + chunk.data
        wholes = [snapshot_bytes(chunk.index, chunk.size, maker) for maker in range(1, self.client.cluster.makers + 1)]
        assert any(whole[: chunk.end] == self.piece for whole in wholes), "spliced from two"
        assert chunk.index >= self.expected
        if chunk.is_last:
            self.expected = chunk.index + 1

    def check(self, outcome: Any) -> None:
        """The end of the log as it was when the last entry came; or that it was never so long."""
        if isinstance(outcome, RaftError):
            assert isinstance(outcome, OutOfDateLogError)
            assert self.is_mistaken or self.may_lag
        else:
            assert outcome <= len(self.client.cluster.log)
            assert not self.is_mistaken
