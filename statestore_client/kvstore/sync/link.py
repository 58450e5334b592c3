"""The connection of a blocking client to its site."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import zmq

from statestore_client import thread_locks
from statestore_client.clocks import monotonic
from statestore_client.core.arguments import check_function
from statestore_client.errors import BusyError, RemoteProtocolError
from statestore_client.kvstore.calls import REPLIES, hold_s, may_change, packed
from statestore_client.kvstore.socket import SiteSocket
from statestore_client.reports import warn_unclosed
from statestore_client.thread_locks import Mutex
from statestore_client.wire.kvstore.codec import decode

if TYPE_CHECKING:
    from statestore_client.curve_keys import ClientKeys
    from statestore_client.kvstore.calls import Call, ClientRequest
    from statestore_client.wire.kvstore.messages import Reply

logger: Final = logging.getLogger("statestore_client")

T = TypeVar("T")

_REFUSAL: Final = (
    "a signal handler or finalizer has interrupted a call of this client in the same thread, so it cannot wait for an "
    "answer here; nothing was sent. Set a flag in the handler and call the client where the flag is looked at. Closing "
    "works here: it ends the call that was interrupted"
)
#: A thread that waits looks this often whether the client was closed.
_LOOK_MS: Final = 50


class SiteLink(SiteSocket):
    """One call after the other: threads take turns.

    A signal handler or finalizer that interrupts a call in the same thread cannot wait for its end. What it asks is
    refused; what it closes is closed at the end of that call, which raises.
    """

    def __init__(self, url: str, timeout_s: float, keys: ClientKeys | None = None) -> None:
        super().__init__(url, timeout_s, keys)
        self._turn = Mutex()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def run(self, call: Call[T]) -> T:
        """Carry out a call. Raises BusyError on top of another one of this thread."""
        if self._turn.is_mine():
            raise BusyError(_REFUSAL)
        with self._turn:
            self._open()
            try:
                request = next(call)
                while True:
                    request = call.send(self._ask(request))
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                if self._is_closed:  # meanwhile
                    self._hang_up()

    def _open(self) -> None:
        self.check()
        if self._context is None:
            context = zmq.Context()
            try:
                self._socket = context.socket(zmq.DEALER)
                self.connect(self._socket)
            except zmq.ZMQError as error:
                context.term()
                raise self.broken(error) from error
            except BaseException:
                context.term()
                raise
            self._context = context

    def _ask(self, request: ClientRequest) -> Reply:
        try:
            return self._exchange(request)
        except zmq.ZMQError as error:
            self._hang_up()
            raise self.broken(error, request) from error

    def _exchange(self, request: ClientRequest) -> Reply:
        data = packed(request)
        deadline = monotonic() + self.timeout_s + hold_s(request)
        was_sent = False
        while self._wait_for(zmq.POLLOUT, deadline):
            asked_on = None if may_change(request) else self.connection()
            self._socket.send(data)
            was_sent = True
            while self._wait_for(zmq.POLLIN, deadline, asked_on):
                try:
                    message = decode(self._socket.recv_multipart()[-1])
                except RemoteProtocolError:
                    continue
                if isinstance(message, REPLIES) and message.id == request.id:
                    return message  # others come late, for calls that have ended
        raise self.late(request, was_sent=was_sent)

    def _wait_for(self, event: int, deadline: float, asked_on: int | None = None) -> bool:
        """False if it is too late, or if there is another connection than the one that was asked on."""
        while (left := deadline - monotonic()) > 0:
            if self._socket.poll(min(_LOOK_MS, int(1000 * left) + 1), event):
                return True
            self.check()
            if asked_on is not None and self.connection() > asked_on:
                return False
        return False

    def close(self) -> None:
        """Also if it was closed before."""
        self._is_closed = True
        if not self._turn.is_mine():
            with self._turn:
                self._hang_up()

    def __del__(self) -> None:
        # All that could use or close it was dropped. The collector may come in any thread, at any time.
        if self._context is not None and self._may_end:
            self._hang_up()
            warn_unclosed(self, f"client of the site at {self.url}")

    def _hang_up(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            self.hang_up()
            context.destroy(linger=0)


class CallbackWorker:
    """Calls the application's function in a thread of its own, until there is nothing more to tell."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="statestore-site-callback", daemon=True)
        thread_locks.start(self._thread)

    def stop(self) -> None:
        """Also if it is the function itself that asks for it."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    @staticmethod
    def check(function: object) -> None:
        """Raises InvalidArgumentError for what cannot be called here."""
        check_function("callback", function)

    @staticmethod
    def call(function: Callable[..., object], *arguments: object) -> None:
        """What it raises is logged."""
        try:
            function(*arguments)
        except Exception:
            logger.exception("the callback of a site's client failed")
