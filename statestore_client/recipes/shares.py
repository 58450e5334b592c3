"""Which items of a set of work are whose, as far as a member knows the group. Pure.

The roster says who *should* have an item, and the lock of the item who *has* it. Rosters of two members may differ for
a while: then an item is wanted by both, or by nobody, and is had by one at most all the same.

Invariant: who sees the same members comes to the same shares, and the largest has one item more than the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from statestore_client.errors import InvalidArgumentError

#: Each item is a lock, which renews itself.
MOST_ITEMS: Final = 10_000


def checked_items(items: Iterable[str]) -> tuple[str, ...]:
    """In order, each once: all members give the same ones. Raises InvalidArgumentError."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InvalidArgumentError(f"items must be several texts, not {type(items).__name__}", argument="items")
    found = tuple(items)
    wrong = next((each for each in found if not isinstance(each, str) or not each), None)
    if wrong is not None or len(found) != len(set(found)) or not 0 < len(found) <= MOST_ITEMS:
        raise InvalidArgumentError(
            f"items must be from 1 to {MOST_ITEMS} texts, and each of them another one", argument="items"
        )
    return tuple(sorted(found))


def share_of(member: str, names: Sequence[str], items: Sequence[str]) -> frozenset[str]:
    """The items that a member should have; none if it is not among the names."""
    ordered = sorted(names)
    if member not in ordered:
        return frozenset()
    return frozenset(items[ordered.index(member) :: len(ordered)])
