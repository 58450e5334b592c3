"""Which keys a reader wants: patterns of keys, originators, or both. (facts §6.2)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.pattern import Patterns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.wire.kvstore.value import Value

__all__ = ["ALL_KEYS", "KeyFilter"]

_MAX_ORIGINATORS: Final = 10_000


class KeyFilter:
    """Entries whose key begins with a match of one of the patterns, or that have one of the originators.

    With ``match_all`` both must hold. A side that is empty does not count; a filter without both lets everything pass.
    Raises InvalidArgumentError for a pattern that :mod:`~statestore_client.server.kvstore.pattern_syntax` does not
    allow, where Open/R would let every key pass.
    """

    __slots__ = ("_match_all", "_originators", "_patterns", "is_open")

    def __init__(
        self, patterns: Iterable[str] = (), originators: Iterable[str] = (), *, match_all: bool = False
    ) -> None:
        self._patterns = Patterns(patterns)
        self._originators = frozenset(originators)
        if len(self._originators) > _MAX_ORIGINATORS:
            raise InvalidArgumentError(f"a filter has at most {_MAX_ORIGINATORS} originators")
        self._match_all = match_all
        #: Everything passes.
        self.is_open: bool = not self._patterns and not self._originators

    def matches(self, key: str, entry: Value) -> bool:
        """Whether an entry passes."""
        if self.is_open:
            return True
        if not self._originators:
            return self._patterns.match(key)
        is_from_one = entry.originator in self._originators
        if not self._patterns:
            return is_from_one
        if self._match_all:
            return is_from_one and self._patterns.match(key)
        return is_from_one or self._patterns.match(key)

    def matches_key(self, key: str) -> bool:
        """Whether a key passes of which there is no entry any more: without patterns, all do."""
        return not self._patterns or self._patterns.match(key)


#: Lets everything pass.
ALL_KEYS: Final = KeyFilter()
