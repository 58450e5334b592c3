"""Sleeping on descriptors, without what the ``selectors`` module does besides: this is on the way of every answer."""

from __future__ import annotations

import select
import selectors
from typing import Any

__all__ = ["Poller", "make_poller"]


class _PollPoller:
    """With poll(2): Linux, macOS, the BSDs."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._owners: dict[int, Any] = {}

    def add(self, descriptor: int, owner: Any) -> None:
        self._owners[descriptor] = owner
        self._poll.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        del self._owners[descriptor]
        self._poll.unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, Any]]:
        """What is readable, with its owner; nothing after so many seconds. Rounded up: never early, and no spinning."""
        owners = self._owners
        return [(fd, owners[fd]) for fd, _ in self._poll.poll(seconds * 1000 + 0.999) if fd in owners]

    def close(self) -> None:
        self._owners.clear()


class _SelectorPoller:
    """With whatever the platform has: Windows."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def add(self, descriptor: int, owner: Any) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, owner)

    def remove(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> list[tuple[int, Any]]:
        return [(key.fd, key.data) for key, _ in self._selector.select(seconds)]

    def close(self) -> None:
        self._selector.close()


Poller = _PollPoller | _SelectorPoller


def make_poller() -> Poller:
    """The quickest that this platform has."""
    return _PollPoller() if hasattr(select, "poll") else _SelectorPoller()
