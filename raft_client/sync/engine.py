"""Drives the request machine from the callers' own threads. There is no thread of ours.

One of the threads that wait is the *pilot*: it sleeps on the sockets and carries out for everybody what comes in. When
its own answer is there it leaves, and wakes another one to take the seat. A program with one thread is always its own
pilot and never waits for a thread switch.

Rules:

* ``_lock`` guards the machine and the sockets. It is never held while anything blocks, nor while user code runs but for
  the codecs and conditions of watches; one of these that calls the client is refused (:mod:`raft_client.user_code`).
* ``_seat`` is the pilot's. Whoever leaves while it is free wakes another sleeper; so somebody flies as long as anybody
  waits.
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
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

from raft_client.core.actions import Connect, Disconnect, Listen, Reject, Resolve, Send, SetAside, Unlisten, Wake
from raft_client.core.calls import Again, Call, FollowUps
from raft_client.core.entries import Batch as EntryBatch
from raft_client.core.entries import EntriesCall
from raft_client.core.hosting import Host, Hosts, StreamMachine
from raft_client.core.hub import WatchHub
from raft_client.core.request import Request
from raft_client.core.requests import RequestMachine
from raft_client.core.watch import Watch, WatchCounts
from raft_client.errors import ClientClosedError, ForkedClientError, RaftError
from raft_client.links import Link, LinkError, Links
from raft_client.settings import RaftSettings
from raft_client.sync.poller import Poller, make_poller
from raft_client.sync.waiters import Batch, BatchSlot, Sleeper, StreamWaiter, Waiter
from raft_client.user_code import UserCode
from raft_client.wire.changes import EntryCodec

__all__ = ["Engine"]

T = TypeVar("T")

#: Nobody sleeps longer (seconds): whatever goes wrong with a wake-up call, it does not stop the program for good.
_LONGEST_SLEEP_S: Final = 5.0


class Engine:
    """One client without the user's methods."""

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._seat = threading.Lock()
        self._sleepers: set[Sleeper] = set()
        self.machine = RequestMachine(
            settings.seeds,
            ident=settings.ident,
            random=Random(),  # noqa: S311 - jitter, no secrets
            response_timeout=settings.response_timeout,
            election_grace=settings.election_grace,
            max_in_flight=settings.max_in_flight,
        )
        self.user_code = UserCode()
        self._hosts = Hosts(self.machine, settings.ident)
        self._links: Links | None = None
        self._touched: set[Link] = set()
        self._abandoned: deque[tuple[Request, list[bytes]]] = deque()
        self._poller: Poller | None = None
        self._waker: tuple[socket.socket, socket.socket] | None = None  # what is sent into the one, the other receives
        self._wakes_at: float | None = None  # until when the pilot sleeps; None: it does not
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Wake: self._notify,
            Reject: self._reject,
            Connect: self._connect,
            SetAside: self._set_aside,
            Disconnect: self._disconnect,
            Listen: self._listen,
            Unlisten: self._unlisten,
        }

    # -- calls of any thread -------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._links is not None

    def open(self) -> None:
        """Make what calls need. Nothing is connected before the first call."""
        self.check_process()
        with self._lock:
            if self._links is not None:
                return
            self.machine.check_open()
            self._poller = make_poller()
            self._waker = socket.socketpair()
            for end in self._waker:
                end.setblocking(False)
            self._poller.add(self._waker[1].fileno(), None)
            self._links = Links(self._settings, on_open=self._watch, on_close=self._unwatch)

    def call(self, call: Call, *, timeout: float | None, target: str | None = None) -> Any:
        """Ask one thing and wait for the answer."""
        self._check_usable()
        waiter = Waiter()
        with self._lock:
            request = self.machine.submit(call, waiter, time.monotonic(), timeout=timeout, target=target)
            self._perform()
        try:
            self._wait(waiter)
        except BaseException:  # KeyboardInterrupt, say; harmless when the request is done
            self.cancel(request)
            raise
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    def call_many(self, calls: Iterable[Call | RaftError], *, timeout: float | None, in_flight: int) -> list[Any]:
        """Ask many things, ``in_flight`` at a time; returns a result or an exception for each, in order.

        An exception in ``calls`` stands for one that could not even be made. When ``calls`` raises or the thread is
        interrupted, nobody waits for what is under way.
        """
        self._check_usable()
        batch = Batch()
        source = iter(calls)
        try:
            while chunk := list(islice(source, in_flight - batch.outstanding)):
                self._submit_chunk(chunk, batch, timeout, in_flight)
                self._wait(batch)
            with self._lock:
                batch.expect(0)
            self._wait(batch)
        except BaseException:
            with self._using_sockets():
                self.machine.cancel_all(lambda w: isinstance(w, BatchSlot) and w.batch is batch, time.monotonic())
            raise
        return batch.outcomes

    def _submit_chunk(self, chunk: list[Call | RaftError], batch: Batch, timeout: float | None, in_flight: int) -> None:
        with self._using_sockets():
            now = time.monotonic()
            for call in chunk:
                slot = batch.slot()
                if isinstance(call, RaftError):
                    slot.reject(call)
                else:
                    self.machine.submit(call, slot, now, timeout=timeout)
            batch.expect(in_flight - 1)

    def start(self, call: Call) -> tuple[Request, StreamWaiter]:
        """Begin a call that streams. Its owner waits, takes from the call's queue, and says when it has room again."""
        self._check_usable()
        waiter = StreamWaiter()
        with self._using_sockets():
            request = self.machine.submit(call, waiter, time.monotonic(), timeout=None)
        return request, waiter

    def wait(self, request: Request, waiter: StreamWaiter, timeout: float | None) -> None:
        """Until the call's queue has something new, or it is over; after ``timeout`` seconds it is over, too."""
        self._check_usable()
        try:
            with self._lock:
                self.machine.set_timeout(request, timeout, time.monotonic())
            self._wait(waiter)
        finally:  # after Ctrl-C too: nobody waits, so no time runs
            with self._lock:
                self.machine.set_timeout(request, None, 0.0)
                waiter.ready = waiter.is_over

    def take(self, request: Request, call: EntriesCall) -> EntryBatch | None:
        """What the stream has for its reader; and if that made room, the peer is asked for more."""
        self.check_process()
        with self._lock:
            now = time.monotonic()
            batch = call.next_batch(now)
            verdict = call.resume()
            if verdict is not None:
                self._resume(request, verdict, now)
                self._perform()
        return batch

    def _resume(self, request: Request, verdict: FollowUps | Again, now: float) -> None:
        if isinstance(verdict, Again):
            self.machine.again(request, verdict.last, now)
        else:
            for frames in verdict.frames:
                self.machine.follow_up(request, frames, now)

    def abandon(self, request: Request, last: list[bytes]) -> None:
        """As :meth:`cancel`, at the next opportunity, and without a lock: for the garbage collector."""
        self._abandoned.append((request, last))

    def attach(self, machine: StreamMachine) -> Host:
        """Give a subscription a home. It has been started."""
        self._check_usable()
        with self._using_sockets():
            return self._hosts.add(machine)

    def watch(
        self, codec: EntryCodec, consumer: Sleeper, make: Callable[[WatchHub], Watch]
    ) -> tuple[Host, WatchHub, Watch]:
        """Make a watch in the hub of this codec; ``consumer`` is notified of what it has."""
        self._check_usable()
        with self._using_sockets():
            host, hub = self._hosts.hub(codec, self.user_code.codec)
            host.at(time.monotonic())
            watch = make(hub)
            host.consumers[watch] = consumer
            return host, hub, watch

    def unwatch(self, host: Host, hub: WatchHub, watch: Watch) -> None:
        """End a watch. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self.user_code.check()
            with self._using_sockets():
                host.at(time.monotonic())
                hub.cancel(watch)

    def watch_counts(self) -> WatchCounts:
        """Of all watches that have not ended."""
        self.check_process()
        with self._lock:
            return self._hosts.watch_counts()

    def use(self, host: Host, action: Callable[[float], T]) -> T:
        """Do something with a machine that has a home here: called with the time, in monotonic seconds."""
        self.check_process()
        with self._lock:
            now = time.monotonic()
            host.at(now)
            result = action(now)
            self._perform()
        return result

    def detach(self, host: Host) -> None:
        """End a machine. Allowed in any process and after the end."""
        if os.getpid() == self._pid:
            self.user_code.check()
            with self._using_sockets():
                host.machine.close()
                host.settle(time.monotonic())
                self._hosts.remove(host)

    def wait_for(self, sleeper: Sleeper, timeout: float | None) -> None:
        """Until ``sleeper`` is ready, or for so many seconds."""
        self._check_usable()
        self._wait(sleeper, None if timeout is None else time.monotonic() + timeout)

    def cancel(self, request: Request, last: list[bytes] | None = None) -> None:
        """Nobody waits for this any longer. Allowed in any process and after the end."""
        if os.getpid() == self._pid and not request.is_done:
            self.user_code.check()
            with self._using_sockets():
                self.machine.cancel(request, time.monotonic(), last=last)

    def end(self, request: Request, waiter: StreamWaiter, last: list[bytes]) -> None:
        """As :meth:`cancel`, for a stream: whoever waits for it is woken."""
        self.cancel(request, last)
        if os.getpid() == self._pid:
            with self._lock:
                waiter.reject(ClientClosedError("these entries are closed"))

    def close(self) -> None:
        """Reject what waits, and close the sockets."""
        if os.getpid() != self._pid:
            return
        self.user_code.check()
        with self._using_sockets():
            self._hosts.close(time.monotonic())
            self.machine.close()
        self._wake_pilot()
        with self._seat, self._lock:
            if self._links is None or self._poller is None or self._waker is None:
                return
            self._links.close()
            self._poller.close()
            for end in self._waker:
                end.close()
            self._links = self._poller = self._waker = None

    def check_process(self) -> None:
        """Raise in a forked child, and in a codec or condition."""
        self.user_code.check()
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this client was opened before fork(); open a new one in the child process "
                "(in Spark, open it inside the task)"
            )

    def _check_usable(self) -> None:
        if os.getpid() != self._pid or self._links is None:
            self.check_process()
            self.machine.check_open()
            raise ClientClosedError("the client was not opened; use it as a context manager or call open()")
        self.user_code.check()

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, sleeper: Sleeper, deadline: float | None = None) -> None:
        """Until ``sleeper`` is ready, or until ``deadline`` (monotonic seconds), but not without a look at the sockets.

        Nobody else looks: a reader that polls, and never waits, must hear of something, too.
        """
        try:
            while not sleeper.ready:
                if self._seat.acquire(blocking=False):
                    try:
                        self._fly(sleeper, deadline)
                    finally:
                        self._seat.release()
                else:
                    self._doze(sleeper, deadline)
                if deadline is not None and time.monotonic() >= deadline:
                    break
        finally:
            if self._sleepers:
                self._hand_over()

    def _doze(self, sleeper: Sleeper, deadline: float | None) -> None:
        """Leave the sockets to the pilot."""
        with self._lock:
            sleeper.lie_down()
            self._sleepers.add(sleeper)
        try:
            # Looked at after having been added: a pilot who leaves later than that wakes somebody.
            if not sleeper.ready and self._seat.locked():
                sleeper.sleep(None if deadline is None else deadline - time.monotonic())
        finally:
            with self._lock:
                self._sleepers.discard(sleeper)

    def _hand_over(self) -> None:
        """Whoever leaves sees to it that somebody flies. One who is woken and has nothing to wait for does the same."""
        with self._lock:
            if self._sleepers and not self._seat.locked():
                next(iter(self._sleepers)).wake()

    def _fly(self, sleeper: Sleeper, deadline: float | None) -> None:
        """Be the pilot until ``sleeper`` is ready. The path of every answer: what it need not call, it does not."""
        poller, machine = self._poller, self.machine
        if poller is None:
            return  # closed meanwhile, and so the sleeper is ready
        owners = poller.owners
        while True:
            with self._lock:
                if sleeper.ready:
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
                        self._ring(descriptor, owners[descriptor], now)
                if now >= until:
                    machine.tick(now)
                    self._hosts.tick(now)
                if machine.actions or self._hosts.members:
                    self._perform()
            if deadline is not None and now >= deadline:
                return

    def _next_look(self, now: float) -> float:
        """When something is to be done without anybody ringing, in monotonic seconds."""
        until = now + _LONGEST_SLEEP_S
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < until:
            until = deadline
        if self._hosts.members:
            deadline = self._hosts.next_deadline()
            if deadline is not None and deadline < until:
                until = deadline
        return until

    def _ring(self, descriptor: int, link: Link | None, now: float) -> None:
        """A descriptor is readable: that of a link's messages, that of its end, or (None) the waker's."""
        if link is None:
            if self._waker is not None:
                with contextlib.suppress(BlockingIOError):
                    self._waker[1].recv(4096)
            return
        self._take_in(link, now, rang=descriptor == link.descriptor)
        if descriptor == link.monitored and link.is_lost():
            self.machine.link_lost(link.url, now)

    def _wake_pilot(self) -> None:
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

    def _take_in(self, link: Link, now: float, *, rang: bool = False) -> None:
        """What has come in on a link."""
        if link.owner is None:
            for frames in link.receive(rang=rang):
                self.machine.received(link.url, frames, now)
        else:
            for frames in link.receive(rang=rang):
                link.owner.broadcast(link.url, frames, now)

    def _perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        machine, hosts, handlers = self.machine, self._hosts, self._handlers
        while self._abandoned:
            request, last = self._abandoned.popleft()
            machine.cancel(request, time.monotonic(), last=last)
        if hosts.members:
            hosts.settle(time.monotonic())
        while machine.actions:
            for action in machine.take_actions():
                if type(action) is Resolve:  # the two of every append, at hand
                    action.waiter.resolve(action.result)
                elif type(action) is Send:
                    self._send(action)
                else:
                    handlers[type(action)](action)
            while self._touched:
                self._take_in(self._touched.pop(), time.monotonic())
            if hosts.members:
                hosts.settle(time.monotonic())
        if self._wakes_at is not None and self._next_look(self._wakes_at - _LONGEST_SLEEP_S) < self._wakes_at:
            self._wake_pilot()

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

    def _listen(self, action: Listen) -> None:
        if self._links is not None:
            try:
                self._touched.add(self._links.subscribe(action.owner, action.url, action.topic))
            except LinkError as error:
                action.owner.cannot_listen(action.url, str(error), time.monotonic())

    def _unlisten(self, action: Unlisten) -> None:
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
            self._wake_pilot()

    def _unwatch(self, link: Link) -> None:
        self._touched.discard(link)
        if self._poller is not None:
            for descriptor in (link.descriptor, link.monitored):
                if descriptor is not None:
                    self._poller.remove(descriptor)
