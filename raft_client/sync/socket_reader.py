"""Drives the request machine from the callers' own threads. There is no extra thread.

One of the threads that wait *reads*: it sleeps on the sockets and carries out for everybody what comes in. When its own
answer is there it stops reading, and wakes another one to read. In a program with one thread that thread always reads,
and never waits for a thread switch.

Rules:

* ``lock`` guards the machine and the sockets. It is never held while anything blocks, nor while user code runs but for
  the codecs and conditions of watches; one of these that calls the client is refused (:mod:`raft_client.user_code`).
* ``_reading`` is held by the thread that reads. A thread that leaves while it is free wakes another one; so somebody
  reads as long as anybody waits.
* Code that touches a socket empties it before releasing the lock (see :mod:`raft_client.links`).
* The engine belongs to the process that opened it. In a forked child every call raises; nothing touches the sockets.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

from raft_client.action_runner import ActionRunner
from raft_client.links import Link
from raft_client.settings import RaftSettings
from raft_client.sync.listeners import Listeners
from raft_client.sync.poller import Poller, make_poller
from raft_client.sync.waiters import ReadySignal

__all__ = ["SocketReader"]

#: Nobody sleeps longer (seconds): whatever goes wrong with a wake-up call, it does not stop the program for good.
_LONGEST_SLEEP_S: Final = 5.0


class SocketReader:
    """The sockets of one client, and the threads that wait. ``actions`` is used with ``lock`` held."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self.actions: ActionRunner = ActionRunner(settings, listeners.note)
        self.lock: threading.Lock = threading.Lock()
        self._listeners = listeners
        self._reading = threading.Lock()
        self._waiting: set[ReadySignal] = set()
        self._poller: Poller | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._wakes_at: float | None = None  # until when the thread that reads sleeps; None: it does not

    def open(self) -> bool:
        """Make what waiting needs; False when it is there. With the lock held."""
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
        """Reject what waits, and close the sockets."""
        with self.changing():
            self.actions.close_machines(time.monotonic())
        self._wake_reader()
        with self._reading, self.lock:
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
        try:
            while not signal.ready:
                if self._reading.acquire(blocking=False):
                    try:
                        self._read_sockets(signal, deadline)
                    finally:
                        self._reading.release()
                else:
                    self._sleep(signal, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        finally:
            if self._waiting:
                self._hand_over()

    def _sleep(self, signal: ReadySignal, deadline: float | None) -> None:
        """Leave the sockets to the thread that reads."""
        with self.lock:
            signal.prepare_sleep()
            self._waiting.add(signal)
        try:
            # Looked at after having been added: a thread that stops reading later than that wakes somebody.
            if not signal.ready and self._reading.locked():
                signal.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            with self.lock:
                self._waiting.discard(signal)

    def _hand_over(self) -> None:
        """A thread that leaves sees to it that somebody reads; also one that is woken with nothing to wait for."""
        with self.lock:
            if self._waiting and not self._reading.locked():
                next(iter(self._waiting)).wake()

    def _read_sockets(self, signal: ReadySignal, deadline: float | None) -> None:
        """Read until ``signal`` is ready. The path of every answer: what it need not call, it does not."""
        poller, actions = self._poller, self.actions
        if poller is None:
            return  # closed meanwhile, and so the signal is ready
        owners = poller.owners
        while True:
            with self.lock:
                if signal.ready:
                    return
                now = time.monotonic()
                until = self._next_look(now)
                if deadline is not None and deadline < until:
                    until = deadline
                self._wakes_at = until
            try:
                events = poller.wait(until - now)
            finally:
                self._wakes_at = None
            with self.lock:
                now = time.monotonic()
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

    # -- the sockets, under the lock -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Change the machines, and carry out what follows."""
        with self.lock:
            yield
            self.perform()
        if self._listeners.news:
            self._listeners.log()

    def perform(self) -> None:
        """Carry out what the machines want, until they want nothing more. With the lock held."""
        self.actions.perform()
        wakes_at = self._wakes_at  # read once: the thread that reads clears it without the lock
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
