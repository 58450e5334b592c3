"""What is known of a held lock's lease: until when it is good, whether and why it has ended, and who is to be told.

Invariant: the first reason of an end counts, and an ended lease is never valid again.
Invariant: who wants to know of the loss is told once, and not of a release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from statestore_client.errors import LeaseLostError

__all__ = ["Ended", "LeaseState", "LossListener"]

LossListener = Callable[[LeaseLostError], object]

_TOO_LATE: Final = "the lease ended before it could be renewed"
_NOT_RENEWED: Final = "the lease has ended; it was not to be renewed"


class Ended(Protocol):
    """The event that others wait for: of threads, or of tasks."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


class LeaseState:
    """Seconds are those of the caller's clock. With threads, one at a time may change it; all may look."""

    __slots__ = ("_is_told", "_listeners", "ended", "ending", "error", "is_released", "valid_until")

    def __init__(self, valid_until: float, ended: Ended, *, renew: bool) -> None:
        self.valid_until: float = valid_until
        self.ended: Ended = ended
        #: Why it is lost if its time runs out.
        self.ending: Final = _TOO_LATE if renew else _NOT_RENEWED
        self.error: LeaseLostError | None = None
        self.is_released: bool = False
        self._listeners: list[LossListener] = []
        self._is_told = False  # the listeners were told, or need not be: the lock was released

    def remaining(self, now: float) -> float:
        """Seconds for which nobody else can have the lock; negative or 0 when its time is over, 0 once it has ended."""
        return 0.0 if self.ended.is_set() else self.valid_until - now

    def describe(self, now: float) -> str:
        """The state in words, for a repr."""
        if self.is_released:
            return "released"
        left = self.remaining(now)
        return f"valid for {left:.1f} s" if left > 0 else "lost"

    def renewed(self, valid_until: float) -> None:
        """A renewal was granted. Raises :class:`LeaseLostError` when the end was noticed before its answer came."""
        if self.ended.is_set():
            raise LeaseLostError(self.ending)
        self.valid_until = valid_until

    def end(self, error: LeaseLostError) -> None:
        """From now on the lease is lost, and not renewed."""
        self.error = self.error or error
        self.ended.set()

    def lose(self, error: LeaseLostError) -> tuple[LeaseLostError, list[LossListener]] | None:
        """The lease is lost: why, and who is to be told of it. None when all was told, or it was released."""
        self.end(error)
        if self._is_told:
            return None
        self._is_told = True
        listeners, self._listeners = self._listeners, []
        return self.error or error, listeners

    def release(self) -> bool:
        """It is being given back: nobody is told of a loss any more. Whether this is the first time."""
        is_first, self.is_released = not self.is_released, True
        self._is_told = True
        self.end(LeaseLostError("the lock was released"))
        return is_first

    def on_lost(self, listener: LossListener) -> LeaseLostError | None:
        """Somebody wants to know. Returns the reason if it is lost already: tell it now."""
        if not self._is_told:
            self._listeners.append(listener)
            return None
        return None if self.is_released else self.error
