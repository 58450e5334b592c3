"""The loan of a connection's socket to a thread that waits for an answer: it reads for itself, and wakes up once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore_client.sync.link import Link

__all__ = ["Borrowed"]


class Borrowed:
    """The socket while a calling thread reads from it instead of the network thread, if it can be had."""

    __slots__ = ("_fileno", "_is_reader", "_link")

    def __init__(self, link: Link) -> None:
        self._link = link
        self._fileno: int | None = None
        self._is_reader = False

    def __enter__(self) -> Self:
        self._is_reader = self._link.reading.acquire(blocking=False)
        return self

    def take(self) -> None:
        """Under the link's lock, before the request leaves: the answer must not wake the network thread."""
        if self._is_reader:
            self._fileno = self._link.borrow()

    def read_while(self, is_pending: Callable[[], bool], deadline: float) -> None:
        """Read while ``is_pending``; or less, when there is something that the network thread has to see to."""
        if self._fileno is not None:
            self._link.read_from(self._fileno, is_pending, deadline)

    def __exit__(self, *_: object) -> None:
        if self._is_reader:
            if self._fileno is not None:
                self._link.give_back(self._fileno)
            self._link.reading.release()
