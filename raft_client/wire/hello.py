"""How two sides learn what the other one knows beyond the document: frames <-> values.

A hello is a RequestLogInfo, which every peer answers, whose request id is not a number::

    request id  00 "zmqraft" 00 | json [version, peer id or nil, incarnation, [capability, ...], quiet ms]
    then        25 | ident

A Node peer takes that frame for opaque bytes and sends it back with its ordinary reply (facts §1.1): the reply of nine
frames *is* the answer "I know nothing else". Our peers add a tenth frame, the same json without the name before
it. So nobody waits for a time-out to learn what the other side knows, and nothing is sent that a peer does not know.

What was learned holds for one connection. The ids of ordinary requests have 1 to 4 or 12 bytes; a hello has more.

Source: ours; ``docs/decisions/raft-wire.md``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.errors import ProtocolError
from raft_client.wire.fields import build, check_name, check_uint
from raft_client.wire.frames import Buffer, JsonValue, decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Of the json's layout. A higher one is read as far as it is known: fields are only ever added.
HELLO_VERSION: Final = 1

_PREFIX: Final = b"\x00zmqraft\x00"
#: How many frames the reply to RequestLogInfo has after the request id.
_LOG_INFO_FRAMES: Final = 9


class Capability(StrEnum):
    """What goes beyond the document, one by one. What is not in this list is ignored."""

    PRE_VOTE = "pre-vote"
    TRANSFER = "transfer"
    READ_INDEX = "read-index"
    WATCH = "watch"
    TRIM = "trim"
    SNAPSHOT = "snapshot"
    LEASES = "leases"


def _as_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


@attrs.frozen
class Hello:
    """One side of a connection, and what it knows. A client has no ``peer_id``. Each start has its ``incarnation``."""

    peer_id: str | None = attrs.field(validator=attrs.validators.optional(check_name))
    incarnation: int = attrs.field(validator=check_uint)
    #: Names of capabilities, sorted; those of a later version than ours are among them.
    capabilities: tuple[str, ...] = attrs.field(default=(), converter=_as_names)
    #: How many milliseconds a peer keeps its vote after it heard a leader. None: a client, or a peer of an earlier
    #: version, which keeps it for 200 ms.
    quiet_ms: int | None = attrs.field(default=None, validator=attrs.validators.optional(check_uint))

    def to_frame(self) -> bytes:
        """The frame after those of a reply to RequestLogInfo."""
        values: list[JsonValue] = [HELLO_VERSION, self.peer_id, self.incarnation, list(self.capabilities)]
        return encode_json(values if self.quiet_ms is None else [*values, self.quiet_ms])

    def to_request_id(self) -> bytes:
        """The request id of a RequestLogInfo that says hello."""
        return _PREFIX + self.to_frame()

    @classmethod
    def from_frame(cls, frame: Buffer) -> Hello:
        """Raises ProtocolError."""
        match decode_json(frame):
            case [int(version), None | str() as peer_id, int(incarnation), [*names], *more] if (
                version >= HELLO_VERSION and type(version) is type(incarnation) is int
            ):
                return build(cls, peer_id, incarnation, _texts(names), more[0] if more else None)
        raise ProtocolError("a hello without version, peer id, incarnation and capabilities")

    def knows(self, capability: Capability) -> bool:
        """Whether messages of this kind may be sent to it."""
        return capability in self.capabilities


def is_hello(request_id: bytes) -> bool:
    """Whether this request id says hello."""
    return request_id.startswith(_PREFIX)


def hello_in_reply(frames: Sequence[bytes]) -> Hello | None:
    """The hello in the reply to a RequestLogInfo (``frames`` after the request id); None if the peer says nothing.

    Raises ProtocolError when there is one that cannot be read.
    """
    return Hello.from_frame(frames[_LOG_INFO_FRAMES]) if len(frames) > _LOG_INFO_FRAMES else None


def _texts(names: Sequence[JsonValue]) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in names):
        raise ProtocolError("a capability that is not text")
    return tuple(name for name in names if isinstance(name, str))
