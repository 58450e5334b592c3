"""Carries out on the sockets what the machines of one client want, and tells the machines what comes in.

The same in both shells, which add the waiting. It never waits, and belongs to one thread at a time: the shells see to
that. Whatever touches a socket empties it before anybody sleeps on its descriptor (see :mod:`raft_client.links`).

Invariant: an answer is owed until it was handed over. What was taken besides (actions, messages) an exception may lose:
:meth:`ActionRunner.begin_anew` closes all links, and makes the rest anew from what is owed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from threading import get_ident
from typing import Any, Protocol, TypeVar

from raft_client.clocks import monotonic
from raft_client.codecs import KeyValueCodec
from raft_client.core.calls import Again, FollowUps
from raft_client.core.request_machine import RequestMachine
from raft_client.core.requests import (
    Connect,
    Disconnect,
    Reject,
    Request,
    Resolve,
    Send,
    SetAside,
    StateChanged,
    Subscribe,
    Unsubscribe,
    Wake,
)
from raft_client.core.selectors import Selector, Where
from raft_client.core.stream_runners import StreamRunners
from raft_client.errors import BusyError, RaftError
from raft_client.links import Link, LinkError, Links
from raft_client.settings import RaftSettings
from raft_client.wire.key_changes import Change, EntryCodec

# -- the user's code in the client's own work --------------------------------------------------------------------------
# They are called while an entry is shared out, which nothing may interrupt: the client is locked, or in the middle of a
# turn of its event loop. One that calls the client would wait for itself. It gets :class:`BusyError` instead.


A = TypeVar("A")
R = TypeVar("R")


class UserCode:
    """Knows whether the user's code is running, and in which thread."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: int | None = None

    def check(self) -> None:
        """Raises BusyError when it is the user's code that calls."""
        if self._thread is not None and self._thread == get_ident():
            raise BusyError(
                "a codec or condition of a watch may not use its client, because the client waits for it; "
                "do it where the events are handled, or in a callback"
            )

    def run(self, function: Callable[[A], R], argument: A) -> R:
        """Call the user's code; only one thread at a time does."""
        self._thread = get_ident()
        try:
            return function(argument)
        finally:
            self._thread = None

    def codec(self, codec: EntryCodec) -> EntryCodec:
        """The same codec, noticed when it runs."""
        return _Codec(self, codec)

    def selector(self, selector: Selector) -> Selector:
        """The same selector, noticed when its condition runs."""
        if not isinstance(selector, Where):
            return selector
        predicate = selector.predicate
        return Where(lambda change: self.run(predicate, change))


class _Codec:
    __slots__ = ("_codec", "_user_code")

    def __init__(self, user_code: UserCode, codec: EntryCodec) -> None:
        self._user_code = user_code
        self._codec = codec

    def decode(self, data: bytes) -> Sequence[Change]:
        return self._user_code.run(self._codec.decode, data)


# -- batches -----------------------------------------------------------------------------------------------------------


class Outcomes(Protocol):
    """Those of a batch of requests."""

    def settle(self, position: int, outcome: object) -> None:
        """One of them has its outcome."""


class BatchSlot:
    """One position of a batch."""

    __slots__ = ("_position", "batch")

    def __init__(self, batch: Outcomes, position: int) -> None:
        self.batch: Outcomes = batch
        self._position = position

    def resolve(self, result: object) -> None:
        self.batch.settle(self._position, result)

    def reject(self, error: RaftError) -> None:
        self.batch.settle(self._position, error)


# -- actions -----------------------------------------------------------------------------------------------------------


