"""Where the peers of a cluster in one program listen: at free ports of the loopback interface, or at Unix sockets.

Decision 43 says why Unix sockets, and not ØMQ's inproc transport, are what needs no ports.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from raft_client.errors import InvalidArgumentError, TransportError
from raft_client.wire.configuration import Peer, is_ipc_url
from raft_client.zmq_messages import has_unix_sockets

if TYPE_CHECKING:
    from pathlib import Path

    from raft_client.wire.configuration import Peers

Transport: TypeAlias = Literal["tcp", "ipc"]

#: Of a peer's Unix socket for broadcasts, after the URL of the other one.
_BROADCASTS: Final = ".pub"


def check_transport(transport: Transport) -> Transport:
    """Raises InvalidArgumentError if there is no such transport, or not on this system."""
    if transport not in get_args(Transport):
        raise InvalidArgumentError(f"transport is 'tcp' or 'ipc', not {transport!r}")
    if transport == "ipc" and not has_unix_sockets():
        raise InvalidArgumentError("libzmq has no Unix sockets on this system: use transport='tcp'")
    return transport


def addresses(transport: Transport, size: int, folder: Path) -> Peers:
    """Where ``size`` peers can listen. Unix sockets are in ``folder``, which others cannot open.

    Raises TransportError if the path of one would be too long, or could not stand in a URL.
    """
    if transport == "tcp":
        return tuple(Peer(str(number), f"tcp://127.0.0.1:{port}") for number, port in enumerate(_free_ports(size), 1))
    peers = tuple(Peer(str(number), f"ipc://{folder}/{number}.sock") for number in range(1, size + 1))
    if not all(is_ipc_url(publisher_url(peer)) for peer in peers):
        raise TransportError(
            f"no Unix socket can be in {folder}: its path may have 103 bytes, and no comma, '=' or white space. "
            "Set TMPDIR to another directory, such as /tmp, or use transport='tcp'"
        )
    return peers


def publisher_url(peer: Peer) -> str:
    """Where this peer broadcasts."""
    return peer.url + _BROADCASTS if is_ipc_url(peer.url) else "tcp://127.0.0.1:*"


def _free_ports(size: int) -> list[int]:
    """Held until the last one is known, so that they differ. Another program may take one before the peer does."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(size)]
        return [each.getsockname()[1] for each in sockets]
