"""The keys, their values, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.store.survival import Kept
    from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["KEY_OVERHEAD_BYTES", "Entry", "Keyspace"]

#: What a key costs beside its own bytes and its value's: the entry, its version, and two index slots.
KEY_OVERHEAD_BYTES: Final = 320


class Entry:
    """What is stored under one key. Mutable and slotted: there may be millions."""

    __slots__ = ("expires_at", "fence", "kept", "value", "version")

    def __init__(
        self,
        value: bytes,
        version: HlcTimestamp,
        fence: HlcTimestamp | None,
        expires_at: float | None,
        kept: Kept,
    ) -> None:
        self.value: bytes = value
        self.version: HlcTimestamp = version
        self.fence: HlcTimestamp | None = fence  # the fencing token that protects the key
        self.expires_at: float | None = expires_at  # monotonic seconds
        self.kept: Kept = kept  # what the disk has of it


class Keyspace:
    """A dictionary with a sorted index of its keys for SCAN.

    Invariant: ``used_bytes`` is the sum of key, value and KEY_OVERHEAD_BYTES over all entries, and ``unlisted`` the
    number of keys that are not UTF-8, which SCAN never lists.
    """

    __slots__ = ("_entries", "_index", "get", "unlisted", "used_bytes")

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}
        #: The entry of a key, expired or not; None if there is none. The dictionary's own method: every command asks.
        self.get: Final = self._entries.get
        self._index: KeyIndex[bytes] = KeyIndex()
        self.used_bytes: int = 0
        self.unlisted: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: bytes, entry: Entry) -> None:
        """Store an entry under a key that has none."""
        self._entries[key] = entry
        self._index.add(key)
        self.unlisted += not _is_text(key)
        self.used_bytes += len(key) + len(entry.value) + KEY_OVERHEAD_BYTES

    def replace_value(self, entry: Entry, value: bytes) -> None:
        """Give a stored entry another value. The index, and so the number of keys, is not involved."""
        self.used_bytes += len(value) - len(entry.value)
        entry.value = value

    def remove(self, key: bytes) -> Entry:
        """Forget a key and hand back its entry."""
        entry = self._entries.pop(key)
        self._index.remove(key)
        self.unlisted -= not _is_text(key)
        self.used_bytes -= len(key) + len(entry.value) + KEY_OVERHEAD_BYTES
        return entry

    def keys_from(self, start: bytes, *, inclusive: bool) -> Iterator[bytes]:
        """The keys from ``start`` on, in byte order. Do not change the keyspace while iterating."""
        return self._index.keys_from(start, inclusive=inclusive)


def _is_text(key: bytes) -> bool:
    if key.isascii():
        return True
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
