"""The machines of a cluster of which each has a server and a peer of the log: ``a=host,b=host,c=host:port``.

A machine has three ports, one after the other: its peer takes requests at the first one and broadcasts from the second
one; its server listens at the third one for the other servers.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import attrs

from raft_client._common.hosts import is_local
from statestore_client.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_PORT", "ClusterNode", "listening_address", "nodes_of"]

DEFAULT_PORT: Final = 8047
_PORTS: Final = 3
_MAX_PORT: Final = 65_535
#: With two, the loss of any one ends everything.
_FEWEST: Final = 3
_MOST: Final = 9
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z][0-9A-Za-z._-]*)(?::([0-9]{1,5}))?")


@attrs.frozen
class ClusterNode:
    """``host`` is in brackets if it is an IPv6 address."""

    id: str
    host: str
    port: int

    @property
    def peer_url(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def publisher_port(self) -> int:
        return self.port + 1

    @property
    def internal_port(self) -> int:
        return self.port + 2

    @property
    def internal_address(self) -> str:
        return f"{self.host}:{self.internal_port}"

    @property
    def is_local(self) -> bool:
        """Whether only processes of the same machine find it."""
        return is_local(self.host)


def nodes_of(nodes: str | Mapping[str, str]) -> dict[str, ClusterNode]:
    """By id. Raises SettingsError for what no cluster can be."""
    if isinstance(nodes, str):
        entries = [(name.strip(), host.strip()) for name, _, host in (each.partition("=") for each in nodes.split(","))]
    else:
        entries = list(nodes.items())
    found = [_node(*each) for each in entries]
    by_id = {node.id: node for node in found}
    if len(by_id) < len(found):
        raise SettingsError("two servers of the cluster have the same id")
    if not _FEWEST <= len(found) <= _MOST:
        raise SettingsError(
            f"a cluster has {_FEWEST} to {_MOST} servers, not {len(found)}: it goes on while more than half of them run"
        )
    if len({node.is_local for node in found}) > 1:
        raise SettingsError("some hosts of the cluster are this machine only: say how all of them find each other")
    for one, other in ((one, other) for one in found for other in found if one.id < other.id):
        if one.host == other.host and abs(one.port - other.port) < _PORTS:
            raise SettingsError(
                f"{one.id} and {other.id} would share ports of {one.host}: each takes {_PORTS}, from the one given"
            )
    return by_id


def _node(name: object, place: object) -> ClusterNode:
    parts = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if not isinstance(name, str) or not _ID.fullmatch(name) or parts is None:
        raise SettingsError(
            f"{name}={place} is not ID=HOST or ID=HOST:PORT, with an id of letters, digits, '.', '_' and '-'"
        )
    port = DEFAULT_PORT if parts[2] is None else int(parts[2])
    if not 0 < port <= _MAX_PORT - (_PORTS - 1):
        raise SettingsError(
            f"{name}={place}: the port is from 1 to {_MAX_PORT - _PORTS + 1}, as the next two are taken, too"
        )
    return ClusterNode(name, parts[1], port)


def listening_address(node: ClusterNode) -> str:
    """The address of this machine that the others mean. Raises SettingsError if there is none."""
    host = node.host.strip("[]")
    try:
        address = str(socket.getaddrinfo(host, node.port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SettingsError(f"the own host {host} has no address: {error.strerror or error}") from error
    if is_local(address) and not node.is_local:
        raise SettingsError(f"{host} is {address} on this machine, where others do not find it: say where to listen")
    return address
