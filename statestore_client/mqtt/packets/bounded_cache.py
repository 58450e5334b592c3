"""A bounded cache of a pure function's results, for the few strings that repeat in nearly every packet."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TypeVar

__all__ = ["BoundedCache"]

K = TypeVar("K", bound=Sized)
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """``cache[key]`` is ``function(key)``, mostly from memory. The function has no effects; what it raises is not kept.

    Invariant: at most ``ENTRIES`` short keys, whatever peers send. When full, it is emptied: the frequent strings are
    back after one packet, while a rule for who may stay would cost more than it saves. With several threads a few
    entries more are possible, wrong ones are not.
    """

    ENTRIES = 1024
    #: Bytes or characters of a key, or of both parts of a pair.
    LONGEST = 192

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[K], V]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, key: K) -> V:
        value = self._function(key)
        size = sum(map(len, key)) if isinstance(key, tuple) else len(key)
        if size <= self.LONGEST:
            if len(self) >= self.ENTRIES:
                self.clear()
            self[key] = value
        return value
