"""How ØMQ connections notice that the other machine, or the line to it, is lost, and how soon they are made again.

A machine that is lost closes nothing. TCP repeats what is not acknowledged ever more rarely, for a quarter of an hour,
and says nothing at all where nothing is under way. So the kernel is asked to give a connection up when no byte of it
was acknowledged for two seconds, and to ask for an acknowledgement where it is idle: at both ends, so that neither
keeps connections of machines that are gone. libzmq dials anew then, and begins again every two seconds, since the
kernel repeats an attempt ever more rarely, too.

Acknowledgements are the kernel's: a process that pauses loses no connection, and neither does one that takes its time
to receive something long.

Source: tcp(7), TCP_USER_TIMEOUT; zmq_setsockopt(3).
"""

from __future__ import annotations

from typing import Any, Final

import zmq

#: Without an acknowledgement for so long a connection is given up. A second of idleness is followed by a question each
#: second, so that it takes more than one of them to be lost. Where a system knows no such limit (macOS), it holds for
#: idle connections.
_SILENCE_MS: Final = 2_200
_IDLE_S: Final = 1
_QUESTIONS: Final = 2
#: The kernel repeats an attempt after 1 s and then after 2 s, mostly: there is a new one instead of the latter.
_CONNECT_MS: Final = 2_000
#: Between two attempts: doubled, where it is refused, up to the second number.
_RECONNECT_MS: Final = 100
_RECONNECT_MAX_MS: Final = 250


def notice_loss(socket: zmq.Socket[Any]) -> None:
    """Have a socket give up connections that are dead, and dial anew. To be called before it binds or connects."""
    socket.setsockopt(zmq.TCP_MAXRT, _SILENCE_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _QUESTIONS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
