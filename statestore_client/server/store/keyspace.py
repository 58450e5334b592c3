"""The keys, their values, and what they cost whom: a key is its last writer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.server.key_index import KeyIndex
from statestore_client.server.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterator

    from statestore_client.server.store.survival import Kept
    from statestore_client.server.store.values import StoreLimits
    from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["KEY_OVERHEAD_BYTES", "Entry", "Keyspace"]

#: What a key costs beside its own bytes and its value's: the entry, its version, and two index slots.
KEY_OVERHEAD_BYTES: Final = 320


class Entry:
    """What is stored under one key. Mutable and slotted: there may be millions."""

    __slots__ = ("expires_at", "fence", "kept", "user", "value", "version")

    def __init__(
        self,
        value: bytes,
        version: HlcTimestamp,
        fence: HlcTimestamp | None,
        expires_at: float | None,
        kept: Kept,
        user: str | None = None,
    ) -> None:
        self.value: bytes = value
        self.version: HlcTimestamp = version
        self.fence: HlcTimestamp | None = fence  # the fencing token that protects the key
        self.expires_at: float | None = expires_at  # monotonic seconds
        self.kept: Kept = kept  # what the disk has of it
        self.user: str | None = user  # who wrote it last; see Keyspace.replace_value


class Keyspace:
    """A dictionary with a sorted index of its keys for SCAN.

    Invariant: ``bytes`` has the sum of key, value and KEY_OVERHEAD_BYTES over all entries, and ``keys`` their number,
    each for the user of the entry; ``unlisted`` is the number of keys that are not UTF-8, which SCAN never lists.
    """

    __slots__ = ("_entries", "_index", "bytes", "get", "keys", "unlisted")

    def __init__(self, limits: StoreLimits) -> None:
        self._entries: dict[bytes, Entry] = {}
        #: The entry of a key, expired or not; None if there is none. The dictionary's own method: every command asks.
        self.get: Final = self._entries.get
        self._index: KeyIndex[bytes] = KeyIndex()
        self.keys: Final = Shares("keys", limits.max_keys, limits.max_keys_per_user)
        self.bytes: Final = Shares("bytes", limits.max_bytes, limits.max_bytes_per_user)
        self.unlisted: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: bytes, entry: Entry) -> None:
        """Store an entry under a key that has none."""
        self._entries[key] = entry
        self._index.add(key)
        self.unlisted += not _is_text(key)
        self.keys.add(entry.user, 1)
        self.bytes.add(entry.user, len(key) + len(entry.value) + KEY_OVERHEAD_BYTES)

    def lacking(self, key: bytes, value: bytes, entry: Entry | None, user: str | None) -> str | None:
        """The name of the quota that does not allow this value of a key, whose entry is this so far; None if all do."""
        size = len(key) + len(value) + KEY_OVERHEAD_BYTES
        if entry is None:
            return self.keys.lacking(user, 1, 1) or self.bytes.lacking(user, size, size)
        more = len(value) - len(entry.value)
        if entry.user == user:
            return self.bytes.lacking(user, more, more)
        return self.keys.lacking(user, 0, 1) or self.bytes.lacking(user, more, size)

    def replace_value(self, key: bytes, entry: Entry, value: bytes, user: str | None) -> None:
        """Give a stored entry another value, of this user. The index, and so the number of keys, is not involved."""
        if entry.user == user:
            self.bytes.add(user, len(value) - len(entry.value))
        else:
            self._give_back(key, entry)
            self.keys.add(user, 1)
            self.bytes.add(user, len(key) + len(value) + KEY_OVERHEAD_BYTES)
            entry.user = user
        entry.value = value

    def remove(self, key: bytes) -> Entry:
        """Forget a key and hand back its entry."""
        entry = self._entries.pop(key)
        self._index.remove(key)
        self.unlisted -= not _is_text(key)
        self._give_back(key, entry)
        return entry

    def _give_back(self, key: bytes, entry: Entry) -> None:
        self.keys.add(entry.user, -1)
        self.bytes.add(entry.user, -(len(key) + len(entry.value) + KEY_OVERHEAD_BYTES))

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