class ActionRunner:
    """The machines of one client and its sockets. ``on_state`` is told of each :class:`StateChanged`, in its place."""

    def __init__(self, settings: RaftSettings, on_state: Callable[[StateChanged], None]) -> None:
        self._settings = settings
        self.machine: RequestMachine = RequestMachine(
            settings.seeds,
            ident=settings.ident,
            random=Random(),  # noqa: S311 - jitter, no secrets
            response_timeout=settings.response_timeout,
            election_grace=settings.election_grace,
            max_in_flight=settings.max_in_flight,
        )
        self.user_code: UserCode = UserCode()
        self.runners: StreamRunners = StreamRunners(
            self.machine,
            settings.ident,
            KeyValueCodec,
            silence_s=settings.broadcast_timeout,
            progress_s=settings.progress_interval,
            total_bytes=settings.watch_bytes,
        )
        self.links: Links | None = None
        self._touched: set[Link] = set()
        self.abandoned: deque[tuple[Request, list[bytes]]] = deque()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Reject: self._reject,
            Connect: self._connect,
            SetAside: self._set_aside,
            Disconnect: self._disconnect,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            StateChanged: on_state,
        }

    # -- the sockets ---------------------------------------------------------------------------------------------------

    def open(self, on_open: Callable[[Link], None], on_close: Callable[[Link], None]) -> None:
        """Nothing is connected before the first call."""
        self.links = Links(self._settings, on_open=on_open, on_close=on_close)

    def forget(self, link: Link) -> None:
        """It is being closed."""
        self._touched.discard(link)

    def close_machines(self, now: float) -> None:
        """End everything that waits; :meth:`perform` tells it."""
        self.runners.close(now)
        self.machine.close()

    def close_links(self) -> None:
        """Close the sockets."""
        if self.links is not None:
            self.links.close()
            self.links = None

    @property
    def situation(self) -> str:
        """Whether it is open, and who leads: for the client's repr."""
        if self.links is None:
            return "closed" if self.machine.is_closed else "not open"
        leader = self.machine.leader_id or self.machine.leader_url
        return "no leader" if leader is None else f"leader {leader}"

    # -- what happens --------------------------------------------------------------------------------------------------

    def readable(self, descriptor: int, link: Link, now: float) -> None:
        """A descriptor is readable: that of a link's messages, or that of its end."""
        self._take_in(link, now, was_readable=descriptor == link.descriptor)
        if descriptor == link.monitored and link.poll_lost():
            if link.owner is None:
                self.machine.link_lost(link.url, now, link.refusal)
            else:
                link.owner.connection_lost(link.url, now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        self.machine.tick(now)
        self.runners.tick(now)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        deadline = self.machine.next_deadline()
        if self.runners.members:
            other = self.runners.next_deadline()
            if deadline is None or (other is not None and other < deadline):
                return other
        return deadline

    def _take_in(self, link: Link, now: float, *, was_readable: bool = False) -> None:
        """What has come in on a link."""
        if link.owner is None:
            for frames in link.receive(was_readable=was_readable):
                self.machine.received(link.url, frames, now)
        else:
            for frames in link.receive(was_readable=was_readable):
                link.owner.broadcast(link.url, frames, now)

    def perform(self) -> None:
        """Carry out what the machines want, until they want nothing more."""
        machine, runners, handlers = self.machine, self.runners, self._handlers
        while self.abandoned:
            request, last = self.abandoned[0]
            machine.cancel(request, monotonic(), last=last)
            self.abandoned.popleft()
        if runners.members:
            runners.settle(monotonic())
        while machine.actions:
            for action in machine.take_actions():
                if type(action) is Resolve:  # those of every append and event, inlined
                    action.waiter.resolve(action.result)
                    machine.owed.pop(id(action.waiter), None)
                elif type(action) is Send:
                    self._send(action)
                elif type(action) is Wake:
                    action.waiter.notify()
                else:
                    handlers[type(action)](action)
            while self._touched:
                self._take_in(self._touched.pop(), monotonic())
            if runners.members:
                runners.settle(monotonic())

    def begin_anew(self, now: float) -> None:
        """An exception has cut a change; :meth:`perform` is to follow. The same again if this is cut."""
        if self.links is not None:
            self.links.drop()
        self._touched.clear()
        self.runners.give_up_changed()
        self.machine.interrupted(now)
        self.runners.links_lost(now)

    def resume(self, request: Request, verdict: FollowUps | Again, now: float) -> None:
        """The reader of a stream made room: the peer is asked for more."""
        if isinstance(verdict, Again):
            self.machine.again(request, verdict.last, now)
        else:
            for frames in verdict.frames:
                self.machine.follow_up(request, frames, now)

    # -- actions -------------------------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        link = self.links.dealers.get(action.url) if self.links is not None else None
        if link is None:
            return
        if link.send(action.frames):
            self._touched.add(link)
        else:
            link.poll_lost()  # read its monitor first: it may know why
            self.machine.link_lost(action.url, monotonic(), link.refusal)

    def _connect(self, action: Connect) -> None:
        if self.links is not None:
            try:
                self._touched.add(self.links.connect(action.url))
            except LinkError as error:
                self.machine.link_lost(action.url, monotonic(), str(error))

    def _set_aside(self, action: SetAside) -> None:
        if self.links is not None:
            self.links.set_aside(action.url, action.name)

    def _disconnect(self, action: Disconnect) -> None:
        if self.links is not None:
            self.links.disconnect(action.url)

    def _subscribe(self, action: Subscribe) -> None:
        if self.links is not None:
            try:
                self._touched.add(self.links.subscribe(action.owner, action.url, action.topic, action.peer))
            except LinkError as error:
                action.owner.cannot_listen(action.url, str(error), monotonic())

    def _unsubscribe(self, action: Unsubscribe) -> None:
        if self.links is not None:
            self.links.unsubscribe(action.owner, action.url)

    def _reject(self, action: Reject) -> None:
        action.waiter.reject(action.error)
        self.machine.owed.pop(id(action.waiter), None)
