"""How one replicated server connects to the internal address of another one: bytes <-> values.

::

    receiver  "statestore internal 2\\n"
    dialler   "E": the receiver repeats it, and TLS begins; or "P": what follows is plain
    receiver  nonce (32 bytes)
    dialler   length (2 bytes)  [purpose, id, receiver, endpoint, host, port] in MessagePack  nonce (32)  code (32)
    receiver  length (2 bytes)  [accepted, text] in MessagePack  code (32)

A code is an HMAC-SHA256 over who says it, both nonces and the array, with a key made from the secret that all these
servers have. So each side knows that the other one has the secret, now, and means this connection: a code that somebody
has heard, or passes on to another server, is of no use (``receiver`` is the address that was dialled).

Then, for ``splice``, the bytes of a client go both ways, as its own connection has them: which endpoint it came in at,
and from where, is in the array. For ``pulse``, which is plain since it holds no secret and comes from a thread, the
active server says its epoch (8 bytes, big endian), a counter (8) and a code over both, again and again. For commands of
``statestore ha`` a line of JSON follows, which any of the servers says; ``endpoint`` is the command's argument then.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import attrs
import msgpack

from statestore_client.errors import RemoteProtocolError

__all__ = [
    "CODE_BYTES",
    "ENCRYPTED",
    "LENGTH_BYTES",
    "MAGIC",
    "NONCE_BYTES",
    "PLAIN",
    "PULSE_BYTES",
    "Answer",
    "Hello",
    "Session",
    "check_magic",
    "length_of",
]

MAGIC: Final = b"statestore internal 2\n"
#: Of releases before: they proved the secret in one direction only.
_OLD_MAGIC: Final = b"statestore internal 1\n"
ENCRYPTED: Final = b"E"
PLAIN: Final = b"P"
NONCE_BYTES: Final = 32
CODE_BYTES: Final = 32
LENGTH_BYTES: Final = 2
_COUNT_BYTES: Final = 8
PULSE_BYTES: Final = 2 * _COUNT_BYTES + CODE_BYTES
_MOST_BYTES: Final = 1024
_PURPOSES: Final = ("splice", "pulse", "status", "hand-over", "promote", "snapshot", "trim", "format")
_OTHER_KEY: Final = "it has another key: give all servers of one log the same --cluster-key-file"


def check_magic(data: bytes) -> None:
    """Of the receiver. Raises RemoteProtocolError."""
    if data == _OLD_MAGIC:
        raise RemoteProtocolError("what listens there is a server of an older release: upgrade it")
    if data != MAGIC:
        raise RemoteProtocolError("what listens there is no server of this log")


def length_of(data: bytes) -> int:
    """Of the array that follows. Raises RemoteProtocolError if it is too long to be one."""
    length = int.from_bytes(data, "big")
    if length > _MOST_BYTES:
        raise RemoteProtocolError("it does not speak as the servers of a log do")
    return length


@attrs.frozen
class Session:
    """What both sides of a connection know; ``key`` is made from the secret."""

    key: bytes = attrs.field(repr=False)
    receiver_nonce: bytes = attrs.field(repr=False)
    dialler_nonce: bytes = attrs.field(repr=False)

    def pulse(self, epoch: int, count: int) -> bytes:
        """The sign of life with this number, of a server that is active in this epoch."""
        said = epoch.to_bytes(_COUNT_BYTES, "big") + count.to_bytes(_COUNT_BYTES, "big")
        return said + self._code(b"pulse\0", said)

    def epoch_of(self, pulse: bytes, count: int) -> int:
        """Of exactly :data:`PULSE_BYTES`, of which ``count`` were received before. Raises RemoteProtocolError."""
        epoch = int.from_bytes(pulse[:_COUNT_BYTES], "big")
        if not hmac.compare_digest(pulse, self.pulse(epoch, count)):
            raise RemoteProtocolError("a sign of life that the active server did not give")
        return epoch

    def seal(self, role: bytes, packed: bytes) -> bytes:
        """The code of an array; ``role`` says who sends it."""
        return self._code(role, packed)

    def check(self, role: bytes, packed: bytes, code: bytes) -> None:
        """Raises RemoteProtocolError if the other side does not have the key, or means another connection."""
        if not hmac.compare_digest(code, self._code(role, packed)):
            raise RemoteProtocolError(_OTHER_KEY)

    def _code(self, role: bytes, said: bytes) -> bytes:
        return hmac.digest(self.key, role + self.receiver_nonce + self.dialler_nonce + said, "sha256")


_DIALLER: Final = b"dialler\0"
_RECEIVER: Final = b"receiver\0"


@attrs.frozen
class Hello:
    """``id`` is the name of the server that dials, ``receiver`` the address that it dialled. ``endpoint`` is the scheme
    of the one at which a client came in, such as ``mqtts``; ``host`` and ``port`` are the client's own, empty and 0 for
    one without an address. Of a command, ``endpoint`` is its argument; of a server that listens for pulses, the newest
    format of records that it knows.
    """

    purpose: str
    id: str
    receiver: str
    endpoint: str = ""
    host: str = ""
    port: int = 0

    def encode(self, session: Session) -> bytes:
        packed = _packed(attrs.astuple(self))
        return _framed(packed, session.dialler_nonce + session.seal(_DIALLER, packed))

    @classmethod
    def decode(cls, packed: bytes, code: bytes, session: Session) -> Hello:
        """Of the array and its code. Raises RemoteProtocolError."""
        session.check(_DIALLER, packed, code)
        hello = cls(*_unpacked(packed, len(attrs.fields(cls))))
        has_texts = all(type(text) is str for text in attrs.astuple(hello)[1:-1])
        if hello.purpose not in _PURPOSES or not has_texts or type(hello.port) is not int:
            raise RemoteProtocolError("a hello of a newer release")
        return hello


@attrs.frozen
class Answer:
    """``text`` says why the dialler is not let in; otherwise it is the id of the receiver."""

    is_accepted: bool
    text: str

    def encode(self, session: Session) -> bytes:
        packed = _packed(attrs.astuple(self))
        return _framed(packed, session.seal(_RECEIVER, packed))

    @classmethod
    def decode(cls, packed: bytes, code: bytes, session: Session) -> Answer:
        """Of the array and its code. Raises RemoteProtocolError."""
        session.check(_RECEIVER, packed, code)
        is_accepted, text = _unpacked(packed, len(attrs.fields(cls)))
        if type(is_accepted) is not bool or type(text) is not str:
            raise RemoteProtocolError("an answer of a newer release")
        return cls(is_accepted, text)


def _packed(values: tuple[object, ...]) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpacked(packed: bytes, count: int) -> tuple[Any, ...]:
    try:
        values: Any = msgpack.unpackb(packed, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"no array of a handshake: {error}") from error
    if not isinstance(values, tuple) or len(values) != count:
        raise RemoteProtocolError("an array of a newer release")
    return values


def _framed(packed: bytes, rest: bytes) -> bytes:
    return len(packed).to_bytes(LENGTH_BYTES, "big") + packed + rest
