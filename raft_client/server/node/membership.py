"""Changes of the cluster: joint consensus.

::

    ConfigUpdate ──> Cold,new appended (both lists vote from here on) ──> committed ──> Cnew appended, client told
                                                                                    ──> committed: done

A configuration is in force as soon as it is in the log, committed or not. The leader at the time when Cold,new is
committed appends Cnew, be it the one that began or a later one. A leader that is not in Cnew goes on until that is
committed, without counting itself, and then steps down. (Raft, §4.3; facts §1.4, ConfigUpdate)

Snapshots hold no configuration on the wire, so the log after a snapshot must: before its last CONFIG entry may be
compacted, a leader appends it again, and also if it finds none there. A peer that is given the snapshot then finds the
members in what follows.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from raft_client.errors import RaftError
from raft_client.wire.client_requests import ConfigProposal, ConfigUpdateReply, Outcome
from raft_client.wire.configuration import ConfigChange, Peer, encode_config, is_ipc_url, is_tcp_url, peers_to_json
from raft_client.wire.log_entry import EntryKind, LogEntry
from raft_client.wire.request_id import REQUEST_ID_BYTES, RequestId, RequestIdSource

if TYPE_CHECKING:
    from raft_client.server.node.ready import Request
    from raft_client.server.node.state import NodeState
    from raft_client.wire.client_requests import ConfigUpdate
    from raft_client.wire.configuration import Peers
    from raft_client.wire.frames import JsonValue

# -- lists of peers ----------------------------------------------------------------------------------------------------
# Three forms of a peer are taken: its URL, which is then its id too; ``[id, url]``; and ``{"id": …, "url": …}``, where
# one of the two may be missing. URLs are ``tcp://`` with an IP address and a port, and nothing else: names are for
# clients. Where all members are at Unix sockets (a cluster in one program), so may a new one be. A refusal has the name
# and the text that a Node peer would give, for clients that know them.
#
# Source: facts §1.4 (ConfigUpdate); ØMQ Raft protocol, "ConfigUpdate RPC", status 2.


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


# -- membership --------------------------------------------------------------------------------------------------------


class Membership:
    """The change under way, and who waits for it."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        rng = state.rng
        self._ids = RequestIdSource(rng.randbytes(3), rng.getrandbits(16), rng.getrandbits(24))
        self._waiting: Request | None = None
        #: Only these may be added; None is all. With CURVE: those whose keys are known.
        self.admissible: frozenset[str] | None = None

    # -- ConfigUpdate --------------------------------------------------------------------------------------------------

    def on_update(self, request: Request, message: ConfigUpdate | ConfigProposal, *, is_busy: bool) -> None:
        """Begin a change, or say why not. ``is_busy``: the leadership is being handed over."""
        raw = request.request_id
        if len(raw) != REQUEST_ID_BYTES:
            return
        reply = self._reply_to(request, RequestId(raw))
        if reply is None:
            reply = ConfigUpdateReply(Outcome.BUSY) if is_busy else self._begin(request, RequestId(raw), message)
        self._state.answer(request, reply)

    def _reply_to(self, request: Request, request_id: RequestId) -> ConfigUpdateReply | None:
        """None: it is new."""
        state = self._state
        if not state.is_leader:
            return ConfigUpdateReply(Outcome.NOT_LEADER, leader_id=state.leader_id)
        if self._waiting is not None:
            is_same = self._waiting.request_id == request.request_id
            return ConfigUpdateReply(Outcome.ACCEPTED if is_same else Outcome.BUSY)
        index = state.log.index_of_request(request_id.raw)
        if index is not None:
            return self._reply_about(request, index)
        if not state.is_fresh(request_id):
            return ConfigUpdateReply(Outcome.EXPIRED)
        return None

    def _reply_about(self, request: Request, index: int) -> ConfigUpdateReply:
        """The id is in the log."""
        if index <= self._state.commit_index:
            return ConfigUpdateReply(Outcome.COMMITTED, index)
        if index == self._state.log.configurations[-1].index:
            self._waiting = request
            return ConfigUpdateReply(Outcome.ACCEPTED)
        return ConfigUpdateReply(Outcome.REFUSED, error_name="Error", error_message="wrong request id log entry type")

    def _begin(
        self, request: Request, request_id: RequestId, message: ConfigUpdate | ConfigProposal
    ) -> ConfigUpdateReply:
        present = self._state.configuration
        if present.is_transition:
            return ConfigUpdateReply(Outcome.BUSY)
        try:
            peers = parse_peers(_value_of(message), present.new)
            self._admit({peer.id for peer in peers} - {peer.id for peer in present.new})
        except PeersRefusedError as error:
            return ConfigUpdateReply(Outcome.REFUSED, error_name=error.name, error_message=error.message)
        self._append(ConfigChange(peers, present.new), request_id)
        self._waiting = request
        return ConfigUpdateReply(Outcome.ACCEPTED)

    def _admit(self, added: set[str]) -> None:
        if self.admissible is not None and not added <= self.admissible:
            files = ", ".join(f"{peer_id}.key" for peer_id in sorted(added - self.admissible))
            raise PeersRefusedError("Error", f"this peer has no key file {files}")

    def _append(self, change: ConfigChange, request_id: RequestId) -> None:
        log = self._state.log
        log.append(
            [
                LogEntry.of(
                    encode_config(change),
                    term=self._state.term,
                    kind=EntryKind.CONFIG,
                    request_id=request_id,
                    index=log.last_index + 1,
                )
            ]
        )

    def _new_id(self) -> RequestId:
        # Nobody repeats it. With the time of a clock that is ahead it would be the newest id of the log, by which peers
        # that start judge their clocks: ids that are fresh would be forgotten.
        return self._ids.next(0)

    # -- what follows --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Finish what is committed."""
        state = self._state
        if not state.is_leader:
            self._tell_of_leader()
            return
        newest = state.log.configurations[-1]
        if newest.index > state.commit_index:
            return
        if newest.change.is_transition:
            self._append(ConfigChange(newest.change.new), self._new_id())
            self._tell(newest.index)
        elif state.log.snapshot is not None and newest.index <= state.log.snapshot.index:
            self._append(newest.change, self._new_id())  # a Node peer may have compacted it, or a tool

    @property
    def is_removed(self) -> bool:
        """Whether this leader's work is done: the configuration without it is committed (Raft, §4.2.2)."""
        state = self._state
        newest = state.log.configurations[-1]
        return state.is_leader and newest.index <= state.commit_index and not state.is_member(state.id)

    def _tell(self, index: int) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._state.answer(waiting, ConfigUpdateReply(Outcome.COMMITTED, index))

    def _tell_of_leader(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._state.answer(waiting, ConfigUpdateReply(Outcome.NOT_LEADER, leader_id=self._state.leader_id))

    # -- compaction ----------------------------------------------------------------------------------------------------

    def prepare_compaction(self) -> int:
        """Up to where the log may be compacted as far as the configuration is concerned.

        Where its last CONFIG entry keeps more from being compacted than it allows, a leader appends it again.
        """
        state = self._state
        newest = state.log.configurations[-1]
        committed = state.log.configuration_for(state.commit_index)
        if state.is_leader and newest is committed and not newest.change.is_transition:
            kept = state.applied_index - newest.index
            if kept > max(0, newest.index - state.log.first_index):
                self._append(newest.change, self._new_id())
        return max(0, committed.index - 1)


def _value_of(message: ConfigUpdate | ConfigProposal) -> JsonValue:
    return message.peers if isinstance(message, ConfigProposal) else peers_to_json(message.peers)
