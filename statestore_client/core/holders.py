"""The holder of a lock, as it changes: the events of the lock's key without the renewals."""

from __future__ import annotations

import attrs

from statestore_client.core.actions import EventKind, WatchEvent
from statestore_client.wire.hlc import HlcTimestamp

__all__ = ["HolderView", "LockState"]


@attrs.frozen
class LockState:
    """The holder of a lock, or the leader of an election, from now on; ``holder`` is None when there is none.

    ``version`` is that of the key when this was seen, None when there was no key: of two states with the same holder,
    the later one has the greater version. ``missed``: there may have been other holders since the state before.
    """

    holder: bytes | None
    version: HlcTimestamp | None = None
    missed: bool = False

    @property
    def free(self) -> bool:
        """Whether nobody holds it."""
        return self.holder is None


class HolderView:
    """Turns a watch's events into the states of a lock, each told once."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: bytes | None = None

    def first(self, event: WatchEvent | None) -> LockState:
        """The state to begin with. ``event`` holds the key's value; None when there is no key."""
        if event is None or event.kind is not EventKind.SET:
            return LockState(None)
        self._holder = event.value
        return LockState(event.value, event.version)

    def changed(self, event: WatchEvent) -> LockState | None:
        """The new state, or None when the holder is the one that was told before: a renewal, say."""
        if event.kind is EventKind.SET:
            holder = event.value
        elif event.kind is EventKind.DELETE:
            holder = None
        else:
            return None
        if holder == self._holder:
            return None
        self._holder = holder
        return LockState(holder, event.version, event.missed)
