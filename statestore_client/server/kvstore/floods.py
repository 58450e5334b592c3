"""Flood what an update that was taken turns into, to every peer that is not in its path; so many a second.

A site that finds its own name in a path drops the update: it has been here. With a limit (a token bucket, one token for
a publication of any size) updates that find no token wait, and are merged: a key is sent once, as it is stored by then.
Only updates of one path are merged into one publication: a site that is in the path of one of them must not miss the
others.

Source: KvStore, "Flooding Update", "Loop detection"; facts §4.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Path: TypeAlias = tuple[str, ...]

#: When updates wait for a token, it is looked for so often.
FLUSH_S: Final = 0.1


@attrs.frozen
class FloodRate:
    """Publications in a second, and how many may leave at once after a quiet time. Both are at least 1."""

    messages_per_s: float = attrs.field(validator=attrs.validators.ge(1))
    burst: int = attrs.field(validator=attrs.validators.ge(1))


class FloodLimiter:
    """The token bucket of one area, and the keys that wait."""

    def __init__(self, rate: FloodRate | None) -> None:
        self._rate = rate
        self._tokens = float(rate.burst) if rate else 0.0
        self._filled_at: float | None = None
        # Invariant: each key waits under one path, that of its latest update. In the order in which they began to wait:
        # a key that is updated again and again must not go to the end of the queue each time, and never leave.
        self._keys: OrderedDict[str, Path] = OrderedDict()
        self._paths: dict[Path, dict[str, None]] = {}
        self.delayed: int = 0  # updates of keys that had to wait

    def admit(self, keys: Iterable[str], path: Path, now: float) -> bool:
        """Whether entries of these keys leave now. If not, the keys wait."""
        if self._rate is None or (not self._paths and self._take_token(self._rate, now)):
            return True
        for key in keys:
            before = self._keys.get(key, path)
            if before != path:
                del self._paths[before][key]
                if not self._paths[before]:
                    del self._paths[before]
            self._keys[key] = path
            self._paths.setdefault(path, {})[key] = None
            self.delayed += 1
        return False

    def due(self, now: float) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """Path and keys of each publication for which there is a token, that of the oldest key first."""
        while self._paths and self._rate is not None and self._take_token(self._rate, now):
            path = next(iter(self._keys.values()))
            keys = tuple(self._paths.pop(path))
            for key in keys:
                del self._keys[key]
            yield path, keys

    def _take_token(self, rate: FloodRate, now: float) -> bool:
        gained = 0.0 if self._filled_at is None else (now - self._filled_at) * rate.messages_per_s
        self._tokens = min(rate.burst, self._tokens + gained)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def next_deadline(self, now: float) -> float | None:
        """When to look for a token, or None if nothing waits."""
        return now + FLUSH_S if self._paths else None
