"""How much there is of something that clients use up, together and for each user, and who may have more of it.

* *Together* there may be as much as ``limit``.
* *One user* may have as much as ``limit_per_user``; 0 is any amount.
* *Beyond the limit* there is an eighth more, for users who then have at most a 64th of the limit. So neither one user
  nor seven can use up what everybody needs for a lock, whatever the limits are.

Clients without a user count together, as one more user, whom ``limit_per_user`` does not bound: they may be anybody,
and take any name.

Invariant: the total is the sum over all users, and a user who has nothing is not remembered. Invariant: nothing is
added beyond nine eighths of the limit. What is not more than before is never refused, also where limits are lower now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Of the limit, what there is beyond it, and what its users may have of everything.
_RESERVE: Final = 8
_LITTLE: Final = 64

#: What the names of quotas of one user end with.
PER_USER: Final = "-per-user"


class Shares:
    """Of one thing, by the ``name`` that errors and figures use."""

    __slots__ = ("_little", "_of", "limit", "limit_per_user", "most", "name", "total")

    def __init__(self, name: str, limit: int, limit_per_user: int = 0) -> None:
        self.name: Final = name
        self.limit: Final = limit
        self.limit_per_user: Final = limit_per_user
        self.total: int = 0
        self.most: Final = limit + limit // _RESERVE
        self._little: Final = max(limit // _LITTLE, 1)
        self._of: dict[str | None, int] = {}

    def of(self, user: str | None) -> int:
        """What this user has."""
        return self._of.get(user, 0)

    @property
    def largest(self) -> int:
        """What the user has who has most. Looks at all users."""
        return max(self._of.values(), default=0)

    def lacking(self, user: str | None, more: int, own: int) -> str | None:
        """The name of the quota that does not allow ``more`` of it, or ``own`` more for this user; None if all do. The
        two differ where something goes from one user to another.
        """
        if own > 0 and self.limit_per_user and user is not None and self.of(user) + own > self.limit_per_user:
            return self.name + PER_USER
        if more > 0 and self.total + more > self.limit:
            return None if self.total + more <= self.most and self.has_little(user, own) else self.name
        return None

    def has_little(self, user: str | None, own: int) -> bool:
        """Whether the user, with ``own`` more, is one of those for whom there is more than the limit."""
        return self.of(user) + own <= self._little

    def add(self, user: str | None, amount: int) -> None:
        """The user has so much more; less, if it is negative."""
        self.total += amount
        has = self._of.get(user, 0) + amount
        if has:
            self._of[user] = has
        else:
            self._of.pop(user, None)

    def violations(self) -> Iterator[str]:
        """The invariants that do not hold. For tests."""
        if self.total != sum(self._of.values()) or not all(has > 0 for has in self._of.values()):
            yield f"{self.name}: {self.total} in total, {self._of} by users"
