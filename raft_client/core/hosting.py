"""Subscriptions and watches at home in a client: their calls become requests, their answers come back to them.

A *stream machine* (a subscription, or the hub of the watches) says what it wants in actions of its own. A host carries
them out on the request machine, and turns what is left into actions for the shell: sockets to listen on, and somebody
to wake up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from raft_client.core.actions import Listen, Unlisten, Wake
from raft_client.core.calls import Call
from raft_client.core.hub import WatchReady
from raft_client.core.requests import Request, RequestMachine
from raft_client.core.subscription import (
    Cancel,
    Ended,
    FollowUp,
    Ready,
    Restart,
    StateChanged,
    Submit,
    SubscriptionState,
)
from raft_client.core.subscription import Listen as ListenTo
from raft_client.core.subscription import Unlisten as StopListeningTo
from raft_client.errors import RaftError

__all__ = ["Host", "Hosts", "StreamMachine"]


class StreamMachine(Protocol):
    """What a subscription and the hub of the watches have in common."""

    def receive_broadcast(self, url: str, frames: Sequence[bytes], now: float) -> None: ...

    def wake(self, call: Call, now: float) -> None: ...

    def finished(self, call: Call, result: object, now: float) -> None: ...

    def failed(self, call: Call, error: RaftError, now: float) -> None: ...

    def leader_changed(self, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def next_deadline(self) -> float | None: ...

    def take_actions(self) -> Sequence[Any]: ...


@attrs.define(eq=False)
class _Woken:
    call: Call


@attrs.define(eq=False)
class _Finished:
    call: Call
    result: object


@attrs.define(eq=False)
class _Failed:
    call: Call
    error: RaftError


_Report: TypeAlias = _Woken | _Finished | _Failed


class _HostedWaiter:
    """Stands where the shell's waiters stand: the answer is for a stream machine."""

    __slots__ = ("_call", "_host")

    def __init__(self, host: Host, call: Call) -> None:
        self._host = host
        self._call = call

    def resolve(self, result: object) -> None:
        self._host.report(_Finished(self._call, result))

    def reject(self, error: RaftError) -> None:
        self._host.report(_Failed(self._call, error))

    def notify(self) -> None:
        self._host.report(_Woken(self._call))


class Host:
    """One stream machine and those who wait for it."""

    __slots__ = ("_reports", "_requests", "_submitted", "machine", "on_ready", "on_state")

    def __init__(self, machine: StreamMachine, requests: RequestMachine, *, on_ready: Any, on_state: Any = None) -> None:
        self.machine = machine
        #: Opaque here: goes into the ``Wake`` action. For the hub a mapping of watches, see :meth:`_wake`.
        self.on_ready = on_ready
        self.on_state = on_state
        self._requests = requests
        self._submitted: dict[Call, Request] = {}
        self._reports: list[_Report] = []

    def report(self, report: _Report) -> None:
        """Something for the machine, at the next :meth:`settle`."""
        self._reports.append(report)
