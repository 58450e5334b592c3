"""How far log time falls behind when another server becomes active: keys live longer by that.

The next owner goes on from the last entry of the former one, or from what it has observed of that, whichever is later.
It observes an entry as late as it arrives, and goes by the one that was fastest. If it has begun since the last
one, and could not listen to the owner either, it has observed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replicas_world import World

__all__ = ["Outages"]

#: An entry comes back, and arrives at all readers. One may have been on its way for that long when it was asked for.
_QUIET_S = 0.1


class Outages:
    """In true time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[int, float] = {}  # of the entries of owners that count, by index
        self._claims: dict[int, bool] = {}  # whether they were forced
        self._delays: dict[str, float] = {}  # of the fastest entry of the epoch, by reader
        self._delays_before: dict[str, float] = {}
        self._lost: list[tuple[float, float]] = []  # when, and how much

    def claimed(self, index: int, made_at: float, *, is_forced: bool) -> None:
        """A valid claim is in the log."""
        self._made[index] = made_at
        self._claims[index] = is_forced

    def owner_wrote(self, index: int, made_at: float) -> None:
        """A valid entry of the owner."""
        self._made[index] = made_at

    def begins(self, name: str) -> None:
        """A life that has observed nothing."""
        self._delays.pop(name, None)

    def read(self, name: str, first: int, last: int) -> None:
        """These entries have arrived at a server."""
        for index in range(first, last + 1):
            if index in self._made:
                delay = self._world.now - self._made[index]
                if index in self._claims:
                    self._delays_before[name] = self._delays.get(name, float("inf"))
                    self._delays[name] = delay
                else:
                    self._delays[name] = min(self._delays.get(name, delay), delay)

    def has_observed(self, name: str) -> bool:
        """Whether this server knows the time of the present owner as well as a quiet network lets it."""
        return self._delays.get(name, float("inf")) < _QUIET_S

    def promoted(self, name: str, claim: int) -> None:
        """A server is the owner, by the claim at this index."""
        last = max((index for index in self._made if index < claim), default=None)
        if last is not None:
            lost = self._world.now - self._made[last]
            # What arrived after a claim was made does not count for that; only one that is forced may be valid then.
            self._lost.append(
                (self._world.now, lost if self._claims[claim] else min(lost, self._delays_before.get(name, lost)))
            )

    def within(self, begun: float, ended: float) -> float:
        """What was lost between two moments."""
        return sum(lost for at, lost in self._lost if begun < at < ended)
