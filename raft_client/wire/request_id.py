"""Request ids: the 12 bytes that make an update idempotent, because they are written into the log with it.

::

                                                made by a client           derived: the same in any process
    seconds since 1970, big endian   4 bytes    when it was made           a time that a repetition knows too
    machine                          3 bytes    first of MD5(host name)    \
    process id                       2 bytes    big endian                  } hash of the namespace + n, big endian
    counter                          3 bytes    starts at random           /

A peer takes an id only while it is *fresh*: not older than its ``requestIdTtl`` (8 hours) less a quarter of an hour,
and not more than a quarter of an hour in the future (facts §1.4, RequestUpdate). Within that window the same id is
appended at most once, whoever sends it, however often.

Source: ØMQ Raft protocol, "reqid". The clock, the host name and the process id are read in
:mod:`raft_client.request_id_factory`; here everything is an argument.
"""

from __future__ import annotations

import base64
import hashlib
import re
from enum import Enum
from itertools import count
from typing import Final

import attrs

from raft_client.errors import InvalidArgumentError

REQUEST_ID_BYTES: Final = 12
#: How long a peer remembers ids unless it is configured otherwise.
DEFAULT_TTL_S: Final = 8 * 60 * 60
#: What a peer allows for clocks that differ: subtracted from the past, granted to the future.
CLOCK_TOLERANCE_S: Final = 15 * 60

_MAX_SECONDS: Final = 2**32 - 1
_COUNTER_MASK: Final = 2**24 - 1
_TAIL_MODULUS: Final = 2**64
_HEX: Final = re.compile(r"[0-9a-fA-F]{24}")
_BASE64: Final = re.compile(r"[0-9A-Za-z+/]{16}")


class IdFreshness(Enum):
    """What a peer will say of an id."""

    EXPIRED = "expired"
    FRESH = "fresh"
    FUTURE = "future"  # refused by a peer like an expired one


def _check_raw(_id: RequestId, _attribute: object, raw: bytes) -> None:
    if not isinstance(raw, bytes) or len(raw) != REQUEST_ID_BYTES:
        raise InvalidArgumentError("a request id has 12 bytes")


@attrs.frozen(order=True)
class RequestId:
    """The identity of one update: with the same id it is appended at most once. ``str()`` gives 24 hex digits."""

    raw: bytes = attrs.field(validator=_check_raw)

    def __str__(self) -> str:
        return self.raw.hex()

    @classmethod
    def parse(cls, text: str) -> RequestId:
        """24 hex digits, or 16 characters of Base64 as the Node peers print it. Raises InvalidArgumentError."""
        if _HEX.fullmatch(text):
            return cls(bytes.fromhex(text))
        if _BASE64.fullmatch(text):
            return cls(base64.b64decode(text))
        raise InvalidArgumentError("a request id is written as 24 hex digits or 16 characters of Base64")

    @classmethod
    def derive(cls, namespace: bytes | str, n: int, *, seconds: int) -> RequestId:
        """The same id for the same arguments, in any process: what makes repeated work append once.

        Use what names the piece of work as ``namespace`` (job and partition), the position in it as ``n``, and as
        ``seconds`` a time that a repetition knows too, such as the start of the job (seconds since 1970). The work must
        end within the freshness window after it.

        Invariant: within one namespace different ``n`` give different ids. Between namespaces, ids collide as random
        64-bit numbers would. Raises InvalidArgumentError when ``n`` or ``seconds`` is out of range.
        """
        if not 0 <= n < _TAIL_MODULUS:
            raise InvalidArgumentError("a derived request id counts from 0 to 2^64 - 1")
        name = namespace.encode() if isinstance(namespace, str) else namespace
        start = int.from_bytes(hashlib.blake2b(name, digest_size=8, person=b"raft request id").digest(), "big")
        return cls(_encode_seconds(seconds) + ((start + n) % _TAIL_MODULUS).to_bytes(8, "big"))

    @property
    def seconds(self) -> int:
        """When it was made, in seconds since 1970."""
        return int.from_bytes(self.raw[:4], "big")

    def freshness(self, now_s: float, *, ttl_s: float = DEFAULT_TTL_S) -> IdFreshness:
        """What a peer with this ``requestIdTtl`` and this clock (seconds since 1970) will say of the id."""
        age_s = now_s - self.seconds
        if age_s >= ttl_s - CLOCK_TOLERANCE_S:
            return IdFreshness.EXPIRED
        return IdFreshness.FUTURE if age_s < -CLOCK_TOLERANCE_S else IdFreshness.FRESH


#: The id of entries that no client asked for: checkpoints.
ZERO_REQUEST_ID: Final = RequestId(bytes(REQUEST_ID_BYTES))


class RequestIdSource:
    """Ids that no other source makes: machine and process tell sources apart, the counter the ids within a second.

    Invariant: no two ids are equal unless 2^24 are made within one second. ``next`` may be called from any thread: the
    counter is one C call, which the interpreter lock makes atomic.
    """

    __slots__ = ("_counter", "_middle")

    def __init__(self, machine: bytes, pid: int, counter: int) -> None:
        if len(machine) != 3:
            raise InvalidArgumentError("the machine part of a request id has 3 bytes")
        self._middle = machine + (pid & 0xFFFF).to_bytes(2, "big")
        self._counter = count(counter)

    def next(self, seconds: int) -> RequestId:
        """A new id, made at ``seconds`` since 1970. Raises InvalidArgumentError beyond the year 2106."""
        return RequestId(self.next_raw(seconds))

    def next_raw(self, seconds: int) -> bytes:
        """As :meth:`next`, its 12 bytes only: every append makes one."""
        tail = (next(self._counter) & _COUNTER_MASK).to_bytes(3, "big")
        return _encode_seconds(seconds) + self._middle + tail


def _encode_seconds(seconds: int) -> bytes:
    if not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidArgumentError("the seconds of a request id lie between 1970 and 2106")
    return seconds.to_bytes(4, "big")
