"""What the sockets of clients and those of peers have in common: the frames of ØMQ messages, in and out.

It never blocks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import zmq

from raft_client.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Plain integers: with the enumeration's members every call would compute with enumerations, which costs more than it.
_DONTWAIT: Final = int(zmq.DONTWAIT)
_DONTWAIT_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
# zmq.Socket.send() only adds options that are not used here, and there are four frames or more to a message.
_send: Final = super(zmq.Socket, zmq.Socket).send


class LongMessageError(Exception):
    """A message has more frames than are taken. The others are still to be received: see :func:`skip_message`."""


def send_message(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> bool:
    """Hand a message to libzmq; False when it takes none: the link is gone, or its queue is full."""
    last = len(frames) - 1
    try:
        for position, frame in enumerate(frames):
            _send(socket, frame, _DONTWAIT if position == last else _DONTWAIT_MORE)
    except zmq.ZMQError:
        return False
    return True


def send_tracked_message(socket: zmq.Socket[bytes], frames: Sequence[bytes]) -> zmq.MessageTracker | None:
    """The same; the tracker is done when libzmq holds nothing of the message any more. ``copy_threshold`` must be 0."""
    try:
        for frame in frames[:-1]:
            _send(socket, frame, _DONTWAIT_MORE)
        tracker: zmq.MessageTracker = _send(socket, frames[-1], _DONTWAIT, False, True)
    except zmq.ZMQError:
        return None
    return tracker


def receive_message(
    socket: zmq.Socket[bytes], most_frames: int = sys.maxsize, users: list[str] | None = None
) -> list[bytes] | None:
    """The next message that has arrived; None when there is none, and with this the socket has been found empty.

    The name that its sender was given in the handshake (ZeroMQ RFC 27, User-Id) is appended to ``users``. Raises
    LongMessageError. A frame object knows whether another one follows; recv_multipart() asks the socket, and
    takes 1.5 times as long.
    """
    receive = socket.recv
    try:
        frame = receive(_DONTWAIT, False)
    except zmq.Again:
        return None
    message = [frame.bytes]
    while frame.more:
        if len(message) == most_frames:
            raise LongMessageError
        frame = receive(_DONTWAIT, False)
        message.append(frame.bytes)
    if users is not None:
        users.append(str(frame.get("User-Id")))
    return message


def skip_message(socket: zmq.Socket[bytes], most_frames: int) -> bool:
    """Drop what is left of a message after LongMessageError, or this much of it. Whether nothing is left."""
    return not socket.getsockopt(zmq.RCVMORE) or any(not socket.recv(_DONTWAIT, False).more for _ in range(most_frames))


def monitored_events(monitor: zmq.Socket[bytes]) -> Iterator[int]:
    """What the monitor of a socket has told, one ZMQ_EVENT after the other, until it is empty or closed."""
    while not monitor.closed and monitor.poll(0):
        # The event is the first 16 bits (zmq_socket_monitor(3)); zmq.utils.monitor would load asyncio to say so.
        yield int.from_bytes(monitor.recv_multipart(_DONTWAIT)[0][:2], sys.byteorder)


def check_curve() -> None:
    """Raises SettingsError if this libzmq was built without what CURVE needs."""
    if not zmq.has("curve"):
        raise SettingsError("CURVE is not in this libzmq: install pyzmq from a wheel, or build libzmq with libsodium")


def has_unix_sockets() -> bool:
    """Whether this libzmq has them, on this system."""
    return bool(zmq.has("ipc"))
