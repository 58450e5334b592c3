"""The protocol written by hand with pyzmq, as little as works while nothing fails: what the client is compared to.

One blocking DEALER to the leader. No discovery, no recovery, no checks: a lower bound, not a client. When the leader is
another one it raises NotLeaderError, and NoLeaderError after ten seconds of silence.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final, Self

import msgpack
import zmq

from raft_client.errors import NoLeaderError, NotLeaderError

__all__ = ["RawPyzmq"]

_UPDATE: Final = b"\x3d"
_ENTRIES: Final = b"\x3c"
_MORE: Final = b"\x02"
#: The first frame of the answer: false to an append, status 0 to a read.
_REFUSED: Final = (b"", b"\x00")
_SILENCE_MS: Final = 10_000


class RawPyzmq:
    """Use as a context manager. One thread."""

    def __init__(self, leader_url: str, ident: bytes = b"") -> None:
        self._ident = ident
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvtimeo = _SILENCE_MS
        self._socket.connect(leader_url)
        self._count = int.from_bytes(os.urandom(8), "big") >> 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    def _send(self, seconds: bytes, data: bytes) -> bytes:
        self._count += 1
        request_id = seconds + self._count.to_bytes(8, "big")
        self._socket.send_multipart([request_id, _UPDATE, self._ident, data])
        return request_id

    def _receive(self) -> list[bytes]:
        try:
            answer = self._socket.recv_multipart()
        except zmq.Again:
            raise NoLeaderError("the leader has stopped answering") from None
        if answer[1] in _REFUSED:
            raise NotLeaderError
        return answer

    def append(self, seconds: int, data: bytes) -> int:
        """Append and wait; returns the index. ``seconds`` since 1970 are the age of the request id."""
        self._send(seconds.to_bytes(4, "big"), data)
        while len(answer := self._receive()) < 3:
            pass
        index: int = msgpack.unpackb(answer[2])
        return index

    def append_many(self, seconds: int, data: bytes, count: int, in_flight: int) -> None:
        """Append ``data`` this many times, ``in_flight`` at once."""
        age = seconds.to_bytes(4, "big")
        pending = {self._send(age, data) for _ in range(min(in_flight, count))}
        left = count - len(pending)
        while pending:
            answer = self._receive()
            if len(answer) < 3:
                continue
            msgpack.unpackb(answer[2])
            pending.remove(answer[0])
            if left:
                left -= 1
                pending.add(self._send(age, data))

    def stream(self, after: int, count: int | None = None) -> tuple[int, int]:
        """Read ``count`` entries, or all to the end; returns the number of entries and of their bytes."""
        self._count += 1
        head = [(self._count & 0xFFFFFF).to_bytes(3, "little"), _ENTRIES, self._ident]
        limit = [] if count is None else [count.to_bytes(7, "little")]
        self._socket.send_multipart([*head, after.to_bytes(7, "little"), *limit])
        entries = size = 0
        while True:
            _, status, _, last, *frames = self._receive()
            entries += len(frames)
            size += sum(map(len, frames))
            if status != _MORE:
                return entries, size
            self._socket.send_multipart([*head, last])
