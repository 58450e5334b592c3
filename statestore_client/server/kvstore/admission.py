"""What a store does not take, whatever it has already: sizes, numbers and room.

A refused entry has a reason of its own, and says nothing about the other ones of its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from statestore_client.wire.kvstore.value import (
    INFINITE_TTL_MS,
    MAX_KEY_BYTES,
    MAX_ORIGINATOR_BYTES,
    MAX_TTL_MS,
    MAX_VALUE_BYTES,
    MAX_VERSION,
    NoMergeReason,
)

if TYPE_CHECKING:
    from statestore_client.wire.kvstore.value import Value

__all__ = ["DEFAULT_LIMITS", "AreaLimits", "OriginatorNames", "bytes_of", "entry_bytes", "refusal"]

#: Originators whose names are kept to be shared. There are as many as sites.
_NAMES: Final = 4096


@attrs.frozen
class AreaLimits:
    """What one area may hold. ``max_bytes``: of keys, originators and values; besides, a key takes some 600 bytes."""

    max_keys: int = 1_000_000
    max_bytes: int = 1 << 30


DEFAULT_LIMITS: Final = AreaLimits()


class OriginatorNames:
    """The same text for the same originator, checked once: entries share it."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def shared(self, name: str) -> str | None:
        """None for what cannot be the name of a site."""
        found = self._names.get(name)
        if found is None and _is_text(name, MAX_ORIGINATOR_BYTES):
            if len(self._names) >= _NAMES:
                self._names.clear()
            found = self._names[name] = name
        return found


def refusal(key: str, entry: Value) -> NoMergeReason | None:
    """Why an entry is refused before any table decides; None if it is not. The originator is checked elsewhere."""
    ttl_ms = entry.ttl_ms
    if not 0 < ttl_ms <= MAX_TTL_MS and ttl_ms != INFINITE_TTL_MS:
        return NoMergeReason.INVALID_TTL
    # A version of 0 or less is an old one: the tables say so.
    if entry.version > MAX_VERSION or not 0 <= entry.ttl_version <= MAX_VERSION:
        return NoMergeReason.INVALID_VERSION
    if not (key and len(key) <= MAX_KEY_BYTES if key.isascii() else _is_text(key, MAX_KEY_BYTES)):
        return NoMergeReason.INVALID_KEY
    if entry.value is not None and len(entry.value) > MAX_VALUE_BYTES:
        return NoMergeReason.VALUE_TOO_LARGE
    return None


def bytes_of(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def entry_bytes(key: str, entry: Value) -> int:
    """Bytes of key, originator and value. (facts §1.1, KvStoreAreaSummary)"""
    return bytes_of(key) + bytes_of(entry.originator) + len(entry.value or b"")


def _is_text(text: str, most: int) -> bool:
    if not text or len(text) > most:
        return False
    try:
        return bytes_of(text) <= most
    except UnicodeEncodeError:  # half a surrogate pair, which no message can carry
        return False
