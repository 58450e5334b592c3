"""A clock that tests advance, so that a test of an hour takes milliseconds.

It runs like the system's clock until somebody advances it. What is due on the way is done in the order of its time, at
its time: a client that is silent for an hour is disconnected after one and a half of its keep-alives, its will goes out
after the delay of the will counted from then, and its session ends after its expiry.

The wall clock does not follow. It is what versions and fencing tokens are made of, and clients check it against their
own: a server that is an hour ahead is refused as broken, and rightly so. To the server, a jump is as if the wall clock
had been set back by as much.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from statestore_client.clocks import monotonic, wall_ns
from statestore_client.wire.instant import Instant

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.define(eq=False)
class VirtualTimer:
    """Something to do at a time of the virtual clock. Stands in for :class:`asyncio.TimerHandle`."""

    _clock: VirtualClock = attrs.field(repr=False)
    _when: float
    _action: Callable[[], object]
    _timer: asyncio.TimerHandle | None = attrs.field(default=None, repr=False)

    def when(self) -> float:
        """Seconds of the virtual clock."""
        return self._when

    def cancel(self) -> None:
        """Not any more. Safe to call twice, and when it was done."""
        if self._timer is not None:
            self._timer.cancel()
        self._clock.timers.pop(self, None)

    def arm(self) -> None:
        """Set the timer of the event loop, which knows nothing of jumps."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, self._when - self._clock().monotonic), self.keep)

    def keep(self) -> None:
        """Do it."""
        self.cancel()
        self._action()


@attrs.define(eq=False)
class VirtualClock:
    """The time of one server. Reading it is possible anywhere; everything else belongs to the thread of its loop."""

    ahead_s: float = 0.0
    wall_ahead_ms: int = 0
    timers: dict[VirtualTimer, None] = attrs.field(factory=dict, repr=False)  # in the order of making

    def __call__(self) -> Instant:
        return Instant(monotonic() + self.ahead_s, wall_ns() // 1_000_000 + self.wall_ahead_ms)

    def call_at(self, when: float, action: Callable[[], object]) -> VirtualTimer:
        """Like :meth:`asyncio.loop.call_at`, with a time of this clock."""
        timer = VirtualTimer(self, when, action)
        self.timers[timer] = None
        timer.arm()
        return timer

    def advance(self, seconds: float, catch_up: Callable[[], object]) -> None:
        """Jump, from one timer to the next. ``catch_up`` is called at each of them, before it is kept, and at the
        end.
        """
        until = monotonic() + self.ahead_s + seconds
        while (timer := self._first()) is not None and timer.when() <= until:
            self._go_to(timer.when())
            catch_up()
            if timer in self.timers:
                timer.keep()
        self._go_to(until)
        catch_up()
        for timer in self.timers:
            timer.arm()

    def _first(self) -> VirtualTimer | None:
        """There are a handful: one for all that the broker waits for, and one for each packet that is delayed. Of the
        same moment, the one that was made first.
        """
        return min(self.timers, key=VirtualTimer.when, default=None)

    def _go_to(self, when: float) -> None:
        """Invariant: the clock never goes back; while this works, real time goes on as well."""
        self.ahead_s += max(0.0, when - monotonic() - self.ahead_s)
