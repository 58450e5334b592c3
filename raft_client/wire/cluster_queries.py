"""The RPCs that ask for something: frames <-> values. The table stands in :mod:`raft_client.wire.messages`.

Source: ØMQ Raft protocol, RequestConfig, RequestLogInfo and BroadcastStateUrl RPC; facts §1.3 and §1.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from raft_client.wire.configuration import Peers, peers_from_json, peers_to_json
from raft_client.wire.fields import (
    FrameReader,
    build,
    check_bytes,
    check_leader_id,
    check_name,
    check_peers,
    check_uint,
)
from raft_client.wire.frames import encode_bool, encode_json, encode_string, encode_uint

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BroadcastStateUrl",
    "BroadcastStateUrlReply",
    "ConfigReply",
    "LogInfoReply",
    "RequestConfig",
    "RequestLogInfo",
]


# -- RequestConfig -----------------------------------------------------------------------------------------------------


@attrs.frozen
class RequestConfig:
    """Who is the leader, and who are the peers? Every peer answers."""

    TYPE: ClassVar[bytes] = b"\x5e"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestConfig:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class ConfigReply:
    """``peers`` is None when the peer sent none; while the configuration changes it holds the old and the new ones."""

    TYPE: ClassVar[bytes] = RequestConfig.TYPE

    is_leader: bool
    leader_id: str | None = attrs.field(validator=check_leader_id)
    peers: Peers | None = attrs.field(default=None, validator=attrs.validators.optional(check_peers))

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        frames = [encode_bool(self.is_leader), encode_json(self.leader_id)]
        if self.peers is not None:
            frames.append(encode_json(peers_to_json(self.peers)))
        return frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ConfigReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        is_leader, leader_id = reader.flag(), reader.leader_id()
        return build(cls, is_leader, leader_id, peers_from_json(reader.json()) if reader.more else None)


# -- RequestLogInfo ----------------------------------------------------------------------------------------------------


@attrs.frozen
class RequestLogInfo:
    """How long is your log? Every peer answers for itself."""

    TYPE: ClassVar[bytes] = b"\x25"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> RequestLogInfo:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class LogInfoReply:
    """The state of one peer's log.

    ``first_index`` is that of the first entry that was not compacted, ``prune_index`` the last one that a compaction
    may remove without forgetting a request id that is still fresh.
    """

    TYPE: ClassVar[bytes] = RequestLogInfo.TYPE

    is_leader: bool
    leader_id: str | None = attrs.field(validator=check_leader_id)
    current_term: int = attrs.field(validator=check_uint)
    first_index: int = attrs.field(validator=check_uint)
    last_applied: int = attrs.field(validator=check_uint)
    commit_index: int = attrs.field(validator=check_uint)
    last_index: int = attrs.field(validator=check_uint)
    snapshot_bytes: int = attrs.field(validator=check_uint)
    prune_index: int = attrs.field(validator=check_uint)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        numbers = (
            self.current_term,
            self.first_index,
            self.last_applied,
            self.commit_index,
            self.last_index,
            self.snapshot_bytes,
            self.prune_index,
        )
        return [encode_bool(self.is_leader), encode_json(self.leader_id), *map(encode_uint, numbers)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> LogInfoReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, reader.flag(), reader.leader_id(), *(reader.uint() for _ in range(7)))


# -- the state machine -------------------------------------------------------------------------------------------------


@attrs.frozen
class BroadcastStateUrl:
    """Where do you publish what is applied? Every peer answers; only the leader publishes (facts §1.4)."""

    TYPE: ClassVar[bytes] = b"\x2a"

    ident: bytes = attrs.field(validator=check_bytes)

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.TYPE, self.ident]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> BroadcastStateUrl:
        """Raises ProtocolError."""
        return cls(FrameReader.of_request(frames, cls.TYPE).raw())


@attrs.frozen
class BroadcastStateUrlReply:
    """``url`` of a PUB socket; None when the peer is not the leader, as the document has it."""

    TYPE: ClassVar[bytes] = BroadcastStateUrl.TYPE

    url: str | None = attrs.field(default=None, validator=attrs.validators.optional(check_name))

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [] if self.url is None else [encode_string(self.url)]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> BroadcastStateUrlReply:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return cls(reader.text() or None if reader.more else None)
