"""Which lists of peers a cluster takes: the rules of the Node peers, in their words.

Three forms of a peer are taken: its URL, which is then its id too; ``[id, url]``; and ``{"id": …, "url": …}``, where
one of the two may be missing. URLs are ``tcp://`` with an IP address and a port, and nothing else: names are for
clients. Where all members are at Unix sockets (a cluster in one program), so may a new one be. A refusal has the name
and the text that a Node peer would give, for clients that know them.

Source: facts §1.4 (ConfigUpdate); ØMQ Raft protocol, "ConfigUpdate RPC", status 2.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from raft_client.errors import RaftError
from raft_client.wire.configuration import Peer, is_ipc_url, is_tcp_url

if TYPE_CHECKING:
    from raft_client.wire.configuration import Peers
    from raft_client.wire.frames import JsonValue

_ASSERTION: Final = "AssertionError"
_URL: Final = re.compile(
    r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*:)//(?P<auth>[^@/?#]*@)?(?P<host>\[[^\]]*\]|[^:/?#]*)"
    r"(?::(?P<port>[0-9]{0,9}))?(?P<path>[/?][^#]*)?(?P<hash>#.*)?",
    re.ASCII,
)
_MAX_PORT: Final = 65_535


class PeersRefusedError(RaftError):
    """The list cannot be: ``name`` and the message go back to the client."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def parse_peers(value: JsonValue, present: Peers) -> Peers:
    """The peers that ``value`` names, which are to follow ``present``. Raises PeersRefusedError."""
    if not isinstance(value, list):
        raise PeersRefusedError("TypeError", "peers must be an array")
    url_of = {peer.id: peer.url for peer in present}
    urls = set(url_of.values())
    found: dict[str, Peer] = {}
    for item in value:
        peer_id, url = _id_and_url(item)
        _require(isinstance(peer_id, str) and peer_id != "", "peer id must be a non empty string")
        peer = Peer(str(peer_id), _check_url(url, present))
        _require(peer.id not in found, "peer id must be unique")
        _require(all(peer.url != other.url for other in found.values()), "peer url must be unique")
        is_new = peer.id not in url_of and peer.url not in urls
        _require(is_new or url_of.get(peer.id) == peer.url, "new peers must be consistent with current configuration")
        found[peer.id] = peer
    _require(bool(found), "at least one peer must be defined in a cluster")
    peers = tuple(found.values())
    if [peer.id for peer in peers] == [peer.id for peer in present]:
        raise PeersRefusedError("Error", "no change in cluster membership")
    return peers


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise PeersRefusedError(_ASSERTION, message)


def _id_and_url(item: JsonValue) -> tuple[JsonValue, JsonValue]:
    match item:
        case str():
            return item, item
        case [peer_id, url, *_]:
            return peer_id, url
        case [peer_id]:
            return peer_id, peer_id
        case []:
            return None, None
        case dict():
            return item.get("id", item.get("url")), item.get("url", item.get("id"))
    text = "peer must be an url string or a tuple [id, url] or an object with 'url' and 'id' properties"
    raise PeersRefusedError(_ASSERTION, text)


def _check_url(url: JsonValue, present: Peers) -> str:
    _require(isinstance(url, str) and url != "", "peer url must be a non empty string")
    text = str(url)
    if is_ipc_url(text) and present and all(is_ipc_url(peer.url) for peer in present):
        return text
    found = _URL.fullmatch(text)
    if found is None or found["protocol"] != "tcp:":
        raise PeersRefusedError(_ASSERTION, "peer url protocol must be tcp:")
    _require(found["auth"] is None, "peer url must have no auth")
    _require(found["path"] is None, "peer url must have no path")
    _require(found["hash"] is None, "peer url must have no hash")
    _require(0 < int(found["port"] or 0) <= _MAX_PORT, "peer url port must be in range 1-65535")
    is_address = _is_address(found["host"].strip("[]"))
    # What libzmq refuses would end every peer that wants to connect to it, again after each start.
    _require(is_address and is_tcp_url(text), "peer url must have a valid ip address in hostname")
    return text


def _is_address(host: str) -> bool:
    _require(host not in ("0.0.0.0", "::"), "peer url must not be a placeholder address")  # noqa: S104 - it is refused
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
