"""The URLs of peers.

Source: ØMQ Raft protocol, "PEER URL"; zmq_tcp(7). The peers themselves take IP addresses only (facts §1.4), but their
clients may know them by name.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_peer_url"]

_MAX_PORT: Final = 65_535
_PEER_URL: Final = re.compile(
    r"tcp://(?:[0-9A-Za-z][0-9A-Za-z._-]*|\[[0-9A-Fa-f:.]+(?:%[0-9A-Za-z._-]+)?\]):([0-9]{1,5})"
)


def is_peer_url(url: object) -> bool:
    """Whether it is ``tcp://host:port``, the host being a name, an IPv4 address, or an IPv6 address in brackets.

    Names begin with a letter or digit: libzmq connects to no others.
    """
    found = _PEER_URL.fullmatch(url) if isinstance(url, str) else None
    return found is not None and 0 < int(found[1]) <= _MAX_PORT
