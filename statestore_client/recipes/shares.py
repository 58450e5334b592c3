"""Which items of a set of work are whose, as far as a member knows the group, and what it does to have its share. Pure.

The roster says who *should* have an item, and the lock of the item who *has* it. Rosters of two members may differ for
a while: then an item is wanted by both, or by nobody, and is had by one at most all the same.

Invariant: who sees the same members comes to the same shares, and the largest has one item more than the smallest.
Invariant: an item is given back before it is anybody else's, between two pieces of its owner's work.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs

from statestore_client.errors import InvalidArgumentError
from statestore_client.recipes.roster import Roster

#: Each item is a lock, which renews itself.
MOST_ITEMS: Final = 10_000
#: How soon an item is asked for again that another member has not given back yet, in seconds.
_AGAIN_S: Final = 0.5


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


@attrs.frozen
class Join:
    """Join the group again, waiting up to so many seconds. Answered with whether it is a member now."""

    seconds: float


@attrs.frozen
class Look:
    """Wait up to so many seconds for another roster. Answered with it, or with None."""

    seconds: float


@attrs.frozen
class GiveBack:
    """Release the lock of this item, whatever comes of it, and hold it no longer."""

    item: str


@attrs.frozen
class Take:
    """Try to lock this item, in a holder's name that is used once: a late release must not free a lock taken anew.

    What is locked is among the held ones after that.
    """

    item: str


Step: TypeAlias = Join | Look | GiveBack | Take


class _Held(Protocol):
    @property
    def valid(self) -> bool: ...


class Sharing:
    """What one member knows of the others, and the steps of one update.

    ``held`` is what its shell holds, item by item; the steps change it.
    """

    def __init__(self, member: str, items: tuple[str, ...]) -> None:
        self._member = member
        self._items = items
        self._roster = Roster({})

    def update(self, held: Mapping[str, _Held], patience: float, *, is_member: bool) -> Generator[Step, Any, None]:
        """Give back what others should have, take what is due; if there is nothing to do wait for a change."""
        if not is_member:  # the others think that this member is gone
            yield from _give_back(set(held))
            if not (yield Join(patience)):
                return
        while (roster := (yield Look(0.0))) is not None:
            self._roster = roster
        if not (yield from self._share(held)) and patience:
            is_all = held.keys() == self._share_now()
            self._roster = (yield Look(patience if is_all else min(patience, _AGAIN_S))) or self._roster
            yield from self._share(held)

    def _share_now(self) -> frozenset[str]:
        return share_of(self._member, self._roster.names, self._items)

    def _share(self, held: Mapping[str, _Held]) -> Generator[Step, Any, bool]:
        """Whether it has other items than before."""
        before, wanted = set(held), self._share_now()
        yield from _give_back({item for item, lease in held.items() if item not in wanted or not lease.valid})
        for item in sorted(wanted - held.keys()):
            yield Take(item)
        return before != set(held)


def _give_back(items: Collection[str]) -> Generator[Step, Any, None]:
    for item in sorted(items):
        yield GiveBack(item)
