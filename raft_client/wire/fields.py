r"""A message is its fields: one declaration makes a checked constructor, the frames of a message, and their reader.

::

    @request(b"\x3f")
    class RequestVote(FieldMessage):
        ident: bytes = frame(RAW)
        candidate_id: str = frame(NAME)
        term: int = frame(UINT)
        leader_agrees: bool = frame(FLAG, default=False, optional=True)  # the frame is left out if it is not set

The frames stand in the order of the fields, a request's type before them. Tables of them in the documentation are
compared with :class:`Layout`. Messages whose frames depend on each other, and those that must be quick,
write ``to_frames`` and ``from_frames`` by hand, the latter with a :class:`FrameReader`.

Invariant: what was made can be sent and is read as an equal message; what cannot be read is a ProtocolError with the
number of its frame.
"""

from __future__ import annotations

from operator import attrgetter, call, length_hint
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar, cast, dataclass_transform

import attrs

from raft_client.errors import InvalidArgumentError, ProtocolError
from raft_client.wire.configuration import Peer, peers_from_json, peers_to_json
from raft_client.wire.frames import (
    MAX_UINT,
    JsonValue,
    decode_bool,
    decode_json,
    decode_nuint,
    decode_string,
    decode_uint,
    encode_bool,
    encode_json,
    encode_nuint,
    encode_string,
    encode_uint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from enum import Enum
    from typing import Self

    from raft_client.wire.configuration import Peers

T = TypeVar("T")
_Outcome = TypeVar("_Outcome", bound="Enum")


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


def _check_text(_message: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{attribute.name} is a text, not {type(value).__name__}")


def _check_peers(_message: object, attribute: attrs.Attribute[Peers], peers: object) -> None:
    if not isinstance(peers, tuple) or not all(isinstance(peer, Peer) for peer in peers):
        raise InvalidArgumentError(f"{attribute.name} is a tuple of Peer")


# -- types of frames ---------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class FrameType:
    """How one value crosses; ``name`` is that of the tables in the documentation."""

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    check: Callable[[Any, attrs.Attribute[Any], Any], None] | None = None


def leader_id_from_json(value: JsonValue) -> str | None:
    """A text, or None; some say that there is no leader with an empty text. Raises ProtocolError."""
    if value is None or isinstance(value, str):
        return value or None
    raise ProtocolError("a leader id that is not text")


def numbered(numbers: Mapping[_Outcome, int], what: str) -> FrameType:
    """One of these values, as its number. Values without a number are refused."""
    values = {number: value for value, number in numbers.items()}

    def check(_message: object, _attribute: object, value: _Outcome) -> None:
        if value not in numbers:
            raise InvalidArgumentError(f"{what} is never {value.value}")

    def decode(frame: bytes) -> _Outcome:
        number = decode_uint(frame)
        if number not in values:
            raise ProtocolError(f"an unknown status of {what}: {number}")
        return values[number]

    return FrameType("uint", lambda value: encode_uint(numbers[value]), decode, check)


RAW: Final = FrameType("", bytes, bytes, check_bytes)
UINT: Final = FrameType("uint", encode_uint, decode_uint, check_uint)
NUINT: Final = FrameType("nuint", encode_nuint, decode_nuint, check_optional_uint)
FLAG: Final = FrameType("bool", encode_bool, decode_bool)
TEXT: Final = FrameType("string", encode_string, decode_string, _check_text)
#: The id or the URL of a peer.
NAME: Final = FrameType("string", encode_string, decode_string, check_name)
JSON: Final = FrameType("json", encode_json, decode_json)
#: The id of a peer, or None if no leader is known.
LEADER: Final = FrameType(
    "json or null", encode_json, lambda frame: leader_id_from_json(decode_json(frame)), check_leader_id
)
PEERS: Final = FrameType(
    "json",
    lambda peers: encode_json(peers_to_json(peers)),
    lambda frame: peers_from_json(decode_json(frame)),
    _check_peers,
)


# -- declarations ------------------------------------------------------------------------------------------------------


_COLUMNS: Final = "raft_client.columns"
_NEVER_MISSING: Final = object()


@attrs.frozen(eq=False)
class Column:
    """One frame of a message. ``path`` leads to its value; a frame that may be missing stands for ``missing``."""

    path: str
    type: FrameType
    missing: Any = _NEVER_MISSING

    @property
    def is_optional(self) -> bool:
        """Whether the frame may be missing at the end of the message."""
        return self.missing is not _NEVER_MISSING


def frame(kind: FrameType, *, default: Any = attrs.NOTHING, optional: bool = False) -> Any:
    """Declare a field of one frame. ``optional``: without the frame, at the end of a message, it is the ``default``."""
    check = kind.check
    if default is None and check is not None:
        check = attrs.validators.optional(check)
    column = Column("", kind, default if optional else _NEVER_MISSING)
    return attrs.field(default=default, validator=check, metadata={_COLUMNS: [column]})


def group(make: Callable[..., object], **parts: FrameType) -> Any:
    """Declare a field of several frames, which are the arguments of ``make`` and attributes of what it returns."""
    return attrs.field(metadata={_COLUMNS: [Column(f".{name}", kind) for name, kind in parts.items()], "make": make})


@dataclass_transform(frozen_default=True, field_specifiers=(frame, group, attrs.field))
def request(message_type: bytes) -> Callable[[type[T]], type[T]]:
    """Make a class a request of this type, which stands before its fields. The first field is the cluster ident."""
    return lambda cls: _declare(cls, message_type, message_type)


@dataclass_transform(frozen_default=True, field_specifiers=(frame, group, attrs.field))
def reply(message_type: bytes, *, kind: int | None = None) -> Callable[[type[T]], type[T]]:
    """Make a class a reply to requests of this type. ``kind``, if there are several, stands before its fields."""
    return lambda cls: _declare(cls, message_type, None if kind is None else encode_uint(kind))


def _declare(cls: type[T], message_type: bytes, head: bytes | None) -> type[T]:
    made: Any = attrs.frozen(cls)
    columns: list[Column] = []
    groups: list[_Group] = []
    for field in attrs.fields(made):
        parts = field.metadata[_COLUMNS]
        if make := field.metadata.get("make"):
            groups.append((slice(len(columns), len(columns) + len(parts)), make))
        columns += [attrs.evolve(part, path=field.name + part.path) for part in parts]
    made.TYPE = message_type
    made._layout = Layout(head, columns, groups)  # noqa: SLF001  # the class that is being made
    return cast("type[T]", made)


_Group: TypeAlias = "tuple[slice, Callable[..., object]]"


class Layout:
    """The frames of one kind of message: the ``head``, always the same, and a :class:`Column` for each other one."""

    __slots__ = ("columns", "decoders", "encoders", "groups", "head", "optional", "required", "values")

    def __init__(self, head: bytes | None, columns: Sequence[Column], groups: Sequence[_Group]) -> None:
        self.head: Final = head
        self.columns: Final = tuple(columns)
        self.required: Final = sum(not column.is_optional for column in columns)
        #: What the last frames stand for if they are missing, the last one first.
        self.optional: Final = [column.missing for column in columns[self.required :]][::-1]
        self.encoders: Final = [column.type.encode for column in columns]
        self.decoders: Final = [column.type.decode for column in columns]
        #: Where the parts of a value stand among the values of a message, the last value first.
        self.groups: Final = groups[::-1]
        #: All values of a message.
        self.values: Final = _getter([column.path for column in columns])

    def refuse(self, first: bytes | None) -> None:
        """Raise ProtocolError: a message that begins with the frame ``first`` has another head."""
        if first is None:
            raise ProtocolError("a frame is missing", frame=0)
        raise ProtocolError(f"a message of another type than {(self.head or b'').hex()}", frame=0)


def _getter(paths: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    get = attrgetter(*paths)
    return get if len(paths) > 1 else lambda message: (get(message),)


class FieldMessage:
    """What :func:`request` and :func:`reply` make of a class with fields."""

    __slots__ = ()

    TYPE: ClassVar[bytes]
    _layout: ClassVar[Layout]
    __attrs_attrs__: ClassVar[Any]

    def to_frames(self) -> list[bytes]:
        """The frames after the request id."""
        layout = self._layout
        frames = [] if layout.head is None else [layout.head]
        values = layout.values(self)
        if layout.optional:
            count = len(values)
            for missing in layout.optional:
                if values[count - 1] is not missing:
                    break
                count -= 1
            values = values[:count]
        frames += map(call, layout.encoders, values)
        return frames

    @classmethod
    def from_frames(cls, frames: Sequence[bytes]) -> Self:
        """Raises ProtocolError. Frames behind those of the fields are ignored, as the peers do."""
        layout, left = cls._layout, iter(frames)
        if layout.head is not None and (first := next(left, None)) != layout.head:
            layout.refuse(first)
        try:
            values = list(map(call, layout.decoders, left))
        except ProtocolError as error:
            error.frame = len(frames) - length_hint(left) - 1  # the last one that was taken
            raise
        if len(values) < layout.required:
            raise ProtocolError("a frame is missing", frame=len(frames))
        try:
            for parts, make in layout.groups:
                values[parts] = [make(*values[parts])]
            return cls(*values)
        except InvalidArgumentError as error:
            raise ProtocolError(error.message) from None


# -- reading by hand ---------------------------------------------------------------------------------------------------


def build(make: Callable[..., T], *values: Any) -> T:
    """``make(*values)`` with values that came from the other side: what it refuses is their mistake, not ours."""
    try:
        return make(*values)
    except InvalidArgumentError as error:
        raise ProtocolError(error.message) from None


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

    def read(self, kind: FrameType) -> Any:
        """The next frame as a value of this type."""
        frame = self.raw()
        try:
            return kind.decode(frame)
        except ProtocolError as error:
            error.frame = self._position - 1
            raise

    def uint(self) -> int:
        """The next frame as an unsigned integer."""
        return int(self.read(UINT))
