"""What a leader publishes: the entries that it applied, and its heartbeats.

Source: ØMQ Raft protocol, "StateBroadcast"; facts §1.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.fields import (
    FrameReader,
    as_entries,
    check_bytes,
    check_uint,
    show_count,
)
from raft_client.wire.frames import encode_uint
from raft_client.wire.log_entry import LogEntry, decode_entries, first_index_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StateBroadcast"]


@attrs.frozen
class StateBroadcast:
    """What a leader publishes: the entries it just applied, the last being ``last_applied``; none as a heartbeat.

    On the wire it is the whole message: the cluster ident first, no request id, no type. A SUB socket's filter compares
    only the start of the ident: compare it again.
    """

    TYPE: ClassVar[bytes] = b""

    ident: bytes = attrs.field(validator=check_bytes)
    term: int = attrs.field(validator=check_uint)
    last_applied: int = attrs.field(validator=check_uint)
    entries: tuple[LogEntry, ...] = attrs.field(default=(), repr=show_count, converter=as_entries)

    def __attrs_post_init__(self) -> None:
        if len(self.entries) > self.last_applied:
            raise InvalidArgumentError("more entries than the log can have")

    def to_frames(self) -> list[bytes]:
        """All frames of the message."""
        head = [self.ident, encode_uint(self.term), encode_uint(self.last_applied)]
        return head + [entry.frame for entry in self.entries]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> StateBroadcast:
        """Raises ProtocolError. The entries know their indexes."""
        reader = FrameReader(frames)
        ident, term, last_applied = reader.raw(), reader.uint(), reader.uint()
        entries = reader.rest()
        return cls(ident, term, last_applied, decode_entries(entries, first_index_of(last_applied, len(entries))))
