"""Lists of peers and their URLs, as messages and CONFIG entries hold them. Bytes <-> values.

Source: ØMQ Raft protocol, "CONFIG log data"; facts §1.2 and §1.4 (ConfigUpdate).

URLs of peers are those of the document's "PEER URL" and of zmq_tcp(7) and zmq_ipc(7). The peers themselves take IP
addresses only (facts §1.4), but their clients may know them by name. Unix sockets are not of the document: peers in one
program have them.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.frames import Buffer, JsonValue, decode_json, encode_json, encode_string

# -- The URLs of peers -------------------------------------------------------------------------------------------------


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


def _check_name(_peer: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"the {attribute.name} of a peer is a text that is not empty")
    encode_string(value)


@attrs.frozen
class Peer:
    """A member of the cluster: its id, and the URL of its ROUTER socket as the other members see it."""

    id: str = attrs.field(validator=_check_name)
    url: str = attrs.field(validator=_check_name)


#: The members of a cluster, in the order of its configuration.
Peers: TypeAlias = tuple[Peer, ...]


@attrs.frozen
class ConfigChange:
    """What a CONFIG entry holds: the final list of peers, or the transition from ``old`` to ``new`` (both vote)."""

    new: Peers
    old: Peers | None = None

    @property
    def is_transition(self) -> bool:
        """Whether decisions need a majority of both lists."""
        return self.old is not None


def peers_to_json(peers: Peers) -> JsonValue:
    """``[[id, url], ...]``."""
    return [[peer.id, peer.url] for peer in peers]


def peers_from_json(value: JsonValue) -> Peers:
    """Raises ProtocolError unless it is a list of pairs of texts, no id twice."""
    if not isinstance(value, list):
        raise ProtocolError("a list of peers that is not an array")
    peers = tuple(map(_peer_from_json, value))
    if len({peer.id for peer in peers}) < len(peers):
        raise ProtocolError("a list of peers with an id twice")
    return peers


def _peer_from_json(pair: JsonValue) -> Peer:
    match pair:
        case [str(peer_id), str(url)] if peer_id and url:
            return Peer(peer_id, url)
    raise ProtocolError("a peer that is not a pair of id and url")


def encode_config(change: ConfigChange) -> bytes:
    """The data of a CONFIG entry."""
    if change.old is None:
        return encode_json(peers_to_json(change.new))
    return encode_json({"old": peers_to_json(change.old), "new": peers_to_json(change.new)})


def decode_config(data: Buffer) -> ConfigChange:
    """Read the data of a CONFIG entry. Raises ProtocolError."""
    value = decode_json(data)
    if not isinstance(value, dict):
        return ConfigChange(peers_from_json(value))
    if not value.keys() >= {"old", "new"}:
        raise ProtocolError("a transition of peers without its old or new list")
    return ConfigChange(peers_from_json(value["new"]), peers_from_json(value["old"]))
