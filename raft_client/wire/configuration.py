"""The lists of peers: as messages and CONFIG entries hold them. Bytes <-> values.

Source: ØMQ Raft protocol, "CONFIG log data"; facts §1.2 and §1.4 (ConfigUpdate).
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.frames import Buffer, JsonValue, decode_json, encode_json, encode_string

__all__ = ["ConfigChange", "Peer", "Peers", "decode_config", "encode_config", "peers_from_json", "peers_to_json"]


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
