"""Drives the request machine from the callers' own threads. There is no thread of ours.

One of the threads that wait *reads*: it sleeps on the sockets and carries out for everybody what comes in. When its own
answer is there it stops reading, and wakes another one to read. In a program with one thread that thread always reads,
and never waits for a thread switch.

Rules:

* ``_lock`` guards the machine and the sockets. It is never held while anything blocks, nor while user code runs but for
  the codecs and conditions of watches; one of these that calls the client is refused (:mod:`raft_client.user_code`).
* ``_reading`` is held by the thread that reads. A thread that leaves while it is free wakes another one; so somebody
  reads as long as anybody waits.
* Who touches a socket empties it before releasing the lock (see :mod:`raft_client.links`).
* The engine belongs to the process that opened it. In a forked child every call raises; nothing touches the sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from raft_client.core.request import Request
from raft_client.core.request_actions import (
    Connect,
    Disconnect,
    Reject,
    Resolve,
    Send,
    SetAside,
    StateChanged,
    Subscribe,
    Unsubscribe,
    Wake,
)
from raft_client.core.request_machine import RequestMachine
from raft_client.core.stream_runners import StreamRunners
from raft_client.links import Link, LinkError, Links
from raft_client.settings import RaftSettings
from raft_client.sync.listeners import Listeners
from raft_client.sync.poller import Poller
from raft_client.sync.waiters import ReadySignal
from raft_client.user_code import UserCode

__all__ = ["SocketReader"]

#: Nobody sleeps longer (seconds): whatever goes wrong with a wake-up call, it does not stop the program for good.
_LONGEST_SLEEP_S: Final = 5.0


class SocketReader:
    """The machines of one client, its sockets, and those who wait. :class:`Engine` adds what callers want."""

    def __init__(self, settings: RaftSettings, listeners: Listeners) -> None:
        self._settings = settings
        self._listeners = listeners
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: set[ReadySignal] = set()
        self.machine = RequestMachine(
            settings.seeds,
            ident=settings.ident,
            random=Random(),  # noqa: S311 - jitter, no secrets
            response_timeout=settings.response_timeout,
            election_grace=settings.election_grace,
            max_in_flight=settings.max_in_flight,
        )
        self.user_code = UserCode()
        self._runners = StreamRunners(
            self.machine,
            settings.ident,
            silence_s=settings.broadcast_timeout,
            progress_s=settings.progress_interval,
            total_bytes=settings.watch_bytes,
        )
        self._links: Links | None = None
        self._touched: set[Link] = set()
        self._abandoned: deque[tuple[Request, list[bytes]]] = deque()
        self._poller: Poller | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._wakes_at: float | None = None  # until when the thread that reads sleeps; None: it does not
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Wake: self._notify,
            Reject: self._reject,
            Connect: self._connect,
            SetAside: self._set_aside,
            Disconnect: self._disconnect,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            StateChanged: listeners.note,
        }

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, signal: ReadySignal, deadline: float | None = None) -> None:
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
        with self._lock:
            signal.prepare_sleep()
            self._waiting.add(signal)
        try:
            # Looked at after having been added: a thread that stops reading later than that wakes somebody.
            if not signal.ready and self._reading.locked():
                signal.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            with self._lock:
                self._waiting.discard(signal)

    def _hand_over(self) -> None:
        """A thread that leaves sees to it that somebody reads; also one that is woken with nothing to wait for."""
        with self._lock:
            if self._waiting and not self._reading.locked():
                next(iter(self._waiting)).wake()

    def _read_sockets(self, signal: ReadySignal, deadline: float | None) -> None:
        """Read until ``signal`` is ready. The path of every answer: what it need not call, it does not."""
        poller, machine = self._poller, self.machine
        if poller is None:
            return  # closed meanwhile, and so the signal is ready
        owners = poller.owners
        while True:
            with self._lock:
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
            with self._lock:
                now = time.monotonic()
                for descriptor, _ in events:
                    if descriptor in owners:  # not so if its link was closed in this very turn
                        self._on_readable(descriptor, owners[descriptor], now)
                if now >= until:
                    machine.tick(now)
                    self._runners.tick(now)
                if machine.has_actions or self._runners.members:
                    self._perform()
            if self._listeners.news:
                self._listeners.log()
            if deadline is not None and now >= deadline:
                return

    def _next_look(self, now: float) -> float:
        """When something is to be done without anybody ringing, in monotonic seconds."""
        until = now + _LONGEST_SLEEP_S
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < until:
            until = deadline
        if self._runners.members:
            deadline = self._runners.next_deadline()
            if deadline is not None and deadline < until:
                until = deadline
        return until

    def _on_readable(self, descriptor: int, link: Link | None, now: float) -> None:
        """A descriptor is readable: that of a link's messages, that of its end, or (None) the waker's."""
        if link is None:
            if self._waker is not None:
                with contextlib.suppress(BlockingIOError):
                    self._waker[1].recv(4096)
            return
        self._take_in(link, now, was_readable=descriptor == link.descriptor)
        if descriptor == link.monitored and link.is_lost():
            self.machine.link_lost(link.url, now)

    def _wake_reader(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
                self._waker[0].send(b"\0")

    # -- the sockets, under the lock -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _using_sockets(self) -> Iterator[None]:
        """Change the machine, and carry out what follows."""
        with self._lock:
            yield
            self._perform()
        if self._listeners.news:
            self._listeners.log()

    def _take_in(self, link: Link, now: float, *, was_readable: bool = False) -> None:
        """What has come in on a link."""
        if link.owner is None:
            for frames in link.receive(was_readable=was_readable):
                self.machine.received(link.url, frames, now)
        else:
            for frames in link.receive(was_readable=was_readable):
                link.owner.broadcast(link.url, frames, now)

    def _perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        machine, runners, handlers = self.machine, self._runners, self._handlers
        while self._abandoned:
            request, last = self._abandoned.popleft()
            machine.cancel(request, time.monotonic(), last=last)
        if runners.members:
            runners.settle(time.monotonic())
        while actions := machine.take_actions():
            for action in actions:
                if type(action) is Resolve:  # the two of every append, at hand
                    action.waiter.resolve(action.result)
                elif type(action) is Send:
                    self._send(action)
                else:
                    handlers[type(action)](action)
            while self._touched:
                self._take_in(self._touched.pop(), time.monotonic())
            if runners.members:
                runners.settle(time.monotonic())
        wakes_at = self._wakes_at  # read once: the thread that reads clears it without the lock
        if wakes_at is not None and self._next_look(wakes_at - _LONGEST_SLEEP_S) < wakes_at:
            self._wake_reader()

    def _send(self, action: Send) -> None:
        link = self._links.dealers.get(action.url) if self._links is not None else None
        if link is None:
            return
        if link.send(action.frames):
            self._touched.add(link)
        else:
            self.machine.link_lost(action.url, time.monotonic())

    def _connect(self, action: Connect) -> None:
        if self._links is not None:
            try:
                self._touched.add(self._links.connect(action.url))
            except LinkError as error:
                self.machine.link_lost(action.url, time.monotonic(), str(error))

    def _set_aside(self, action: SetAside) -> None:
        if self._links is not None:
            self._links.set_aside(action.url, action.name)

    def _disconnect(self, action: Disconnect) -> None:
        if self._links is not None:
            self._links.disconnect(action.url)

    def _subscribe(self, action: Subscribe) -> None:
        if self._links is not None:
            try:
                self._touched.add(self._links.subscribe(action.owner, action.url, action.topic, action.peer))
            except LinkError as error:
                action.owner.cannot_listen(action.url, str(error), time.monotonic())

    def _unsubscribe(self, action: Unsubscribe) -> None:
        if self._links is not None:
            self._links.unsubscribe(action.owner, action.url)

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)

    def _notify(self, action: Wake) -> None:
        action.waiter.notify()

    def _watch(self, link: Link) -> None:
        if self._poller is not None:
            for descriptor in (link.descriptor, link.monitored):
                if descriptor is not None:
                    self._poller.add(descriptor, link)
        # A poller does not notice descriptors that come while it sleeps.
        if self._wakes_at is not None:
            self._wake_reader()

    def _unwatch(self, link: Link) -> None:
        self._touched.discard(link)
        if self._poller is not None:
            for descriptor in (link.descriptor, link.monitored):
                if descriptor is not None:
                    self._poller.remove(descriptor)
