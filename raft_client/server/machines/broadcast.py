"""Live broadcast: what a leader applied, and a heartbeat when it applied nothing.

Source: ØMQ Raft protocol, "BroadcastStateUrl RPC" and "StateBroadcast"; facts §1.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from raft_client.server.machines.state_machine import StateMachine
from raft_client.wire.frames import encode_uint
from raft_client.wire.streams import StateBroadcast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raft_client.wire.log_entry import LogEntry

#: From the last message, whatever it was. CLIENT_HEARTBEAT_INTERVAL is 0.5 s; oftener, a subscriber that wants to know
#: soon can take 0.3 s for silence.
HEARTBEAT_S: Final = 0.1


@attrs.define(eq=False)
class Broadcaster:
    """Makes the messages of one peer's PUB socket. It has something to say only while its peer leads."""

    ident: bytes
    heartbeat_s: float = HEARTBEAT_S
    _term: int | None = attrs.field(default=None, init=False)
    _last_applied: int = attrs.field(default=0, init=False)
    _tell_after: int = attrs.field(default=0, init=False)
    _due_s: float = attrs.field(default=0.0, init=False)

    def lead(self, term: int, last_applied: int, now: float, *, tell_after: int = 0) -> StateBroadcast:
        """The peer has become the leader of ``term``: what to say at once, so that subscribers find the new leader.

        Entries up to the index ``tell_after`` are applied without a word: a peer that starts applies its whole log.
        """
        self._term, self._last_applied, self._tell_after = term, last_applied, tell_after
        return self._heartbeat(term, now)

    def follow(self) -> None:
        """The peer leads no longer."""
        self._term = None

    def restored(self, index: int) -> None:
        """A snapshot of the entries up to ``index`` took their place: nothing is told of them."""
        self._last_applied = index

    def applied(self, entries: Sequence[LogEntry], now: float) -> StateBroadcast | None:
        """What to say of entries, of all kinds, that were just applied; None while the peer does not lead."""
        if entries:
            self._last_applied = entries[-1].index
        if self._term is None or not entries or entries[-1].index <= self._tell_after:
            return None
        told = [entry for entry in entries if entry.index > self._tell_after]
        self._due_s = now + self.heartbeat_s
        return StateBroadcast(self.ident, self._term, self._last_applied, told)

    def tick(self, now: float) -> StateBroadcast | None:
        """A heartbeat if one is due."""
        if self._term is None or now < self._due_s:
            return None
        return self._heartbeat(self._term, now)

    def next_deadline(self) -> float | None:
        """When the next heartbeat is due; None while the peer does not lead."""
        return None if self._term is None else self._due_s

    def _heartbeat(self, term: int, now: float) -> StateBroadcast:
        self._due_s = now + self.heartbeat_s
        return StateBroadcast(self.ident, term, self._last_applied)


@attrs.define(eq=False)
class BroadcastStateMachine(StateMachine):
    """Keeps nothing but the index of what it applied: the log itself is the state, and subscribers read it.

    Its snapshot stands for entries that nobody needs any more: it says up to where they were dropped. (facts §3)
    """

    last_applied: int = 0

    def apply(self, entries: Sequence[LogEntry]) -> None:
        """Remember how far the log was applied."""
        if entries:
            self.last_applied = entries[-1].index

    def snapshot(self) -> Iterator[bytes]:
        """One piece: the index, as an unsigned integer of the protocol."""
        return iter((encode_uint(self.last_applied),))

    def trimmed(self, index: int) -> bytes:
        """As a snapshot of that time would be."""
        return encode_uint(index)

    def restore(self, index: int, pieces: Iterable[bytes]) -> Iterator[None]:
        """Whatever the pieces say: the tools of the Node peers write what they like into them."""
        for _piece in pieces:
            yield
        self.last_applied = index
