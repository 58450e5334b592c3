"""A client of watches that speaks the protocol by itself, frame by frame, and does what it is told and nothing more."""

from __future__ import annotations

import time
from itertools import count
from typing import Self

import zmq
from support.waiting import until

from raft_client.wire.client_requests import RequestLogInfo
from raft_client.wire.hello import Hello, hello_in_reply
from raft_client.wire.log_entry import Position
from raft_client.wire.watch_messages import (
    BeginWatch,
    CancelWatch,
    Events,
    NoSession,
    Seen,
    WatchEnded,
    Watching,
    WatchProgress,
    WatchReply,
    decode_watch_reply,
)

__all__ = ["RawWatcher", "shown"]

HELLO = Hello(None, 1)
_AGAIN_S = 2.0


def shown(events: list[Events]) -> list[tuple[bytes, bytes | None]]:
    """Keys and values of what happened, in order."""
    return [(change.key, change.value) for each in events for change in each.changes]


class RawWatcher:
    """One connection. ``replies`` are what came under each request id; ``received`` counts messages with events."""

    def __init__(self, url: str, ident: bytes = b"") -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.reconnect_ivl = 20
        self.socket.connect(url)
        self.ident = ident
        self.hello: Hello | None = None
        self.session = 0
        self.received = 0
        self.replies: dict[bytes, list[WatchReply]] = {}
        self._numbers = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Like a process that ends: nobody is told."""
        self._context.destroy(linger=0)

    def _new_id(self) -> bytes:
        return next(self._numbers).to_bytes(4, "big")

    def send(self, message: BeginWatch | CancelWatch | Seen, request_id: bytes = b"") -> bytes:
        """Returns the request id."""
        request_id = request_id or self._new_id()
        self.socket.send_multipart([request_id, *message.to_frames()])
        return request_id

    async def say_hello(self) -> Hello | None:
        """What the peer says of itself."""
        self.socket.send_multipart([HELLO.to_request_id(), *RequestLogInfo(self.ident).to_frames()])
        await until(lambda: self.pump() and self.hello is not None, "the answer to hello")
        return self.hello

    async def begin(self, key: bytes, *, is_prefix: bool = False, after: Position | None = None) -> bytes:
        """The request id of the watch, when it is answered."""
        return await self._answered(BeginWatch(self.ident, key, is_prefix, after))

    async def ask(self) -> WatchProgress | NoSession:
        """Say Seen, and hear the answer."""
        request_id = await self._answered(Seen(self.ident, self.session, self.received))
        answer = self.replies.pop(request_id)[0]
        assert isinstance(answer, WatchProgress | NoSession)
        return answer

    async def _answered(self, message: BeginWatch | Seen) -> bytes:
        """The request id, when there is an answer. A message is lost with its connection, so it is said again."""
        request_id = self._new_id()
        say_at = 0.0

        def is_answered() -> bool:
            nonlocal say_at
            if time.monotonic() >= say_at:
                say_at = time.monotonic() + _AGAIN_S
                self.send(message, request_id)
            return self.pump() and request_id in self.replies

        await until(is_answered, f"the answer to {message}")
        return request_id

    def events(self, request_id: bytes) -> list[Events]:
        return [reply for reply in self.replies.get(request_id, []) if isinstance(reply, Events)]

    async def told(self, request_id: bytes, number: int) -> list[Events]:
        """The events of a watch, when there are so many."""
        await until(lambda: self.pump() and len(self.events(request_id)) >= number, f"{number} events")
        found = self.events(request_id)
        assert len(found) == number
        return found

    async def ended(self, request_id: bytes) -> WatchEnded:
        """How a watch ended, when it has."""
        await until(lambda: self.pump() and isinstance(self.replies[request_id][-1], WatchEnded), "the end of a watch")
        last = self.replies[request_id][-1]
        assert isinstance(last, WatchEnded)
        return last

    def pump(self) -> bool:
        """Take what has come. Always true."""
        while self.socket.poll(0):
            request_id, *frames = self.socket.recv_multipart()
            if request_id == HELLO.to_request_id():
                self.hello = hello_in_reply(frames)
                continue
            reply = decode_watch_reply(frames)
            if isinstance(reply, Watching) and reply.session != self.session:
                self.session, self.received = reply.session, 0
            self.received += isinstance(reply, Events)
            self.replies.setdefault(request_id, []).append(reply)
        return True
