"""The handshakes of a peer that has keys: which clients may connect to it, and in whose name they may speak.

libzmq asks about each handshake, and this answers. What only peers say is heard only from the peer whose key its sender
has: a client cannot pretend to be a leader, and no peer to be another one.

The questions come to a socket of the peer's own context (ZeroMQ RFC 27, ZAP), so they are answered between two turns of
its event loop, without a thread. libzmq asks only about clients that have proved that they hold the secret key of the
public one that they show, and that knew the key of this peer.
"""

from __future__ import annotations

import logging
from itertools import count
from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils import z85

from raft_client.reports import on_one_line
from raft_client.server.runtime.curve_keys import CLIENTS
from raft_client.wire.client_requests import Trim
from raft_client.wire.peer_messages import AppendEntries, InstallSnapshot, PreVote, RequestVote, TimeoutNow
from raft_client.zmq_messages import monitored_events, receive_message, send_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_client.server.runtime.curve_keys import CurveKeys

logger: Final = logging.getLogger("raft_client.server")

_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
#: What only peers say. The frame after the ident is the id of the one that says it.
_OF_PEERS: Final = frozenset(
    message.TYPE for message in (AppendEntries, InstallSnapshot, PreVote, RequestVote, TimeoutNow, Trim)
)
#: Where that frame is, after the route, the request id, the type and the ident.
_TYPE_AT: Final = 2
_SENDER_AT: Final = 4
#: Addresses of which it is remembered that they were logged. There may be as many as there are machines that try.
_MOST_ADDRESSES: Final = 1_000

_monitor_numbers = count(1)


class Handshakes:
    """Of the sockets of one context that others connect to. Made before the first of them is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: CurveKeys, drop: Callable[[str], object]) -> None:
        self._keys = keys
        self._drop = drop
        self._asked = context.socket(zmq.REP)
        self._asked.linger = 0
        self._asked.bind("inproc://zeromq.zap.01")
        self._monitors: list[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = []
        self._logged: set[str] = set()

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """To be watched for readability."""
        return [self._asked, *(monitor for _, monitor in self._monitors)]

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Let nobody connect to this socket without a key. To be called before it is bound."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret_key)
        monitor = socket.get_monitor_socket(_FAILED, f"inproc://raft-handshakes-{next(_monitor_numbers)}")
        self._monitors.append((socket, monitor))

    def settle(self, now: float) -> None:
        """Answer what libzmq has asked, and log who was refused."""
        while (question := receive_message(self._asked)) is not None:
            self._keys.refresh(now)
            send_message(self._asked, self._answer(question))
        for _, monitor in self._monitors:
            for _ in monitored_events(monitor):
                # libzmq ended it by itself, and does not say whose it was.
                self._refuse("", "it has no key, or does not know the key of this peer, or is no ØMQ program")

    def may_say(self, frames: list[bytes], user: str, now: float) -> bool:
        """Whether a message to a ROUTER may come from the one that was given this name, and whose key may be gone."""
        if not self._keys.is_there(user, now):
            self._drop("of somebody whose key was taken away")
            return False
        if len(frames) <= _SENDER_AT or frames[_TYPE_AT] not in _OF_PEERS:
            return True
        kind, sender = frames[_TYPE_AT], frames[_SENDER_AT]
        if (kind == Trim.TYPE and not sender) or (sender == user.encode() and not user.startswith(CLIENTS + "/")):
            return True
        self._drop("in the name of a peer whose key its sender does not have")
        return False

    def no_way(self, peer_id: str, url: str, *, has_key: bool) -> None:
        """There is no connection to that peer: its key is not known, or one of the two does not know the other."""
        if has_key:
            why = "the handshake fails; does each have the public key of the other, and is it the right one?"
        else:
            why = f"there is no {self._keys.folder / peer_id}.key that can be used"
        self._log_once(f"{peer_id} {url}", f"cannot connect to peer {peer_id} at {url}: {why}")

    def close(self) -> None:
        """Its own sockets, and the monitors of the others."""
        for socket, monitor in self._monitors:
            socket.disable_monitor()
            monitor.close(linger=0)
        self._asked.close(linger=0)

    def _answer(self, question: list[bytes]) -> list[bytes]:
        version, request_id, _domain, address, _identity, mechanism, *credentials = question
        user = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            user = self._keys.user(z85.encode(credentials[0]))
        if user is None:
            self._refuse(address.decode("utf-8", "replace"), f"its key is not in {self._keys.folder}")
            return [version, request_id, b"400", b"unknown key", b"", b""]
        return [version, request_id, b"200", b"OK", user.encode(), b""]

    def _refuse(self, address: str, why: str) -> None:
        self._drop("refused at the handshake")
        place = f"from {address}" if address else "from an address that libzmq does not tell"
        self._log_once(address, f"refuses connections {place}: {why}")

    def _log_once(self, address: str, what: str) -> None:
        if address not in self._logged:
            if len(self._logged) >= _MOST_ADDRESSES:
                self._logged.clear()
            self._logged.add(address)
            logger.warning("%s", on_one_line(f"peer {self._keys.peer_id} {what}"))
