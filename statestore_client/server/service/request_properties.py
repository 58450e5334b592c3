"""What comes beside the payload of a request: its user properties, and by what it is recognised when it comes again."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias

from statestore_client.errors import MalformedTimestampError, TimestampError
from statestore_client.mqtt.packets.bounded_cache import BoundedCache
from statestore_client.wire.hlc import HlcTimestamp
from statestore_client.wire.messages import FENCING_TOKEN, PERSIST, PERSISTED, TIMESTAMP

if TYPE_CHECKING:
    from statestore_client.mqtt.packets.types import UserProperties

__all__ = ["TOKENS", "Content", "digest", "parse_timestamp", "request_properties"]

#: What makes two requests with the same client identifier and correlation data one: payload, ``__ts``, ``__ft``, the
#: client's user, and, without ``__ts``, the packet identifier.
Content: TypeAlias = tuple[bytes, str | None, str | None, str | None, int | None]

_TRUE: Final = PERSISTED[1]

#: Of ``__ts`` and ``__ft``. Node ids are client ids, which are no longer; the quota does not count those of the fences.
_LONGEST_NODE_ID: Final = 1024


def digest(content: Content) -> int:
    """A fingerprint that means the same after a restart, which ``hash`` does not. That of a request with ``__ts`` and
    without a user is the one of earlier releases: a client that repeats it across an upgrade gets its answer.
    """
    payload, timestamp, token, user, packet_id = content
    hashed = blake2b(payload, digest_size=8)
    hashed.update(f"\0{timestamp}\0{token}".encode())
    if user is not None or packet_id is not None:
        hashed.update(repr((user, packet_id)).encode())
    return int.from_bytes(hashed.digest(), "big")


def request_properties(user_properties: UserProperties) -> tuple[str | None, str | None, bool]:
    """The texts of ``__ts`` and ``__ft``, of a repeated property the first one; and whether it is to be on disk."""
    timestamp = token = None
    is_marked = False
    for name, text in user_properties:
        if name == TIMESTAMP and timestamp is None:
            timestamp = text
        elif name == FENCING_TOKEN and token is None:
            token = text
        elif name == PERSIST and text == _TRUE:
            is_marked = True
    return timestamp, token, is_marked


def parse_timestamp(text: str) -> HlcTimestamp:
    """Stricter than clients are: a timestamp without a node identifies nobody, and one may be stored with every key."""
    try:
        timestamp = HlcTimestamp.parse(text)
    except TimestampError as error:
        raise MalformedTimestampError from error
    if not 0 < len(timestamp.node_id) <= _LONGEST_NODE_ID:
        raise MalformedTimestampError
    return timestamp


def _parse_token(text: str) -> HlcTimestamp:
    """Without the writer's own way to write it: every marked key holds a token."""
    token = parse_timestamp(text)
    return HlcTimestamp(token.wall_ms, token.counter, token.node_id)


#: A writer sends the same token with each of its requests. As the same object again it passes the mark that it has set
#: itself without a comparison, and a thousand marked keys hold one token.
TOKENS: Final = BoundedCache(_parse_token)
