"""The last changes of keys, so that somebody who looks at a key sees what became of it."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import attrs

from statestore_client.server.monitor.text import shown

__all__ = ["ChangeLog", "KeyChange"]

#: Changes of all keys together. They are small: of a value the beginning is kept.
_CHANGES: Final = 5_000
_VALUE_BYTES: Final = 64
#: A longer key is not remembered: a few thousand of them would be much.
_KEY_BYTES: Final = 1_024


@attrs.frozen
class KeyChange:
    """A SET or a deletion that was applied."""

    at: int  # milliseconds of the wall clock
    key: bytes
    client: str
    action: str
    version: str
    size: int
    value: bytes  # its beginning

    def encoded(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "at": self.at,
            "client": self.client,
            "action": self.action,
            "version": self.version,
            "size": self.size,
            "value": shown(self.value),
        }


@attrs.define(eq=False)
class ChangeLog:
    """Of one server, the last ones."""

    _changes: deque[KeyChange] = attrs.field(factory=lambda: deque(maxlen=_CHANGES))

    def add(self, at: int, key: bytes, client: str, action: str, version: str, value: bytes = b"") -> None:
        """One more; an older one may be forgotten for it."""
        if len(key) <= _KEY_BYTES:
            kept = bytes(value[:_VALUE_BYTES])
            self._changes.append(KeyChange(at, key, shown(client), action, version, len(value), kept))

    def of(self, key: bytes) -> list[KeyChange]:
        """Those of one key, the latest first."""
        return [change for change in reversed(self._changes) if change.key == key]
