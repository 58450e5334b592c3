"""Subscriptions and watches at home in a client: their calls become requests, their answers come back to them.

A *stream machine* (a subscription, or the hub of the watches) says what it wants in actions of its own. Its host
carries them out on the request machine, and turns what is left into actions for the shell: sockets to listen on, and
somebody to wake up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

from raft_client.core.actions import Listen, Unlisten, Wake
from raft_client.core.calls import Call
from raft_client.core.catching_up import HubLimits
from raft_client.core.hub import WatchHub, WatchReady
from raft_client.core.request import Request
from raft_client.core.requests import RequestMachine
from raft_client.core.subscription import Cancel, FollowUp, Ready, Restart, Submit
from raft_client.core.subscription import Listen as ListenTo
from raft_client.core.subscription import Unlisten as StopListening
from raft_client.core.watch import WatchCounts
from raft_client.errors import RaftError
from raft_client.wire.changes import EntryCodec

__all__ = ["Host", "Hosts", "StreamMachine"]


class StreamMachine(Protocol):
    """What a subscription and the hub of the watches have in common."""

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None: ...

    def cannot_listen(self, url: str, why: str, now: float) -> None: ...

    def wake(self, call: Call, now: float) -> None: ...

    def finished(self, call: Call, result: object, now: float) -> None: ...

    def failed(self, call: Call, error: RaftError, now: float) -> None: ...

    def leader_changed(self, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def next_deadline(self) -> float | None: ...

    def close(self) -> None: ...

    def take_actions(self) -> Sequence[Any]: ...


class _Waiter:
    """Stands where the shell's waiters stand: the answer is for a stream machine."""

    __slots__ = ("_call", "_host")

    def __init__(self, host: Host, call: Call) -> None:
        self._host = host
        self._call = call

    def resolve(self, result: Any) -> None:
        self._host.finished(self._call, result)

    def reject(self, error: RaftError) -> None:
        self._host.failed(self._call, error)

    def notify(self) -> None:
        self._host.woken(self._call)


class Host:
    """One stream machine, its requests, and those who wait for what it hands out."""

    __slots__ = ("_ident", "_moment", "_requests", "_submitted", "consumers", "is_dirty", "machine")

    def __init__(self, machine: StreamMachine, requests: RequestMachine, ident: bytes) -> None:
        self.machine = machine
        self._requests = requests
        self._ident = ident
        self._submitted: dict[Call, Request] = {}
        self._moment = 0.0
        #: Who waits: for each watch the shell's waiter; a subscription has one, under None.
        self.consumers: dict[Any, Any] = {}
        #: Whether the machine may have actions that were not carried out.
        self.is_dirty = True

    # -- what the request machine answers ------------------------------------------------------------------------------

    def finished(self, call: Call, result: Any) -> None:
        self._submitted.pop(call, None)
        self.is_dirty = True
        self.machine.finished(call, result, self._moment)

    def failed(self, call: Call, error: RaftError) -> None:
        self._submitted.pop(call, None)
        self.is_dirty = True
        self.machine.failed(call, error, self._moment)

    def woken(self, call: Call) -> None:
        self.is_dirty = True
        self.machine.wake(call, self._moment)

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def broadcast(self, url: str, frames: list[bytes], now: float) -> None:
        """A message on the SUB socket to ``url`` that this host wanted."""
        self.at(now)
        self.machine.receive_broadcast(url, frames, now)

    def cannot_listen(self, url: str, why: str, now: float) -> None:
        """There is no SUB socket to ``url``: it could not be made."""
        self.at(now)
        self.machine.cannot_listen(url, why, now)

    def at(self, now: float) -> None:
        """Something is about to be done to the machine."""
        self._moment = now
        self.is_dirty = True

    def settle(self, now: float) -> None:
        """Carry out what the machine wants. Its requests may be answered at once, hence the loop in :class:`Hosts`."""
        self._moment = now
        self.is_dirty = False
        for action in self.machine.take_actions():
            self._carry_out(action, now)

    def _carry_out(self, action: Any, now: float) -> None:
        requests = self._requests
        match action:
            case Submit(call=call):
                self._submitted[call] = requests.submit(call, _Waiter(self, call), now, timeout=None)
            case FollowUp(call=call, frames=follow_ups) if call in self._submitted:
                for frames in follow_ups:
                    requests.follow_up(self._submitted[call], frames, now)
            case Restart(call=call, last=last) if call in self._submitted:
                requests.again(self._submitted[call], last, now)
            case Cancel(call=call, last=last) if call in self._submitted:
                requests.cancel(self._submitted.pop(call), now, last=last)
            case ListenTo(url=url):
                requests.emit(Listen(self, url, self._ident, requests.leader_url))
            case StopListening(url=url):
                requests.emit(Unlisten(self, url))
            case Ready():
                self._wake(None)
            case WatchReady(watch=watch):
                self._wake(watch)
                if watch.error is not None:
                    self.consumers.pop(watch, None)  # it was woken for the last time

    def _wake(self, consumer: Any) -> None:
        waiter = self.consumers.get(consumer)
        if waiter is not None:
            self._requests.emit(Wake(waiter))


