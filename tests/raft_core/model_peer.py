"""A naive peer for the streaming machines: RequestEntries as facts §1.4 describe it, in its own words and bytes.

It shares no code with the machines: frames are put together and taken apart by hand.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

IDENT = b"test"
ENTRIES = b"\x3c"
CONFIG = b"\x5e"
LOG_INFO = b"\x25"
BROADCAST_URL = b"\x2a"


def uint(number: int) -> bytes:
    """The shortest little-endian form; zero is one byte."""
    out = bytearray()
    while number or not out:
        out.append(number & 0xFF)
        number >>= 8
    return bytes(out)


def number(frame: bytes) -> int:
    """The number that :func:`uint` wrote."""
    return sum(byte << 8 * place for place, byte in enumerate(frame))


def state_entry(index: int, data: bytes | None = None) -> bytes:
    """The frame of an entry: id, kind 0, term 1, and data that names its index."""
    return index.to_bytes(12, "big") + b"\x00" + b"\x01" + bytes(6) + (data if data is not None else b"data %d" % index)


def small(value: int) -> bytes:
    """An unsigned integer in MessagePack, in its longest form, as a Node peer sends sizes."""
    return b"\xce" + value.to_bytes(4, "big")


@dataclass
class Log:
    """What the cluster agreed on; index 1 is the first entry."""

    frames: list[bytes] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.frames)

    def append(self, data: bytes | None = None) -> int:
        self.frames.append(state_entry(self.end + 1, data))
        return self.end


def snapshot_bytes(index: int, length: int, maker: int = 0) -> bytes:
    """The snapshot of the state at ``index``. Each maker has bytes of its own for the same state, in another order."""
    return bytes((index * 31 + maker * 101 + place) % 251 for place in range(length))


@dataclass
class Stream:
    """One conversation: what was not sent yet, and the follow-ups that are due."""

    unsent: deque[tuple[list[bytes], int | None]]  # with what its follow-up must say; the last one gets none
    window: int
    due: deque[int] = field(default_factory=deque)
    is_snapshot: bool = False


@dataclass
class ModelPeer:
    """One peer: how much it has applied, what it compacted, and its open streams."""

    log: Log
    name: str = "1"
    applied: int | None = None  # None: everything
    compacted: int = 0  # the index of its snapshot
    snapshot_length: int = 50
    snapshot_maker: int = 0
    leads: bool = True
    leader_name: str | None = "1"
    batch: int = 3
    chunk: int = 20
    streams: dict[bytes, Stream] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.log.end if self.applied is None else min(self.applied, self.log.end)

    def receive(self, request_id: bytes, frames: list[bytes]) -> list[list[bytes]]:
        """A message of a client; returns replies, the request id in front."""
        kind, ident, *rest = frames
        if ident != IDENT:
            return []
        return [[request_id, *reply] for reply in self._receive(kind, request_id, rest)]

    def _receive(self, kind: bytes, request_id: bytes, rest: list[bytes]) -> list[list[bytes]]:
        leader = b"\xc0" if self.leader_name is None else b"\xa1" + self.leader_name.encode()
        if kind == CONFIG:
            return [[b"\x01" if self.leads else b"", leader, b"\x90"]]
        if kind == LOG_INFO:
            numbers = [1, self.compacted + 1, self.end, self.end, self.end, 0, 0]
            return [[b"\x01" if self.leads else b"", leader, *map(uint, numbers)]]
        if kind == BROADCAST_URL:
            return [[b"tcp://pub/" + self.name.encode()]]
        assert kind == ENTRIES
        return self._entries(request_id, *rest)

    def _entries(self, rid: bytes, prev: bytes, count: bytes = b"", offset: bytes = b"\x00") -> list[list[bytes]]:
        assert prev, "an empty previous index ends the process of a Node peer"
        after = number(prev)
        stream = self.streams.pop(rid, None)
        if count and number(count) == 0:
            return []
        if not self.leads:
            return [[b"\x00", b"\xc0" if self.leader_name is None else b"\xa1" + self.leader_name.encode()]]
        if stream is not None and stream.due and stream.due[0] == after:
            stream.due.popleft()
        else:
            stream = self._open(after, number(count) if count else None, number(offset))
        return self._pump(rid, stream)

    def _pump(self, rid: bytes, stream: Stream) -> list[list[bytes]]:
        out = []
        while stream.unsent and len(stream.due) < stream.window:
            frames, due = stream.unsent.popleft()
            out.append(frames)
            if due is not None:
                stream.due.append(due)
        if stream.unsent or (stream.due and not stream.is_snapshot):
            self.streams[rid] = stream
        elif stream.is_snapshot and stream.due:
            self.streams[rid] = Stream(deque(), stream.window, deque(list(stream.due)[:-1]))
        return out

    def _open(self, after: int, count: int | None, offset: int) -> Stream:
        if after >= self.end:
            return Stream(deque([([b"\x01", b"\xc0", uint(self.end)], None)]), 5)
        if after < self.compacted:
            return self._open_snapshot(after, offset)
        last = self.end if count is None else min(self.end, after + count)
        messages: deque[tuple[list[bytes], int | None]] = deque()
        while after < last:
            up_to = min(last, after + self.batch)
            status, due = (b"\x01", None) if up_to == last else (b"\x02", up_to)
            messages.append(([status, b"\xc0", uint(up_to), *self.log.frames[after:up_to]], due))
            after = up_to
        return Stream(messages, 5)

    def _open_snapshot(self, after: int, offset: int) -> Stream:
        content = snapshot_bytes(self.compacted, self.snapshot_length, self.snapshot_maker)
        size = len(content)
        messages: deque[tuple[list[bytes], int | None]] = deque()
        for start in range(min(offset, size), size, self.chunk) if offset < size else [size]:
            piece = content[start : start + self.chunk]
            info = b"\x93" + small(start) + small(size) + b"\x01"
            due = self.compacted if start + len(piece) == size else after
            messages.append(([b"\x03", info, uint(self.compacted), piece], due))
        return Stream(messages, 2, is_snapshot=True)
