"""The connection of a blocking client to its site."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

import zmq

from statestore_client.errors import RemoteProtocolError
from statestore_client.kvstore.socket import SiteSocket
from statestore_client.wire.kvstore.codec import decode, encode
from statestore_client.wire.kvstore.messages import Failure, Found, SetResult

if TYPE_CHECKING:
    from statestore_client.kvstore.calls import Call, ClientRequest
    from statestore_client.wire.kvstore.messages import Reply

__all__ = ["SiteLink"]

T = TypeVar("T")

#: A thread that waits looks this often whether the client was closed.
_LOOK_MS: Final = 50


class SiteLink(SiteSocket):
    """One call after the other: threads take turns."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._turn = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def run(self, call: Call[T]) -> T:
        """Carry out a call."""
        with self._turn:
            self._open()
            try:
                request = next(call)
                while True:
                    request = call.send(self._ask(request))
            except StopIteration as done:
                result: T = done.value
                return result

    def _open(self) -> None:
        self.check()
        if self._context is None:
            self._context = zmq.Context()
            try:
                self._socket = self._context.socket(zmq.DEALER)
                self.connect(self._socket)
            except BaseException:
                self._context.term()
                self._context = None
                raise

    def _ask(self, request: ClientRequest) -> Reply:
        data = encode(request)
        deadline = time.monotonic() + self.timeout_s
        if not self._wait_for(zmq.POLLOUT, deadline):
            raise self.late(request, was_sent=False)
        self._socket.send(data)
        while self._wait_for(zmq.POLLIN, deadline):
            try:
                message = decode(self._socket.recv_multipart()[-1])
            except RemoteProtocolError:
                continue
            if isinstance(message, Found | SetResult | Failure) and message.id == request.id:
                return message  # others come late, for calls that have ended
        raise self.late(request, was_sent=True)

    def _wait_for(self, event: int, deadline: float) -> bool:
        while (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(min(_LOOK_MS, int(1000 * left) + 1), event):
                return True
            self.check()
        return False

    def close(self) -> None:
        """Also if it was closed before."""
        self._is_closed = True
        with self._turn:
            context, self._context = self._context, None
            if context is not None:
                self._socket.close(linger=0)
                context.destroy(linger=0)
