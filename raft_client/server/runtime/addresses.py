"""Whether a peer will be able to listen, before anything is made for it."""

from __future__ import annotations

import socket
from pathlib import Path

from raft_client.errors import TransportError


def check_first_start(data: Path, *urls: str | None) -> None:
    """Raises TransportError if there is no data directory yet and somebody listens at one of these URLs already.

    A start that cannot listen must not leave a directory behind: the addresses of the members are in it.
    """
    for url in () if data.exists() else urls:
        host, _, port = (url or "").removeprefix("tcp://").rpartition(":")
        if not port.isdigit():
            continue  # a free one, or a Unix socket
        try:
            [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
                None if host == "*" else host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError:
            continue  # the name of an interface, which ØMQ knows, or of nothing, which it says
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                raise TransportError(f"cannot listen at {url}: {error.strerror}") from error
