"""How one replicated server comes in at the inner door of another one: bytes <-> values.

::

    active   "statestore inner 1\\n"  challenge (32 bytes)
    other    length (2 bytes)  [purpose, door, host, port] in MessagePack  HMAC-SHA256 (32 bytes)

The code is over the challenge and the array, with the key that all these servers have. Then, for ``splice``, the bytes
of a client go both ways, as its own connection has them: who came in by which door, from where, is in the array. For
``pulse``, the active server says its epoch (8 bytes, big endian) again and again.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import attrs
import msgpack

from statestore_client.errors import RemoteProtocolError

__all__ = ["CHALLENGE_BYTES", "EPOCH_BYTES", "GREETING", "InnerHello", "hello_size"]

GREETING: Final = b"statestore inner 1\n"
CHALLENGE_BYTES: Final = 32
EPOCH_BYTES: Final = 8
_LENGTH_BYTES: Final = 2
_CODE_BYTES: Final = 32
_MOST_BYTES: Final = 1024
_PURPOSES: Final = ("splice", "pulse")


@attrs.frozen
class InnerHello:
    """``door`` is the scheme of the endpoint at which a client came in, such as ``mqtts``; ``host`` and ``port`` are
    the client's own, empty and 0 for one without an address.
    """

    purpose: str
    door: str = ""
    host: str = ""
    port: int = 0

    def encode(self, challenge: bytes, key: bytes) -> bytes:
        packed: bytes = msgpack.packb([self.purpose, self.door, self.host, self.port])
        return len(packed).to_bytes(_LENGTH_BYTES, "big") + packed + _code(challenge, packed, key)

    @classmethod
    def decode(cls, data: bytes, challenge: bytes, key: bytes) -> InnerHello:
        """Of exactly :func:`hello_size` bytes. Raises RemoteProtocolError."""
        packed, code = data[_LENGTH_BYTES:-_CODE_BYTES], data[-_CODE_BYTES:]
        if not hmac.compare_digest(code, _code(challenge, packed, key)):
            raise RemoteProtocolError("it has another key: give all servers of one log the same --cluster-key-file")
        try:
            fields: Any = msgpack.unpackb(packed, use_list=False)
            purpose, door, host, port = fields
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise RemoteProtocolError(f"a hello that is none: {error}") from error
        is_good = purpose in _PURPOSES and type(door) is str and type(host) is str and type(port) is int
        if not is_good:
            raise RemoteProtocolError("a hello of a newer release")
        return cls(purpose, door, host, port)


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
