"""Runs subscriptions and watches in a client: their calls become requests, their answers come back to them.

A *stream machine* (a subscription, or the watches with one codec) says what it wants in actions of its own. Its runner
carries them out on the request machine, and turns what is left into actions for the shell: sockets to listen on, and
somebody to wake up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Unpack

from raft_client.core.calls import Call
from raft_client.core.request_machine import RequestMachine
from raft_client.core.requests import Request, Subscribe, Unsubscribe
from raft_client.core.served_watches import WatchSession
from raft_client.core.stream_actions import Cancel, FollowUp, Listen, Restart, StopListening, Submit
from raft_client.core.watch_events import WatchCounts, WatchLimits
from raft_client.core.watches import Watches
from raft_client.errors import ConnectionLostError, RaftError
from raft_client.wire.key_changes import EntryCodec


class StreamMachine(Protocol):
    """What a subscription and the watches with one codec have in common."""

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None: ...

    def cannot_listen(self, url: str, why: str, now: float) -> None: ...

    def connection_lost(self, url: str, now: float) -> None: ...

    def wake(self, call: Call, now: float) -> None: ...

    def finished(self, call: Call, result: object, now: float) -> None: ...

    def failed(self, call: Call, error: RaftError, now: float) -> None: ...

    def leader_changed(self, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def next_deadline(self) -> float | None: ...

    def close(self) -> None: ...

    def give_up(self, error: RaftError) -> None: ...

    def notify(self) -> None: ...

    def take_actions(self) -> Sequence[Any]: ...


class _Waiter:
    """Takes the place of a waiter of the shell: the answer is for a stream machine, unless that was given up."""

    __slots__ = ("_call", "runner")

    def __init__(self, runner: StreamRunner, call: Call) -> None:
        self.runner: StreamRunner = runner
        self._call = call

    def resolve(self, result: Any) -> None:
        if (runner := self.runner).is_done_with(self._call):
            runner.machine.finished(self._call, result, runner.now)

    def reject(self, error: RaftError) -> None:
        if (runner := self.runner).is_done_with(self._call):
            runner.machine.failed(self._call, error, runner.now)

    def notify(self) -> None:
        runner = self.runner
        if not runner.is_over:
            runner.is_dirty = True
            runner.machine.wake(self._call, runner.now)


class StreamRunner:
    """One stream machine, its requests, and where it listens."""

    __slots__ = ("_ident", "_requests", "_submitted", "_url", "is_dirty", "is_over", "machine", "now")

    machine: StreamMachine  # the shell that makes the runner sets it

    def __init__(self, requests: RequestMachine, ident: bytes) -> None:
        self._requests = requests
        self._ident = ident
        self._submitted: dict[Call, Request] = {}
        self._url: str | None = None  # where it listens
        #: When something was last done to the machine, in monotonic seconds.
        self.now: float = 0.0
        #: Whether it was given up: what comes is dropped.
        self.is_over: bool = False
        #: Whether the machine may have actions that were not carried out.
        self.is_dirty: bool = True

    def is_done_with(self, call: Call) -> bool:
        """Forget a request that has its final answer. Returns whether the machine has to hear of it."""
        if not self.is_over:
            self.is_dirty = True
            self._submitted.pop(call, None)
        return not self.is_over

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def broadcast(self, url: str, frames: list[bytes], now: float) -> None:
        """A message on the SUB socket to ``url`` that this runner wanted."""
        self.touch(now)
        self.machine.receive_broadcast(url, frames, now)

    def cannot_listen(self, url: str, why: str, now: float) -> None:
        """There is no SUB socket to ``url``: it could not be made."""
        self.touch(now)
        self.machine.cannot_listen(url, why, now)

    def connection_lost(self, url: str, now: float) -> None:
        """The connection of the SUB socket to ``url`` broke, or could not be made."""
        self.touch(now)
        self.machine.connection_lost(url, now)

    def touch(self, now: float) -> None:
        """Set the time and mark the machine as changed: called before each change."""
        self.now = now
        self.is_dirty = True

    def reading(self) -> float:
        """As :meth:`touch`, for what is being read from a message. Returns when it came in."""
        self.now = now = self._requests.now
        self.is_dirty = True
        return now

    def settle(self, now: float) -> None:
        """Carry out what the machine wants."""
        self.now = now
        for action in self.machine.take_actions():
            if not self.is_over:
                self._carry_out(action, now)
        self.is_dirty = False  # not before: an exception may come

    def links_lost(self, now: float) -> None:
        """All links were closed, and what came in on them last may be lost. Its requests are repeated by others."""
        if self._url is not None:
            self.connection_lost(self._url, now)
        self.machine.notify()  # what has come may not have woken its consumers

    def give_up(self) -> None:
        """An exception has cut a change of the machine: it ends, and its readers find out why."""
        self.is_over = True
        self.machine.give_up(
            ConnectionLostError(
                "a signal interrupted the client while it was at work on this; begin another one after the position of "
                "what you handled last"
            )
        )
        self._requests.disown(lambda waiter: isinstance(waiter, _Waiter) and waiter.runner is self)
        self._submitted.clear()
        self.machine.notify()

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
            case Listen(url=url) if requests.leader_url is None:
                self.machine.connection_lost(url, now)  # who said so leads no more, and another one will say where
            case Listen(url=url):
                self._url = url
                requests.emit(Subscribe(self, url, self._ident, requests.leader_url))
            case StopListening(url=url):
                self._url = None
                requests.emit(Unsubscribe(self, url))


class StreamRunners:
    """All runners of a client."""

    __slots__ = ("_ident", "_leader_url", "_limits", "_requests", "_served", "_session", "_watches", "members")

    def __init__(
        self, requests: RequestMachine, ident: bytes, served: type[EntryCodec], **limits: Unpack[WatchLimits]
    ) -> None:
        """``served``: the codec of what peers may serve watches of; it has no state."""
        self._requests = requests
        self._ident = ident
        self._limits = limits
        self._served = served
        self._session = WatchSession()
        self._watches: dict[
            int, tuple[EntryCodec, StreamRunner, Watches]
        ] = {}  # by the identity of the codec, which is kept; all codecs that are served are one
        #: Empty in clients that only append and read. To be looked at, not to be changed.
        self.members: list[StreamRunner] = []
        self._leader_url: str | None = None

    def add(self, machine: StreamMachine) -> StreamRunner:
        """Run a machine that has been started."""
        return self._run(machine, StreamRunner(self._requests, self._ident))

    def _run(self, machine: StreamMachine, runner: StreamRunner) -> StreamRunner:
        runner.machine = machine
        self.members.append(runner)
        return runner

    def watches(self, codec: EntryCodec, guarded: Callable[[EntryCodec], EntryCodec]) -> tuple[StreamRunner, Watches]:
        """All watches with this codec, over one subscription. Without any it goes with the next :meth:`settle`."""
        is_served = type(codec) is self._served
        key = id(self._served if is_served else codec)
        found = self._watches.get(key)
        if found is None:
            session = self._session if is_served else None
            runner = StreamRunner(self._requests, self._ident)
            watches = Watches(self._ident, guarded(codec), session=session, touch=runner.reading, **self._limits)
            found = self._watches[key] = (codec, self._run(watches, runner), watches)
        return found[1:]

    def watch_counts(self) -> WatchCounts:
        """Of all watches that have not ended."""
        return sum((watches.counts for _, _, watches in self._watches.values()), WatchCounts())

    def remove(self, runner: StreamRunner) -> None:
        """Its machine has been closed, and :meth:`settle` called since."""
        if runner in self.members:
            self.members.remove(runner)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        soonest = None
        for runner in self.members:
            deadline = runner.machine.next_deadline()
            if deadline is not None and (soonest is None or deadline < soonest):
                soonest = deadline
        return soonest

    def tick(self, now: float) -> None:
        """Time has passed."""
        for runner in self.members:
            deadline = runner.machine.next_deadline()
            if deadline is not None and now >= deadline:
                runner.touch(now)
                runner.machine.tick(now)

    def settle(self, now: float) -> None:
        """Carry out what all machines want. The request machine may have actions afterwards."""
        url = self._requests.leader_url
        if url is not None and url != self._leader_url:
            known, self._leader_url = self._leader_url, url
            for runner in self.members if known is not None else ():
                runner.touch(now)
                runner.machine.leader_changed(now)
        is_changed = False
        for runner in self.members:
            if runner.is_dirty:
                runner.settle(now)
                is_changed = True
        if is_changed:
            for key in [key for key, (_, _, watches) in self._watches.items() if watches.is_idle]:
                self.remove(self._watches.pop(key)[1])

    def give_up_changed(self) -> None:
        """An exception came: give up those that it may have left half changed."""
        for runner in [runner for runner in self.members if runner.is_dirty]:
            runner.give_up()
            self._watches = {key: found for key, found in self._watches.items() if found[1] is not runner}
            self.remove(runner)

    def links_lost(self, now: float) -> None:
        """All links were closed."""
        for runner in self.members:
            runner.links_lost(now)

    def close(self, now: float) -> None:
        """End everything: whoever waits is woken and finds the error."""
        for runner in self.members:
            runner.machine.close()
            runner.settle(now)
        self.members.clear()
        self._watches.clear()
