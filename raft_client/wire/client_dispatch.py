"""Messages for the state machine: frames <-> values.

Source: ØMQ Raft protocol, "ClientDispatch RPC"; facts §1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from raft_client.errors import InvalidArgumentError
from raft_client.wire.fields import FrameReader, build, check_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ClientDispatch"]


@attrs.frozen
class ClientDispatch:
    """A message for a state machine of your own. Types of one byte are reserved for ØMQ Raft itself."""

    type: bytes = attrs.field(validator=check_bytes)
    ident: bytes = attrs.field(validator=check_bytes)
    frames: tuple[bytes, ...] = ()

    def __attrs_post_init__(self) -> None:
        if len(self.type) < 2:
            raise InvalidArgumentError("the type of a message of your own has at least two bytes")
        if not isinstance(self.frames, tuple) or not all(isinstance(frame, bytes) for frame in self.frames):
            raise InvalidArgumentError("frames is a tuple of bytes")

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        return [self.type, self.ident, *self.frames]

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> ClientDispatch:
        """Raises ProtocolError."""
        reader = FrameReader(frames)
        return build(cls, reader.raw(), reader.raw(), tuple(reader.rest()))
