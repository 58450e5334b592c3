"""The ØMQ socket of a client of a site.

What was sent on a connection that is lost is not answered any more. A request that changes nothing is asked again on
the next connection, as long as its time lasts. What may have changed something is not: it would be done twice.
"""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from statestore_client.curve_keys import ClientKeys
from statestore_client.dead_connections import notice_loss
from statestore_client.errors import (
    ClosedError,
    ConnectionLostError,
    ForkedClientError,
    RequestTimeoutError,
    SettingsError,
)
from statestore_client.kvstore.calls import hold_s, may_change
from statestore_client.setting_sources import check_site_address
from statestore_client.wire.kvstore.messages import MAX_MESSAGE

if TYPE_CHECKING:
    from statestore_client.kvstore.calls import ClientRequest

#: A reply of 1 MiB, and some room.
_MAX_FRAME_BYTES: Final = 2 * MAX_MESSAGE
#: What the system waits for at once has a limit, too.
_LONGEST_S: Final = 1e6
_CONNECTED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_AUTH: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)

_monitor_numbers = count(1)


class SiteSocket:
    """What both shells need to know of their connection."""

    _socket: Any  # of the kind of the shell
    _context: Any = None  # the same, while there is a connection
    _is_closed = False

    def __init__(self, url: str, timeout_s: float, keys: ClientKeys | None = None) -> None:
        if not isinstance(url, str):
            raise SettingsError(
                f"url must be a text, not {type(url).__name__}: addresses are tcp://host:port or ipc://path"
            )
        check_site_address(url)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _LONGEST_S:
            raise SettingsError(f"timeout_s is {timeout_s!r}; it must be positive, in seconds, and at most a million")
        if keys is not None and not isinstance(keys, ClientKeys):
            raise SettingsError(f"keys must be ClientKeys, not {type(keys).__name__}")
        self._process = os.getpid()
        self.url = url
        self.timeout_s = timeout_s
        self.keys = keys
        self._monitor: zmq.Socket[bytes] | None = None
        self._failure = 0
        self._connections = 0
        self._numbers = count(1)

    def another(self) -> Self:
        """A further connection to the same site. Raises ClosedError."""
        self.check()
        return type(self)(self.url, self.timeout_s, self.keys)

    def next_id(self) -> int:
        """A request id that this connection has not had."""
        return next(self._numbers)

    @property
    def _may_end(self) -> bool:
        """Whether a finalizer may end it: it is open, this is no forked child, and Python itself does not end."""
        return not self._is_closed and os.getpid() == self._process and not sys.is_finalizing()

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
        notice_loss(socket)
        if self.keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self.keys.curve_server_key.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self.keys.curve_public_key.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self.keys.curve_secret_key.encode())
        self._monitor = _monitor_of(socket)
        try:
            socket.connect(self.url)
        except (zmq.ZMQError, TypeError, ValueError) as error:
            self.hang_up()
            message = f"no site can be at {self.url!r} ({error}): addresses are tcp://host:port or ipc://path"
            raise SettingsError(message) from error

    @property
    def monitored(self) -> int:
        """The descriptor of what tells of it, to be watched for readability; -1 while there is no connection."""
        return -1 if self._monitor is None else self._monitor.fileno()

    def hang_up(self) -> None:
        """Close the socket, and what tells of it."""
        if self._monitor is not None:
            with contextlib.suppress(zmq.ZMQError):  # the socket has failed
                self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._monitor = None
        self._socket.close(linger=0)

    def late(self, request: ClientRequest, *, was_sent: bool) -> RequestTimeoutError:
        """What a request ends with that was not answered in time."""
        what = "has not answered" if was_sent else "cannot be reached"
        return RequestTimeoutError(
            f"the site at {self.url} {what} within {round(self.timeout_s + hold_s(request), 2):g} s{self._why()}",
            may_have_been_applied=was_sent and may_change(request),
        )

    def broken(self, error: BaseException | None, request: ClientRequest | None = None) -> ConnectionLostError:
        """What a request ends with when the socket fails, and not the line: too many files are open, say. The next
        request opens another one. ``request`` is the one that was sent, if one was.
        """
        return ConnectionLostError(
            f"the socket for the site at {self.url} has failed: {error or 'it was closed'}",
            may_have_been_applied=request is not None and may_change(request),
        )

    def connection(self) -> int:
        """The number of the connection that stands, or stood last, or will be the first. One may be in use a moment
        before its number is known: what is asked just then is asked twice.
        """
        while self._monitor is not None and self._monitor.poll(0):
            event = int(parse_monitor_message(self._monitor.recv_multipart())["event"])
            self._connections += event == _CONNECTED
            self._failure = 0 if event & _CONNECTED else event
        return max(1, self._connections)

    def _why(self) -> str:
        """What was wrong with the last handshake. After some of them libzmq does not connect again by itself."""
        self.connection()
        if not self._failure:
            return ""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self.url)
        self._socket.connect(self.url)
        if self._failure & _AUTH:
            return ": it does not know the key of this client"
        if self.keys is None:
            return ": the handshake fails; is this the port of a site? Does it want keys (--curve-keys, ClientKeys)?"
        return ": the handshake fails; has it keys, and is curve_server_key its own?"


def _monitor_of(socket: zmq.Socket[Any]) -> zmq.Socket[bytes]:
    """Handshakes are told here. A plain socket, whatever kind the other one is."""
    address = f"inproc://site-client-monitor-{next(_monitor_numbers)}"
    socket.monitor(address, _CONNECTED | _AUTH | _FAILED)
    monitor: zmq.Socket[bytes] = zmq.Context.shadow(socket.context.underlying).socket(zmq.PAIR)
    monitor.connect(address)
    return monitor
