"""Log entries and the lists of peers that some of them hold: bytes <-> values.

::

    entry  =  request id (12 bytes)  kind (1 byte)  term (7 bytes, little endian)  data

An entry in hand is its frame: nothing is copied or parsed until somebody asks. Half a million of them pass per second.

Source: ØMQ Raft protocol, "entry", "CONFIG log data"; facts §1.2 and §1.4 (ConfigUpdate).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from raft_client.errors import InvalidArgumentError, InvalidDataError, ProtocolError
from raft_client.wire.frames import MAX_UINT, Buffer, JsonValue, decode_json, encode_json, encode_string
from raft_client.wire.positions import Position
from raft_client.wire.request_id import REQUEST_ID_BYTES, ZERO_REQUEST_ID, RequestId
from raft_client.wire.values import hot_value

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CHECKPOINT_DATA",
    "ENTRY_HEADER_BYTES",
    "MAX_ENTRY_DATA_BYTES",
    "ConfigChange",
    "EntryKind",
    "LogEntry",
    "Peer",
    "Peers",
    "decode_config",
    "decode_entries",
    "encode_config",
    "peers_from_json",
    "peers_to_json",
]

ENTRY_HEADER_BYTES: Final = 20
#: A peer silently ignores updates with more (``maxLogEntryDataSize``), and so never answers them.
MAX_ENTRY_DATA_BYTES: Final = 10 * 1024 * 1024
#: The data of a checkpoint: MessagePack nil.
CHECKPOINT_DATA: Final = b"\xc0"

_KIND_OFFSET: Final = REQUEST_ID_BYTES
_TERM_OFFSET: Final = _KIND_OFFSET + 1
_TERM_BYTES: Final = 7
_LAST_TERM_BYTE: Final = ENTRY_HEADER_BYTES - 1
_MAX_TERM_BYTE: Final = MAX_UINT >> 8 * (_TERM_BYTES - 1)


class EntryKind(IntEnum):
    """Who wrote the entry, and what for."""

    STATE = 0  # a client's data
    CONFIG = 1  # the peers of the cluster, see decode_config()
    CHECKPOINT = 2  # a new leader's mark; no content


_KINDS: Final = tuple(EntryKind)
_MAX_KIND: Final = max(EntryKind)


@hot_value
class LogEntry:
    """One entry of the replicated log.

    ``index`` is its place in the log, from 1; 0 where it is not known (an entry on the wire does not carry it).
    Properties are cut out of the frame at each access: keep ``data`` in a variable when it is needed twice.
    """

    index: int
    frame: bytes = attrs.field(repr=False)

    @classmethod
    def of(
        cls,
        data: bytes,
        *,
        term: int,
        kind: EntryKind = EntryKind.STATE,
        request_id: RequestId = ZERO_REQUEST_ID,
        index: int = 0,
    ) -> LogEntry:
        """Put an entry together. Raises InvalidDataError when ``term`` is none, or there is no data."""
        if not 0 <= term <= MAX_UINT:
            raise InvalidArgumentError("a term lies between 0 and 2^53 - 1")
        if not data:
            raise InvalidDataError("an entry has at least one byte of data")
        return cls(index, b"%b%c%b%b" % (request_id.raw, kind, term.to_bytes(_TERM_BYTES, "little"), data))

    @classmethod
    def from_frame(cls, frame: Buffer, index: int = 0) -> LogEntry:
        """Raises ProtocolError when the header is too short or holds an unknown kind or an impossible term."""
        _check_frame(frame)
        return cls(index, bytes(frame))

    @property
    def request_id(self) -> RequestId:
        """The id of the update that wrote the entry; all zeros when no client did."""
        return RequestId(self.frame[:_KIND_OFFSET])

    @property
    def kind(self) -> EntryKind:
        """STATE for the entries that clients append."""
        return _KINDS[self.frame[_KIND_OFFSET]]

    @property
    def is_state(self) -> bool:
        """Whether a client appended it; quicker than asking for the kind."""
        return not self.frame[_KIND_OFFSET]

    @property
    def term(self) -> int:
        """The term of the leader that appended it."""
        return int.from_bytes(self.frame[_TERM_OFFSET:ENTRY_HEADER_BYTES], "little")

    @property
    def position(self) -> Position:
        """The place of the entry: store it when the entry is dealt with, and come back behind it."""
        return Position(self.index, self.term)

    @property
    def data(self) -> bytes:
        """What the client appended."""
        return self.frame[ENTRY_HEADER_BYTES:]

    @property
    def data_view(self) -> memoryview:
        """The same without a copy; for large data."""
        return memoryview(self.frame)[ENTRY_HEADER_BYTES:]

    @property
    def size(self) -> int:
        """Bytes on the wire: header and data."""
        return len(self.frame)

    def encode(self) -> bytes:
        """The frame."""
        return self.frame


def decode_entries(frames: Sequence[bytes], first_index: int) -> list[LogEntry]:
    """Consecutive entries, the first with ``first_index``. Raises ProtocolError. The hot path of streaming."""
    for frame in frames:
        if (
            len(frame) < ENTRY_HEADER_BYTES
            or frame[_KIND_OFFSET] > _MAX_KIND
            or frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE
        ):
            _check_frame(frame)
    return [LogEntry(index, frame) for index, frame in enumerate(frames, first_index)]


def _check_frame(frame: Buffer) -> None:
    if len(frame) < ENTRY_HEADER_BYTES:
        raise ProtocolError(f"a log entry of {len(frame)} bytes; its header alone has {ENTRY_HEADER_BYTES}")
    if frame[_KIND_OFFSET] > _MAX_KIND:
        raise ProtocolError(f"a log entry of the unknown kind {frame[_KIND_OFFSET]}", offset=_KIND_OFFSET)
    if frame[_LAST_TERM_BYTE] > _MAX_TERM_BYTE:
        raise ProtocolError("a log entry with a term of more than 53 bits", offset=_TERM_OFFSET)


# -- peers -------------------------------------------------------------------------------------------------------------


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
        raise ProtocolError("a list of peers that is no array")
    peers = tuple(map(_peer_from_json, value))
    if len({peer.id for peer in peers}) < len(peers):
        raise ProtocolError("a list of peers with an id twice")
    return peers


def _peer_from_json(pair: JsonValue) -> Peer:
    match pair:
        case [str(peer_id), str(url)] if peer_id and url:
            return Peer(peer_id, url)
    raise ProtocolError("a peer that is no pair of id and url")


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
