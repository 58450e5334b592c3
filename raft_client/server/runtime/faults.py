"""Faults for tests: a disk that is slow, and peers that do not reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.errors import InvalidArgumentError
from raft_client.server.runtime.storage.disk_log import DiskLog
from raft_client.thread_locks import Flag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


class SlowableLog(DiskLog):
    """A log whose disk can be made slow, at any time and from any thread."""

    _slowness: tuple[float, Flag] = (0.0, Flag())

    def slow_down(self, seconds: float) -> None:
        """Each job takes so much longer from now on. The one under way does not wait for the end of its old time."""
        before, self._slowness = self._slowness, (seconds, Flag())
        before[1].set()

    def sync(self) -> None:
        """Do the job, later. Raises StorageError."""
        seconds, is_over = self._slowness
        if seconds:
            is_over.wait(seconds)
        super().sync()


def unreachable(groups: Sequence[Collection[str]], peer_ids: Iterable[str]) -> dict[str, frozenset[str]]:
    """For each peer those that it does not reach: all that are not in its group.

    Those that are in no group are together. Raises InvalidArgumentError for an id that no peer has, or that two groups
    have.
    """
    everybody = frozenset(peer_ids)
    group_of: dict[str, int] = {}
    for number, group in enumerate(groups):
        for peer_id in [group] if isinstance(group, str) else group:
            if peer_id not in everybody or peer_id in group_of:
                what = "in two groups" if peer_id in group_of else f"none of {', '.join(sorted(everybody))}"
                raise InvalidArgumentError(f"peer {peer_id!r} is {what}")
            group_of[peer_id] = number
    return {
        peer_id: frozenset(other for other in everybody if group_of.get(other) != group_of.get(peer_id))
        for peer_id in everybody
    }
