"""Drives the machines of a client from an event loop: sockets and timers.

Rules:

* Everything happens in the loop's thread, and between two awaits; so there is no lock.
* Whatever touches a socket empties it before returning to the loop (see :mod:`raft_client.links`).
* While nothing waits there is no timer.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from raft_client.action_runner import ActionRunner
from raft_client.aio.listeners import Listeners
from raft_client.clocks import monotonic
from raft_client.errors import BusyError
from raft_client.links import Link
from raft_client.settings import RaftSettings

#: The longest time (seconds) for which a reader that need not wait keeps the event loop to itself.
_TURN_S: Final = 0.005


class SocketReader:
    """The sockets of one client in its event loop."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self.actions: ActionRunner = ActionRunner(settings, listeners.note)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # when it looks; inf while there is none
        self._turned_at = -math.inf  # when the loop was seen to turn

    def open(self) -> bool:
        """Make what waiting needs; False when it is there."""
        self.actions.machine.check_open()
        if self.actions.links is not None:
            return False
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise BusyError(
                "no asyncio event loop runs here; under trio, use RaftClient in a thread (trio.to_thread.run_sync), or "
                "run the program on asyncio"
            ) from None
        if type(self.loop).add_reader is asyncio.AbstractEventLoop.add_reader:  # not implemented: on Windows
            name, self.loop = type(self.loop).__name__, None
            raise BusyError(
                f"{name} has no add_reader(), which sockets of ØMQ need; run the program with "
                "asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
            )
        self.actions.open(self._watch, self._unwatch)
        return True

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        self.actions.close_machines(monotonic())
        self.perform()
        if self._timer is not None:
            self._timer.cancel()
        self.actions.close_links()

    @property
    def is_stranded(self) -> bool:
        """Whether its loop is closed: nothing can be sent or awaited any more."""
        return self.loop is not None and self.loop.is_closed()

    async def give_way(self) -> None:
        """Let others have a turn, if the loop made none for long: for readers that always find something."""
        if monotonic() - self._turned_at > _TURN_S:
            await asyncio.sleep(0)
            self._turned_at = monotonic()

    def perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        self.actions.perform()
        self.set_timer()

    def _on_readable(self, descriptor: int, link: Link) -> None:
        """A descriptor is readable: that of a link's messages, or that of its end."""
        now = self._turned_at = monotonic()
        actions = self.actions
        actions.readable(descriptor, link, now)
        if actions.machine.actions or actions.runners.members:
            self.perform()
        elif actions.machine.check_at < self._timer_at:  # not so after "accepted"
            self.set_timer()

    def _watch(self, link: Link) -> None:
        if self.loop is not None:
            for descriptor in (link.descriptor, link.monitored):
                self.loop.add_reader(descriptor, self._on_readable, descriptor, link)

    def _unwatch(self, link: Link) -> None:
        self.actions.forget(link)
        if self.loop is not None and not self.loop.is_closed():
            for descriptor in (link.descriptor, link.monitored):
                self.loop.remove_reader(descriptor)

    # -- time ----------------------------------------------------------------------------------------------------------

    def set_timer(self) -> None:
        """Look when the machines have something to do, or before."""
        machine = self.actions.machine
        if self._timer_at <= machine.check_at and not (machine.is_searching or self.actions.runners.members):
            return  # as after every append: the timer looks at the right moment, or before
        deadline = self.actions.next_deadline()
        if deadline is None or self.loop is None or self.loop.is_closed() or self.actions.links is None:
            return
        if self._timer is not None:
            if self._timer_at <= deadline:
                return  # it will look again then
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self.loop.call_later(max(0.0, deadline - monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.actions.tick(monotonic())
        self.perform()