class Hosts:
    """All hosts of a client."""

    __slots__ = ("_hubs", "_ident", "_leader_url", "_limits", "_requests", "members")

    def __init__(self, requests: RequestMachine, ident: bytes, **limits: Unpack[HubLimits]) -> None:
        self._requests = requests
        self._ident = ident
        self._limits = limits
        self._hubs: dict[int, tuple[EntryCodec, Host, WatchHub]] = {}  # by the identity of the codec, which is kept
        #: Empty in clients that only append and read. To be looked at, not to be changed.
        self.members: list[Host] = []
        self._leader_url: str | None = None

    def add(self, machine: StreamMachine) -> Host:
        """A home for a machine that has been started."""
        host = Host(machine, self._requests, self._ident)
        self.members.append(host)
        return host

    def hub(self, codec: EntryCodec, guarded: Callable[[EntryCodec], EntryCodec]) -> tuple[Host, WatchHub]:
        """The hub that all watches with this codec share. One without watches is gone with the next :meth:`settle`."""
        found = self._hubs.get(id(codec))
        if found is None:
            hub = WatchHub(self._ident, guarded(codec), **self._limits)
            found = self._hubs[id(codec)] = (codec, self.add(hub), hub)
        return found[1:]

    def watch_counts(self) -> WatchCounts:
        """The watches of all hubs."""
        return sum((hub.counts for _, _, hub in self._hubs.values()), WatchCounts())

    def remove(self, host: Host) -> None:
        """Its machine has been closed, and :meth:`settle` called since."""
        if host in self.members:
            self.members.remove(host)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        return min((d for d in (h.machine.next_deadline() for h in self.members) if d is not None), default=None)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for host in self.members:
            deadline = host.machine.next_deadline()
            if deadline is not None and now >= deadline:
                host.at(now)
                host.machine.tick(now)

    def settle(self, now: float) -> None:
        """Carry out what all machines want. The request machine may have actions afterwards."""
        url = self._requests.leader_url
        if url is not None and url != self._leader_url:
            known, self._leader_url = self._leader_url, url
            for host in self.members if known is not None else ():
                host.at(now)
                host.machine.leader_changed(now)
        for host in self.members:
            if host.is_dirty:
                host.settle(now)
        for key in [k for k, (_, host, hub) in self._hubs.items() if not hub.count and not host.is_dirty]:
            self.remove(self._hubs.pop(key)[1])

    def close(self, now: float) -> None:
        """End everything: whoever waits is woken and finds the error."""
        for host in self.members:
            host.machine.close()
            host.settle(now)
        self.members.clear()
        self._hubs.clear()
