"""Sleeping on descriptors, without what the ``selectors`` module does besides: this is on the way of every answer."""

from __future__ import annotations

import select
import selectors
from typing import Any


class _PollPoller:
    """With poll(2): Linux, macOS, the BSDs."""

    def __init__(self) -> None:
        self._poll = select.poll()
        #: Whom each descriptor belongs to. To be looked at, not to be changed.
        self.owners: dict[int, Any] = {}

    def add(self, descriptor: int, owner: Any) -> None:
        self.owners[descriptor] = owner
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        if self.owners.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """What is readable; nothing when the time is over. Rounded up: never early, and no spinning.

        A time that has passed means not to wait. Hazard: poll(2) takes a negative time for no end.
        """
        return self._poll.poll(seconds * 1000 + 0.999 if seconds > 0.0 else 0)

    def on_top(self) -> _PollPoller:
        """One for a call on top of another that waits: a poll object takes one call at a time."""
        other = _PollPoller()
        other.owners = self.owners
        for descriptor in self.owners:
            other._poll.register(descriptor, select.POLLIN)
        return other

    def close(self) -> None:
        self.owners.clear()


class _SelectorPoller:
    """With whatever the platform has: Windows."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.owners: dict[int, Any] = {}

    def add(self, descriptor: int, owner: Any) -> None:
        self.owners[descriptor] = owner
        self._selector.register(descriptor, selectors.EVENT_READ)

    def remove(self, descriptor: int) -> None:
        if self.owners.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        return [(key.fd, mask) for key, mask in self._selector.select(max(seconds, 0.0))]

    def on_top(self) -> _SelectorPoller:
        return self

    def close(self) -> None:
        self.owners.clear()
        self._selector.close()


Poller = _PollPoller | _SelectorPoller


def make_poller() -> Poller:
    """The quickest that this platform has."""
    return _PollPoller() if hasattr(select, "poll") else _SelectorPoller()
