"""The URLs of peers.

Source: ØMQ Raft protocol, "PEER URL"; zmq_tcp(7), zmq_ipc(7). The peers themselves take IP addresses only (facts §1.4),
but their clients may know them by name. Unix sockets are not of the document: peers in one program have them.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["host_of", "is_ipc_url", "is_peer_url", "is_tcp_url", "with_host"]

_MAX_PORT: Final = 65_535
_TCP: Final = re.compile(r"tcp://(?:[0-9A-Za-z][0-9A-Za-z._-]*|\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?\]):([0-9]{1,5})")
#: An absolute path. Settings write URLs with commas between them, and with "=" and a key after them.
_IPC: Final = re.compile(r"ipc://(/[^\s,=\0\ud800-\udfff]+)")
#: Of macOS, where it is shortest: sockaddr_un has 104 bytes there, and the last is 0. Linux has 107.
_MAX_PATH_BYTES: Final = 103


def is_peer_url(url: object) -> bool:
    """Whether a client can be told of a peer there: at ``tcp://host:port``, or ``ipc:///path``, a Unix socket."""
    return is_tcp_url(url) or is_ipc_url(url)


def is_tcp_url(url: object) -> bool:
    """Whether it is ``tcp://host:port``, the host being a name, an IPv4 address, or an IPv6 address in brackets.

    Names begin with a letter or digit: libzmq connects to no others.
    """
    found = _TCP.fullmatch(url) if isinstance(url, str) else None
    return found is not None and 0 < int(found[1]) <= _MAX_PORT


def host_of(url: str) -> str:
    """Of ``tcp://host:port``; an IPv6 address in its brackets."""
    return url.removeprefix("tcp://").rpartition(":")[0]


def with_host(url: str, host: str) -> str:
    """The same port of another host."""
    return f"tcp://{host}:{url.rpartition(':')[2]}"


def is_ipc_url(url: object) -> bool:
    """Whether it is ``ipc:///path``: an absolute path of at most 103 bytes, without commas, "=" and white space."""
    found = _IPC.fullmatch(url) if isinstance(url, str) else None
    return found is not None and len(found[1].encode()) <= _MAX_PATH_BYTES
