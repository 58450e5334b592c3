"""Which of two entries of a key is the better one, as far as can be told. (facts §2.3)"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statestore_client.wire.kvstore.value import Value

__all__ = ["Comparison", "compare"]


class Comparison(Enum):
    """What :func:`compare` finds."""

    FIRST = "first"
    SECOND = "second"
    TIED = "tied"
    #: Same version and originator, and the values differ, or may, but one of them is not there.
    UNKNOWN = "unknown"


def compare(first: Value, second: Value) -> Comparison:
    """By version, originator, value, then TTL version; by hash where a value is not there.

    Originators are compared by code points, which is the order of their UTF-8 bytes; a shorter prefix is smaller.
    """
    if first.version != second.version:
        return _greater(first.version > second.version)
    if first.originator != second.originator:
        return _greater(first.originator > second.originator)
    if first.hash is not None and first.hash == second.hash:
        if first.ttl_version != second.ttl_version:
            return _greater(first.ttl_version > second.ttl_version)
        return Comparison.TIED
    if first.value is None or second.value is None:
        return Comparison.UNKNOWN
    if first.value != second.value:
        return _greater(first.value > second.value)
    return Comparison.TIED


def _greater(is_first: bool) -> Comparison:
    return Comparison.FIRST if is_first else Comparison.SECOND
