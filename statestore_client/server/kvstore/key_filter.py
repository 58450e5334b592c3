"""Which keys a reader wants: patterns of keys, originators, or both. (facts §6.2)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from statestore_client.errors import InvalidArgumentError
from statestore_client.server.kvstore.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

    from statestore_client.wire.kvstore.value import Value

__all__ = ["ALL_KEYS", "MAX_FILTER_POSITIONS", "MAX_PATTERNS", "KeyFilter"]

#: Patterns of one filter: each of them may have to look at each key.
MAX_PATTERNS: Final = 256
#: :attr:`Pattern.positions` of all patterns of a filter together: what the longest key may cost.
MAX_FILTER_POSITIONS: Final = 512
_MAX_ORIGINATORS: Final = 10_000


class KeyFilter:
    """Entries whose key begins with a match of one of the patterns, or that have one of the originators.

    With ``match_all`` both must hold. A side that is empty does not count; a filter without both lets everything pass.
    Raises InvalidArgumentError for a pattern that :mod:`~statestore_client.server.kvstore.pattern_syntax` does not
    allow, where Open/R would let every key pass.
    """

    __slots__ = ("_match_all", "_originators", "_patterns", "_prefixes", "is_open")

    def __init__(
        self, patterns: Iterable[str] = (), originators: Iterable[str] = (), *, match_all: bool = False
    ) -> None:
        texts = tuple(patterns)
        self._originators = frozenset(originators)
        if len(texts) > MAX_PATTERNS or len(self._originators) > _MAX_ORIGINATORS:
            raise InvalidArgumentError(
                f"a filter has at most {MAX_PATTERNS} patterns and {_MAX_ORIGINATORS} originators"
            )
        compiled = [Pattern(text) for text in texts]
        if sum(pattern.positions for pattern in compiled) > MAX_FILTER_POSITIONS:
            raise InvalidArgumentError(
                f"the patterns of a filter take at most {MAX_FILTER_POSITIONS} characters, repetitions counted"
            )
        self._prefixes = tuple(pattern.text_prefix for pattern in compiled if pattern.text_prefix is not None)
        self._patterns = tuple(pattern for pattern in compiled if pattern.text_prefix is None)
        self._match_all = match_all
        #: Everything passes.
        self.is_open = not texts and not self._originators

    def matches(self, key: str, entry: Value) -> bool:
        """Whether an entry passes."""
        if self.is_open:
            return True
        if not self._originators:
            return self.matches_key(key)
        is_from_one = entry.originator in self._originators
        if not self._prefixes and not self._patterns:
            return is_from_one
        if self._match_all:
            return is_from_one and self.matches_key(key)
        return is_from_one or self.matches_key(key)

    def matches_key(self, key: str) -> bool:
        """Whether a key passes of which there is no entry any more: without patterns, all do."""
        if not self._prefixes and not self._patterns:
            return True
        if key.startswith(self._prefixes):
            return True
        return any(pattern.matches(key) for pattern in self._patterns)


#: Lets everything pass.
ALL_KEYS: Final = KeyFilter()
