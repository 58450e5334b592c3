"""Telling watches what the history holds: one way through it for many watches at once.

A *pass* goes through the history, item by item, for all watches in it. Live watches are in one pass, which stands at
the end of the history. Those that begin in the past, or had no room, go through it together in another one, until they
are where the live ones are. So an item costs a look-up for each of its changes, and then only for watches that want it,
and thousands of watches that begin again at the same time do not go through the history one by one.

A pass can stop after each step: what a turn may take is counted in steps, whatever entries and watches there are.

Invariant: each watch in a pass was sent all that it wants of the items before the place of the pass; and of the item at
that place and later ones only those up to its ``told``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from raft_client.core.selectors import SelectorIndex
from raft_client.server.machines.change_history import size_of
from raft_client.wire.watch_messages import Events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raft_client.core.selectors import Selector
    from raft_client.server.machines.change_history import ChangeHistory, Item
    from raft_client.server.machines.watch_sessions import Watch

#: What sending a message costs, in steps: a step is to look at something, about a microsecond.
_SEND_STEPS: Final = 5


@attrs.define(eq=False)
class _Group:
    """The watches of a pass that want the same."""

    selector: Selector
    watches: dict[Watch, None] = attrs.field(factory=dict)


class Pass:
    """``place``: that of the item that comes next, or is being told."""

    def __init__(self, place: int) -> None:
        self.place: int = place
        self._index: SelectorIndex[_Group] = SelectorIndex()
        self._groups: dict[Selector, _Group] = {}
        self._work: Iterator[int] | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def may_join_at(self) -> int:
        """A watch that was told everything before this place, or a later one, may join."""
        return self.place if self._work is None else self.place + 1

    @property
    def is_between_items(self) -> bool:
        """Whether it tells no item just now."""
        return self._work is None

    def add(self, watch: Watch) -> None:
        """It is told of all items from the place on, but those up to its ``told``."""
        selector = watch.selector
        group = self._groups.get(selector)
        if group is None:
            group = self._groups[selector] = _Group(selector)
            self._index.add(group, selector)
        group.watches[watch] = None
        watch.way = self
        self._count += 1

    def discard(self, watch: Watch) -> None:
        """It must be in this pass."""
        selector = watch.selector
        group = self._groups[selector]
        del group.watches[watch]
        watch.way = None
        self._count -= 1
        if not group.watches:
            del self._groups[selector]
            self._index.discard(group, selector)

    def some(self) -> Watch:
        """Any of them; there must be one."""
        return next(iter(next(iter(self._groups.values())).watches))

    def run(self, history: ChangeHistory, steps: int, tell: Callable[[Watch, Events, int], None]) -> int:
        """Go on for this many steps, or until the end. Returns how many are left.

        ``tell`` is called with the watch, the events and their size; it may take the watch out of the pass.
        """
        while steps > 0:
            if self._work is None:
                if self.place >= history.end or not self._count:
                    return steps
                self._work = self._tell(history.at(self.place), tell)
            for cost in self._work:
                steps -= cost
                if steps <= 0:
                    return 0
            self._work = None
            self.place += 1
            steps -= 1
        return 0

    def skip_to(self, place: int) -> None:
        """Nothing before it is wanted, or it is lost."""
        self.place = max(self.place, place)
        self._work = None

    def _tell(self, item: Item, tell: Callable[[Watch, Events, int], None]) -> Iterator[int]:
        """What it yields is what it cost."""
        concerned: dict[_Group, list[int]] = {}
        for number, change in enumerate(item.changes):
            for group in self._index.candidates(change.key):
                concerned.setdefault(group, []).append(number)
            yield 1
        for group, numbers in concerned.items():
            if len(numbers) == len(item.changes):
                changes = item.changes
            else:
                changes = tuple(item.changes[number] for number in numbers)
            events, size = Events(item.position, changes), size_of(changes)
            yield 1 + len(numbers) // 10
            for watch in list(group.watches):
                if watch.way is self and watch.told < item.at:
                    tell(watch, events, size)
                    yield _SEND_STEPS
                else:
                    yield 1
