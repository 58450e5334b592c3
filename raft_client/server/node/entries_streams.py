"""RequestEntries: the applied entries, or the snapshot when they were compacted, as a stream with a window.

A leader sends up to five messages (two of a snapshot) before the first one is confirmed. A stream is known by the route
and request id of its client. Each message but the last one is confirmed by one follow-up, in order; a follow-up that is
not the expected one ends the stream and begins another one. ``count=0`` ends it without a reply. A stream without
follow-ups is forgotten after a while, and when this peer stops leading. (ØMQ Raft protocol, "RequestEntries RPC";
facts §1.4)

A new leader answers when it knows, and has applied, all that leaders before it may have acknowledged. Until then, some
milliseconds as a rule, requests wait: a log that ends earlier than what the client was told would be taken for all.

Reading for streams takes a bounded part of each turn, and the streams take it by turns: a thousand new ones keep
neither heartbeats nor other clients waiting. Where there are too many, the one that was heard longest ago goes: its
follow-up, if there ever is one, begins a new one.

Where the Node peers do not answer, this peer does: an empty snapshot is one empty chunk.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.server.node.ready import Answer
from raft_client.wire.log_entry import SnapshotChunk
from raft_client.wire.streams import EntriesReply, EntriesStatus, RequestEntries

if TYPE_CHECKING:
    from raft_client.server.node.commit import Commit
    from raft_client.server.node.ready import Request, SnapshotMeta
    from raft_client.server.node.state import NodeState

#: Facts §1.4: a message has no more entries than this, however short they are.
_MAX_ENTRIES: Final = 4096
_SWEEP_S: Final = 2.0
#: What is read and sent between two ticks, and what a message costs beside its bytes.
_TICK_BYTES: Final = 1024 * 1024
_MESSAGE_BYTES: Final = 4096


@attrs.define(eq=False)
class _Stream:
    """Entries up to ``last``; ``unconfirmed`` are the last indexes of the messages that wait for a follow-up."""

    request: Request
    sent: int
    last: int
    expires_at: float
    unconfirmed: deque[int] = attrs.field(factory=deque)
    is_slow: bool = False  # the last message was one very long entry
    waits_for_disk: bool = False


@attrs.define(eq=False)
class _SnapshotStream:
    """Chunks of ``meta`` from ``sent`` on; ``unconfirmed`` are the offsets where they end."""

    request: Request
    meta: SnapshotMeta
    sent: int
    expires_at: float
    is_empty: bool = False  # one empty chunk is still to be sent
    waits_for_disk: bool = False
    unconfirmed: deque[int] = attrs.field(factory=deque)


class EntriesStreams:
    """The streams of a leader."""

    def __init__(self, state: NodeState, commit: Commit) -> None:
        self._state, self._commit = state, commit
        self._serves_in = 0  # the term in which this leader has applied what those before it acknowledged
        self._waiting_for_commit: dict[tuple[bytes, bytes], Request] = {}  # those that wait for that
        #: The one that was heard longest ago is the first.
        self._streams: dict[tuple[bytes, bytes], _Stream | _SnapshotStream] = {}
        self._throttled: dict[tuple[bytes, bytes], None] = {}  # those that wait for their turn, in this order
        self._left = _TICK_BYTES
        self._sweep_at = state.now + _SWEEP_S

    def __len__(self) -> int:
        return len(self._streams)

    def on_request(self, request: Request, message: RequestEntries) -> None:
        """A new stream, or a follow-up of one."""
        state = self._state
        if not state.is_leader:
            state.answer(request, EntriesReply(EntriesStatus.NOT_LEADER, leader_id=state.leader_id))
            return
        key = (request.route, request.request_id)
        if not self._serves:
            self._wait(key, request, message)
            return
        stream = self._streams.get(key)
        if stream is not None:
            if message.count != 0 and self._confirm(stream, message):
                stream.expires_at = state.now + state.settings.stream_ttl_s
                self._streams[key] = self._streams.pop(key)
                self._send(key, stream)
                return
            del self._streams[key]
        if message.count != 0:
            self._begin(key, request, message)

    @property
    def _serves(self) -> bool:
        state = self._state
        if self._serves_in != state.term and self._commit.is_current and state.applied_index >= state.commit_index:
            self._serves_in = state.term
        return self._serves_in == state.term

    def _wait(self, key: tuple[bytes, bytes], request: Request, message: RequestEntries) -> None:
        self._waiting_for_commit.pop(key, None)
        if message.count != 0:
            if len(self._waiting_for_commit) >= self._state.settings.max_streams:
                del self._waiting_for_commit[next(iter(self._waiting_for_commit))]
            self._waiting_for_commit[key] = request

    def settle(self) -> None:
        """Streams end without a word: a client that hears nothing asks again, and learns who leads then."""
        if not self._state.is_leader:
            self._streams.clear()
            self._throttled.clear()
        if self._waiting_for_commit and (not self._state.is_leader or self._serves):
            early, self._waiting_for_commit = self._waiting_for_commit, {}
            for request in early.values():
                if isinstance(request.message, RequestEntries):
                    self.on_request(request, request.message)

    def tick(self) -> None:
        """Go on with those that wait; forget those that nobody follows, not more often than every other second."""
        now = self._state.now
        self._left = _TICK_BYTES
        while self._throttled and self._left > 0:
            key = next(iter(self._throttled))
            del self._throttled[key]
            if (waiting := self._streams.get(key)) is not None:
                self._send(key, waiting)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            for key in [key for key, stream in self._streams.items() if now > stream.expires_at]:
                del self._streams[key]

    def on_disk_read(self) -> None:
        """Go on with the streams that wait for the disk, in the next tick."""
        for key, stream in self._streams.items():
            if stream.waits_for_disk:
                stream.waits_for_disk = False
                self._throttled[key] = None

    @property
    def next_deadline(self) -> float:
        """When to look at them again."""
        if self._throttled:
            return self._state.now
        return self._sweep_at if self._streams else math.inf

    # -- entries -------------------------------------------------------------------------------------------------------

    def _begin(self, key: tuple[bytes, bytes], request: Request, message: RequestEntries) -> None:
        state = self._state
        expires_at = state.now + state.settings.stream_ttl_s
        stream: _Stream | _SnapshotStream
        if message.after + 1 < state.log.first_index:
            meta = state.log.stored.snapshot
            if meta is None:
                return
            offset = min(message.snapshot_offset or 0, meta.size)
            stream = _SnapshotStream(request, meta, offset, expires_at, is_empty=offset == meta.size)
        else:
            last = state.applied_index
            if message.count is not None:
                last = min(last, message.after + message.count)
            if last <= message.after:
                state.answer(request, EntriesReply(EntriesStatus.LAST, state.applied_index))
                return
            stream = _Stream(request, message.after, last, expires_at)
        if len(self._streams) >= state.settings.max_streams:
            del self._streams[next(iter(self._streams))]
        self._streams[key] = stream
        self._send(key, stream)

    def _confirm(self, stream: _Stream | _SnapshotStream, message: RequestEntries) -> bool:
        """Whether this is the follow-up that is due."""
        if not stream.unconfirmed:
            return False
        expected = stream.unconfirmed.popleft()
        if isinstance(stream, _Stream):
            stream.is_slow = False
            return message.after == expected
        return message.after < stream.meta.index and message.snapshot_offset in (None, expected)

    def _send(self, key: tuple[bytes, bytes], stream: _Stream | _SnapshotStream) -> None:
        """Fill the window. A stream ends when only its last message is not confirmed: that one never is."""
        if self._left <= 0:
            self._throttled[key] = None
            return
        is_done = self._send_entries(stream) if isinstance(stream, _Stream) else self._send_chunks(stream)
        if is_done and len(stream.unconfirmed) <= 1:
            self._streams.pop(key, None)
        elif self._left <= 0:
            self._throttled[key] = None  # there may be room in its window

    def _send_entries(self, stream: _Stream) -> bool:
        settings = self._state.settings
        if stream.sent + 1 < self._state.log.first_index:
            stream.unconfirmed.clear()
            return True  # compacted meanwhile; the client asks anew, and gets the snapshot
        while stream.sent < stream.last and len(stream.unconfirmed) < settings.stream_window and not stream.is_slow:
            if self._left <= 0:
                return False
            at_hand = self._state.log.last_at_hand(stream.sent, settings.max_message_bytes)
            stream.waits_for_disk = at_hand <= stream.sent
            if stream.waits_for_disk:
                return False
            last = min(stream.last, stream.sent + _MAX_ENTRIES, at_hand)
            entries = self._state.log.entries(stream.sent, last, settings.max_message_bytes)
            stream.sent = entries[-1].index
            self._left -= _MESSAGE_BYTES + sum(entry.size for entry in entries)
            stream.is_slow = len(entries) == 1 and entries[0].size > settings.max_message_bytes
            stream.unconfirmed.append(stream.sent)
            status = EntriesStatus.LAST if stream.sent == stream.last else EntriesStatus.MORE
            self._answer(stream, EntriesReply(status, stream.sent, entries))
        return stream.sent == stream.last

    def _send_chunks(self, stream: _SnapshotStream) -> bool:
        state, meta = self._state, stream.meta
        if state.log.stored.snapshot != meta:
            stream.unconfirmed.clear()
            return True  # there is another one: those bytes are gone, and the client asks anew
        size = state.settings.max_message_bytes
        while (stream.sent < meta.size or stream.is_empty) and len(stream.unconfirmed) < state.settings.snapshot_window:
            if self._left <= 0:
                return False
            stream.waits_for_disk = not state.log.stored.is_snapshot_at_hand(stream.sent, size)
            if stream.waits_for_disk:
                return False
            data = b"" if stream.is_empty else state.log.stored.read_snapshot(stream.sent, size)
            chunk = SnapshotChunk(meta.index, meta.term, stream.sent, meta.size, data)
            stream.is_empty = False
            self._left -= _MESSAGE_BYTES + len(data)
            stream.sent = chunk.end
            stream.unconfirmed.append(stream.sent)
            self._answer(stream, EntriesReply(EntriesStatus.CHUNK, meta.index, chunk=chunk))
        return stream.sent == meta.size

    def _answer(self, stream: _Stream | _SnapshotStream, reply: EntriesReply) -> None:
        self._state.send(Answer(stream.request.route, stream.request.request_id, reply))
