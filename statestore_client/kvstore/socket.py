"""The ØMQ socket of a client of a site."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import zmq

from statestore_client.errors import (
    ClosedError,
    ForkedClientError,
    RequestTimeoutError,
    SettingsError,
)
from statestore_client.kvstore.calls import hold_s, may_change
from statestore_client.wire.kvstore.messages import MAX_MESSAGE

if TYPE_CHECKING:
    from statestore_client.kvstore.calls import ClientRequest

__all__ = ["SiteSocket"]

#: A reply of 1 MiB, and some room.
_MAX_FRAME_BYTES: Final = 2 * MAX_MESSAGE
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 2_000


class SiteSocket:
    """What both shells need to know of their connection."""

    def __init__(self, url: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise SettingsError(f"timeout_s is {timeout_s}; it must be positive")
        self.url = url
        self.timeout_s = timeout_s
        self._numbers = count(1)
        self._process = os.getpid()
        self._is_closed = False

    def another(self) -> Self:
        """A further connection to the same site. Raises ClosedError."""
        self.check()
        return type(self)(self.url, self.timeout_s)

    def next_id(self) -> int:
        """A request id that this connection has not had."""
        return next(self._numbers)

    def check(self) -> None:
        """Raises ClosedError, or ForkedClientError."""
        if self._is_closed:
            raise ClosedError(f"the client of the site at {self.url} is closed")
        if os.getpid() != self._process:
            raise ForkedClientError("this client was opened before fork(); open a new one in this process")

    def connect(self, socket: zmq.Socket[Any]) -> None:
        """Nothing is queued for a connection that does not stand. Raises SettingsError."""
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.setsockopt(zmq.IPV6, int("[" in self.url))
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        try:
            socket.connect(self.url)
        except (zmq.ZMQError, TypeError) as error:
            socket.close(linger=0)
            message = f"no site can be at {self.url!r} ({error}): addresses are tcp://host:port or ipc://path"
            raise SettingsError(message) from error

    def late(self, request: ClientRequest, *, was_sent: bool) -> RequestTimeoutError:
        """What a request ends with that was not answered in time."""
        what = "has not answered" if was_sent else "cannot be reached"
        return RequestTimeoutError(
            f"the site at {self.url} {what} within {self.timeout_s + hold_s(request):g} s",
            may_have_been_applied=was_sent and may_change(request),
        )
