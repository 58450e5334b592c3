"""Drives the request machine from the callers' own threads. There is no extra thread.

One of the threads that wait *reads*: it sleeps on the sockets and carries out for everybody what comes in. When its own
answer is there it stops reading, and wakes another one to read. In a program with one thread that thread always reads,
and never waits for a thread switch.

Rules:

* ``section`` guards the machine and the sockets (:mod:`raft_client.sync.section`). Nothing in it blocks, and no user
  code runs in it but the codecs and conditions of watches; one of these that calls the client is refused
  (:mod:`raft_client.action_runner`).
* ``_reading`` is held by the thread that reads. A thread that leaves while it is free wakes another one; so somebody
  reads as long as anybody waits. A signal handler's call on top of the one that reads does so for both.
* What an exception of a signal handler has cut is begun anew, with new links (:mod:`raft_client.action_runner`).
* Code that touches a socket empties it before leaving the section (see :mod:`raft_client.links`).
* The engine belongs to the process that opened it. In a forked child every call raises; nothing touches the sockets.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
from collections.abc import Callable
from typing import Any, Final, TypeVar

from raft_client.action_runner import ActionRunner
from raft_client.clocks import monotonic
from raft_client.errors import ClientClosedError, InvalidArgumentError
from raft_client.links import Link
from raft_client.settings import RaftSettings
from raft_client.sync.primitives import Listeners, ReadySignal
from raft_client.sync.section import Section
from raft_client.thread_locks import Mutex

# -- sleeping on descriptors -------------------------------------------------------------------------------------------


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


# -- reading for all threads -------------------------------------------------------------------------------------------


T = TypeVar("T")

#: What the machines refuse with, before they change anything. BusyError is not among them: it may be a handler's.
_REFUSALS: Final = (ClientClosedError, InvalidArgumentError)
#: Nobody sleeps longer (seconds): whatever goes wrong with a wake-up call, it does not stop the program for good.
_LONGEST_SLEEP_S: Final = 5.0


class SocketReader:
    """The sockets of one client, and the threads that wait. ``actions`` is used inside ``section``."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self.actions: ActionRunner = ActionRunner(settings, listeners.note)
        self.section: Section = Section(self._begin_anew)
        self._listeners = listeners
        self._reading = Mutex()
        self._is_read = False  # a moment later than the lock is taken, and a moment earlier than it is free
        self._waiting: set[ReadySignal] = set()
        self._poller: Poller | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._wakes_at: float | None = None  # until when the thread that reads sleeps; None: it does not

    def open(self) -> bool:
        """Make what waiting needs; False when it is there. Inside."""
        if self.actions.links is not None:
            return False
        self.actions.machine.check_open()
        self._poller = make_poller()
        self._waker = socket.socketpair()
        for end in self._waker:
            end.setblocking(False)
        self._poller.add(self._waker[1].fileno(), None)
        self.actions.open(self._watch, self._unwatch)
        return True

    def close(self) -> None:
        """Reject what waits, and close the sockets.

        On top of a frame that is inside, or of the thread that reads, that happens when these leave.
        """
        self.section.later(self._reject)
        self._wake_reader()
        if self.section.is_interrupted:
            self.section.later(self._close)
            return
        with self._reading:
            self.section.later(self._close)

    def _reject(self) -> None:
        self.actions.close_machines(monotonic())
        self.perform()

    def _close(self) -> None:
        if self._poller is None or self._waker is None:
            return
        self.actions.close_links()
        self._poller.close()
        for end in self._waker:
            end.close()
        self._poller = self._waker = None

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait(self, signal: ReadySignal, deadline: float | None = None) -> None:
        """Until ``signal`` is ready, or until ``deadline`` (monotonic seconds), but not without a look at the sockets.

        Nobody else looks: a reader that polls, and never waits, must hear of something, too.
        """
        reading = self._reading
        is_on_top = reading.is_mine()  # of a frame that reads
        try:
            while not signal.ready:
                if reading.acquire(False, -1):
                    self._is_read = True
                    self._read_sockets(signal, deadline, is_on_top=is_on_top)
                    self._is_read = is_on_top
                    reading.release()
                else:
                    self._sleep(signal, deadline)
                if deadline is not None and monotonic() >= deadline:
                    break
        except BaseException as error:
            self.abandon(signal, error)
            raise
        finally:
            if is_on_top:
                self._wake_reader()  # what the frame below waits for may have come
            elif reading.is_mine():  # an exception came
                self._is_read = False
                while reading.is_mine():
                    reading.release()
            if self._waiting:
                self._hand_over()

    def _sleep(self, signal: ReadySignal, deadline: float | None) -> None:
        """Leave the sockets to the thread that reads."""
        signal.prepare_sleep()
        self._waiting.add(signal)
        try:
            # Looked at after having been added: a thread that stops reading later than that wakes somebody.
            if not signal.ready and self._is_read:
                signal.sleep(None if deadline is None else deadline - monotonic())
        finally:
            self._waiting.discard(signal)

    def _hand_over(self) -> None:
        """A thread that leaves sees to it that somebody reads; also one that is woken with nothing to wait for."""
        if not self._is_read:
            for signal in self._waiting.copy():
                signal.wake()
                return

    def _read_sockets(self, signal: ReadySignal, deadline: float | None, *, is_on_top: bool) -> None:
        """Read until ``signal`` is ready. The path of every answer: what it need not call, it does not.

        After an exception, the caller abandons the entry of this signal.
        """
        poller, actions, section = self._poller, self.actions, self.section
        if poller is None:
            return  # closed meanwhile, and so the signal is ready
        owners = poller.owners
        current = poller
        if is_on_top:
            poller = poller.on_top()
        while True:
            section.enter(signal)
            if signal.ready or current is not self._poller:  # another one, when all was begun anew
                section.leave()
                return
            now = monotonic()
            until = self._next_look(now)
            if deadline is not None and deadline < until:
                until = deadline
            self._wakes_at = until
            section.leave()
            try:
                events = poller.wait(until - now)
            finally:
                self._wakes_at = None
            section.enter(signal)
            if current is not self._poller:
                section.leave()
                return
            now = monotonic()
            for descriptor, _ in events:
                if descriptor in owners:  # not so if its link was closed in this very turn
                    link = owners[descriptor]
                    if link is None:  # the waker
                        self._empty_waker()
                    else:
                        actions.readable(descriptor, link, now)
            if now >= until:
                actions.tick(now)
            if actions.machine.actions or actions.runners.members:
                self.perform()
            section.leave()
            if self._listeners.news:
                self._listeners.log()
            if deadline is not None and now >= deadline:
                return

    def _next_look(self, now: float) -> float:
        """When something is to be done although nothing comes in, in monotonic seconds."""
        until = now + _LONGEST_SLEEP_S
        deadline = self.actions.next_deadline()
        return until if deadline is None or deadline > until else deadline

    def _empty_waker(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(BlockingIOError):
                self._waker[1].recv(4096)

    def _wake_reader(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
                self._waker[0].send(b"\0")

    # -- the sockets, inside -------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` inside the section, and carry out what follows from it."""
        entry = object()
        try:
            self.section.enter(entry)
            result = work()
            self.perform()
            self.section.leave()
        except BaseException as error:
            self.abandon(entry, error)
            raise
        if self._listeners.news:
            self._listeners.log()
        return result

    def later(self, work: Callable[[], object]) -> None:
        """The same, without waiting: on top of a frame that is inside it is done when that one leaves.

        The log hears of what follows at the next call, if one comes: an application that ends after Ctrl-C has no use
        for a warning of the links that the signal has cut.
        """

        def do() -> None:
            work()
            self.perform()

        self.section.later(do)

    def abandon(self, entry: object, error: BaseException) -> None:
        """This exception ended what the entry did: leave the section. A refusal of our own has begun nothing."""
        self.section.abandon(entry, is_whole=isinstance(error, _REFUSALS))

    def _begin_anew(self) -> None:
        """An exception has cut a change. Those who wait are woken: a thread that reads has descriptors of old links."""
        self.actions.begin_anew(monotonic())
        if self._waker is not None and self._waker[1].fileno() >= 0:  # and not half closed
            poller = make_poller()
            poller.add(self._waker[1].fileno(), None)
            self._poller = poller
        self.perform()
        for signal in self._waiting.copy():
            signal.wake()
        self._wake_reader()

    def perform(self) -> None:
        """Carry out what the machines want, until they want nothing more; inside."""
        self.actions.perform()
        wakes_at = self._wakes_at  # read once: the thread that reads clears it outside
        if wakes_at is not None and self._next_look(wakes_at - _LONGEST_SLEEP_S) < wakes_at:
            self._wake_reader()

    def _watch(self, link: Link) -> None:
        if self._poller is not None:
            for descriptor in (link.descriptor, link.monitored):
                self._poller.add(descriptor, link)
        # A poller does not notice descriptors that come while it sleeps.
        if self._wakes_at is not None:
            self._wake_reader()

    def _unwatch(self, link: Link) -> None:
        self.actions.forget(link)
        if self._poller is not None:
            for descriptor in (link.descriptor, link.monitored):
                self._poller.remove(descriptor)
