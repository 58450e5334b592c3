"""Watches at a running peer: what its state machine changes comes in, and messages to clients go out."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from raft_client.server.machines.change_history import LEAST_CHANGED_BYTES
from raft_client.server.machines.state_machine import WatchableStateMachine
from raft_client.server.machines.watch_server import WatchServer
from raft_client.server.machines.watch_sessions import WatchServerLimits
from raft_client.wire.log_entry import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raft_client.server.machines.state_machine import Applied, StateMachine
    from raft_client.wire.log_entry import LogEntry
    from raft_client.wire.watch_messages import WatchReply, WatchRequest

#: Where the numbers of sessions of one start begin: another start is not to come near them.
_FIRST_SESSIONS: Final = 2**52
_EMPTY_LOG: Final = Position(0)


class WatchService:
    """``server`` is None if the state machine does not tell its changes: then the peer serves no watches.

    ``replayed`` is the last entry of the log at the start. What the history cannot hold until there is not written
    into it in the first place: the old entries of a long log are applied twice as fast, and nobody can watch them.
    """

    def __init__(
        self, machine: StateMachine, limits: WatchServerLimits | None = None, *, replayed: Position = _EMPTY_LOG
    ) -> None:
        self.server: WatchServer | None = None
        self._changes: list[Applied] = []
        self._term = 0
        limits = limits or WatchServerLimits()
        #: The history begins at this index; or at a later term, if the end of the log is replaced.
        self._skipped_to = max(0, replayed.index - limits.history_bytes // LEAST_CHANGED_BYTES)
        self._replayed_term = replayed.term
        if isinstance(machine, WatchableStateMachine):
            self.server = WatchServer(Position(0), limits, first_session=secrets.randbelow(_FIRST_SESSIONS))
            self._listen = partial(machine.tell_changes, self._changes.append)
            if not self._skipped_to:
                self._listen()

    def request(self, route: bytes, request_id: bytes, message: WatchRequest, now: float) -> bool:
        """Whether it can be served."""
        if self.server is None or self._skipped_to:
            return False
        self.server.request(route, request_id, message, now)
        return True

    def lead(self, *, leads: bool) -> None:
        """Whether the peer leads now."""
        if self.server is not None:
            self.server.leads = leads

    def applied(self, entries: Sequence[LogEntry]) -> None:
        """The state machine has applied these entries: at least one, of all kinds."""
        if self.server is None:
            return
        if self._skipped_to:
            self.restored(entries[-1].position)
            return
        changes = iter(self._changes)
        changed = next(changes, None)
        if changed is None and entries[-1].term == self._term:  # terms only rise
            self.server.applied(entries[-1].index, self._term)
            return
        for entry in entries:
            if changed is not None and changed.index == entry.index:
                self.server.applied(entry.index, entry.term, changed.changes)
                changed = next(changes, None)
            elif entry.term != self._term:
                self.server.applied(entry.index, entry.term)
            self._term = entry.term
        self.server.applied(entries[-1].index, self._term)
        self._changes.clear()

    def restored(self, snapshot: Position) -> None:
        """What the entries up to this position changed is not known: a snapshot took their place, or nobody asks."""
        if self.server is not None:
            self._changes.clear()
            self._term = snapshot.term
            self.server.restored(snapshot)
            if self._skipped_to and (snapshot.index >= self._skipped_to or snapshot.term > self._replayed_term):
                self._skipped_to = 0
                self._listen()

    def turn(self, now: float, send: Callable[[list[bytes]], bool]) -> None:
        """Tell what there is to be told. ``send`` takes the route, the request id and the other frames, or refuses."""
        if self.server is None:
            return
        self.server.turn(now)
        refused: set[bytes] = set()
        latest: WatchReply | None = None
        frames: list[bytes] = []
        for each in self.server.take():
            if each.route in refused:
                continue  # something before it was not sent
            if each.reply is not latest:  # many watches are told the same
                latest, frames = each.reply, each.reply.to_frames()
            if not send([each.route, each.request_id, *frames]):
                refused.add(each.route)
                self.server.refused(each.route)

    def next_deadline(self) -> float | None:
        """When :meth:`turn` has something to do, 0 for at once; None if never."""
        return None if self.server is None else self.server.next_deadline()
