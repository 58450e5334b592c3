"""How one replicated server connects to the internal address of another one: bytes <-> values.

::

    active   "statestore internal 1\\n"  challenge (32 bytes)
    other    length (2 bytes)  [purpose, id, endpoint, host, port] in MessagePack  HMAC-SHA256 (32 bytes)
    active   "+", or the end

The code is over the challenge and the array, with the key that all these servers have. Then, for ``splice``, the bytes
of a client go both ways, as its own connection has them: which endpoint it came in at, and from where, is in the array.
For ``pulse``, the active server says its epoch (8 bytes, big endian) again and again. For the commands of
``statestore ha`` a line of JSON follows, which any of the servers says; ``endpoint`` is the id of the next server then.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import attrs
import msgpack

from statestore_client.errors import RemoteProtocolError

__all__ = [
    "ACCEPTED",
    "CHALLENGE_BYTES",
    "EPOCH_BYTES",
    "SERVER_HELLO_BYTES",
    "ClientHello",
    "ServerHello",
    "hello_size",
]

_MAGIC: Final = b"statestore internal 1\n"
CHALLENGE_BYTES: Final = 32
SERVER_HELLO_BYTES: Final = len(_MAGIC) + CHALLENGE_BYTES
ACCEPTED: Final = b"+"
EPOCH_BYTES: Final = 8
_LENGTH_BYTES: Final = 2
_CODE_BYTES: Final = 32
_MOST_BYTES: Final = 1024
_PURPOSES: Final = ("splice", "pulse", "status", "hand-over", "promote", "snapshot", "trim", "format")


@attrs.frozen
class ServerHello:
    """What the active server says first; ``rest`` is what comes behind its acceptance."""

    challenge: bytes
    is_accepted: bool = False
    rest: bytes = b""

    def encode(self) -> bytes:
        return _MAGIC + self.challenge

    @classmethod
    def decode(cls, data: bytes | bytearray) -> ServerHello | None:
        """Of all that was received; None if it is not complete. Raises RemoteProtocolError."""
        if not _MAGIC.startswith(bytes(data[: len(_MAGIC)])):
            raise RemoteProtocolError("what listens there is no server of this log")
        if len(data) < SERVER_HELLO_BYTES:
            return None
        rest = bytes(data[SERVER_HELLO_BYTES:])
        if rest and not rest.startswith(ACCEPTED):
            raise RemoteProtocolError("the active server speaks as a newer release does")
        return cls(bytes(data[len(_MAGIC) : SERVER_HELLO_BYTES]), bool(rest), rest[1:])


@attrs.frozen
class ClientHello:
    """``id`` is the name of the server that comes. ``endpoint`` is the scheme of the one at which a client came in,
    such as ``mqtts``; ``host`` and ``port`` are the client's own, empty and 0 for one without an address. Of a command,
    ``endpoint`` is its argument; of a server that listens for pulses, the newest format of records that it knows.
    """

    purpose: str
    id: str
    endpoint: str = ""
    host: str = ""
    port: int = 0

    def encode(self, challenge: bytes, key: bytes) -> bytes:
        packed: bytes = msgpack.packb([self.purpose, self.id, self.endpoint, self.host, self.port])
        return len(packed).to_bytes(_LENGTH_BYTES, "big") + packed + _code(challenge, packed, key)

    @classmethod
    def decode(cls, data: bytes, challenge: bytes, key: bytes) -> ClientHello:
        """Of exactly :func:`hello_size` bytes. Raises RemoteProtocolError."""
        packed, code = data[_LENGTH_BYTES:-_CODE_BYTES], data[-_CODE_BYTES:]
        if not hmac.compare_digest(code, _code(challenge, packed, key)):
            raise RemoteProtocolError("it has another key: give all servers of one log the same --cluster-key-file")
        try:
            fields: Any = msgpack.unpackb(packed, use_list=False)
            purpose, server_id, endpoint, host, port = fields
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(f"a hello that is none: {error}") from error
        has_texts = all(type(text) is str for text in (server_id, endpoint, host))
        if purpose not in _PURPOSES or not has_texts or type(port) is not int:
            raise RemoteProtocolError("a hello of a newer release")
        return cls(purpose, server_id, endpoint, host, port)


def hello_size(data: bytes | bytearray) -> int | None:
    """How many bytes the hello has that begins like this; None if that is not known yet. Raises RemoteProtocolError."""
    if len(data) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(data[:_LENGTH_BYTES], "big")
    if length > _MOST_BYTES:
        raise RemoteProtocolError("it does not speak as the servers of a log do")
    return _LENGTH_BYTES + length + _CODE_BYTES


def _code(challenge: bytes, packed: bytes, key: bytes) -> bytes:
    # An empty key is for servers on one machine: it keeps nobody out.
    return hmac.digest(key, challenge + packed, "sha256")
