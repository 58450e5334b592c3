"""What the messages share: checks of their fields, and a reader that knows which frame it stands at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.configuration import Peer
from raft_client.wire.frames import (
    MAX_UINT,
    JsonValue,
    decode_bool,
    decode_json,
    decode_nuint,
    decode_string,
    decode_uint,
    encode_string,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import attrs

    from raft_client.wire.configuration import Peers

T = TypeVar("T")


# -- checks, for attrs -------------------------------------------------------------------------------------------------


def check_uint(_message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """An index, term or size."""
    if type(value) is not int or not 0 <= value <= MAX_UINT:
        raise InvalidArgumentError(f"{attribute.name} is an integer from 0 to 2^53 - 1")


def check_optional_uint(message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """The same, or None."""
    if value is not None:
        check_uint(message, attribute, value)


def check_bytes(_message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """A frame that goes out as it is."""
    if not isinstance(value, bytes):
        raise InvalidArgumentError(f"{attribute.name} is bytes, not {type(value).__name__}")


def check_name(_message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """The id or URL of a peer."""
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{attribute.name} is a text that is not empty")
    encode_string(value)


def check_leader_id(message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """The id of a peer, or None when no leader is known."""
    if value is not None:
        check_name(message, attribute, value)


def check_peers(_message: object, attribute: attrs.Attribute[Peers], peers: object) -> None:
    """A list of peers, as it stands in a configuration."""
    if not isinstance(peers, tuple) or not all(isinstance(peer, Peer) for peer in peers):
        raise InvalidArgumentError(f"{attribute.name} is a tuple of Peer")


# -- reading -----------------------------------------------------------------------------------------------------------


def build(make: Callable[..., T], *values: Any) -> T:
    """``make(*values)`` with values that came from the other side: what it refuses is their mistake, not ours."""
    try:
        return make(*values)
    except InvalidArgumentError as error:
        raise ProtocolError(error.message) from None


def leader_id_from_json(value: JsonValue) -> str | None:
    """A text, or None; some say that there is no leader with an empty text. Raises ProtocolError."""
    if value is None or isinstance(value, str):
        return value or None
    raise ProtocolError("a leader id that is not text")


class FrameReader:
    """Takes frames one by one. What it raises carries the number of the frame, the first being 0."""

    __slots__ = ("_frames", "_position")

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames
        self._position = 0

    @classmethod
    def of_request(cls, frames: Sequence[bytes], message_type: bytes) -> FrameReader:
        """After the type, at the cluster ident. Raises ProtocolError when it is another type."""
        reader = cls(frames)
        if reader.raw() != message_type:
            raise ProtocolError(f"a message of another type than {message_type.hex()}", frame=0)
        return reader

    @property
    def more(self) -> int:
        """How many frames are left."""
        return len(self._frames) - self._position

    def raw(self) -> bytes:
        """The next frame as it is."""
        if self._position >= len(self._frames):
            raise ProtocolError("a frame is missing", frame=self._position)
        frame = self._frames[self._position]
        self._position += 1
        return frame

    def rest(self) -> Sequence[bytes]:
        """All that is left."""
        rest = self._frames[self._position :]
        self._position = len(self._frames)
        return rest

    def uint(self) -> int:
        """The next frame as an unsigned integer."""
        return self._decode(decode_uint)

    def optional_uint(self) -> int | None:
        """The same; None when there are no more frames."""
        return self._decode(decode_uint) if self.more else None

    def optional_nuint(self) -> int | None:
        """The same; None also for an empty frame."""
        return self._decode(decode_nuint) if self.more else None

    def flag(self) -> bool:
        """The next frame as a bool."""
        return self._decode(decode_bool)

    def text(self) -> str:
        """The next frame as a text."""
        return self._decode(decode_string)

    def json(self) -> JsonValue:
        """The next frame as json."""
        return self._decode(decode_json)

    def leader_id(self) -> str | None:
        """The next frame as the id of the leader, in json."""
        return self._decode(lambda frame: leader_id_from_json(decode_json(frame)))

    def _decode(self, decode: Callable[[bytes], T]) -> T:
        frame = self.raw()
        try:
            return decode(frame)
        except ProtocolError as error:
            error.frame = self._position - 1
            raise
