"""The base class of state machines: four methods, one for those that keep nothing, and one for stale answers.

A peer hands over what is committed, in the order of the log, once, or once more after a crash. A state machine has no
other input, and gives the same answers on every peer: no clock, no randomness, no order of a set.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from raft_client.wire.client_requests import ClientDispatch
    from raft_client.wire.key_changes import Change
    from raft_client.wire.log_entry import LogEntry


class StateMachine(ABC):
    """What to do with entries, and how to carry the result from peer to peer.

    All methods run in the peer's thread, one at a time: a slow one holds up the peer. What they raise ends the peer:
    the others would go on without knowing that this one differs.
    """

    __slots__ = ()

    @abstractmethod
    def apply(self, entries: Sequence[LogEntry]) -> None:
        """Take these entries: consecutive, committed and durable, of all kinds.

        Data that the state machine cannot read has been accepted by the cluster, and every peer has it: pass over it.
        """

    @abstractmethod
    def snapshot(self) -> Iterator[bytes]:
        """The state as it is now, in pieces of any length; together they have at least one byte.

        Entries go on being applied while the pieces are written: they show the state of the call, not a later one.
        A generator is started at once: what stands before its first ``yield`` sees the state of the call, and what it
        reads later must be a copy. There is at most one snapshot at a time; a generator that is not read to its end is
        closed.
        """

    @abstractmethod
    def restore(self, index: int, pieces: Iterable[bytes]) -> Iterator[None] | None:
        """Become what a snapshot of the entries up to ``index`` says; its pieces may be cut otherwise than at first.

        Where that can take longer than some milliseconds, write a generator, with a ``yield`` for each piece: the peer
        goes on with its own work between two steps. It calls no other method of the state machine before the last one.

        Raises ProtocolError when they cannot be read; the state is then as before.
        """

    def trimmed(self, index: int) -> bytes | None:
        """What stands for the entries up to ``index`` when clients need them no more; None if only a snapshot can.

        For a state machine that keeps nothing of what entries say: a snapshot of it can be made of any index. At least
        one byte. :meth:`restore` gets it as it gets a snapshot.
        """
        del index
        return None

    def may_be_stale(self, request: ClientDispatch) -> bool:
        """Whether this message may be answered from what this peer has applied, whatever the leader has.

        Then it is answered at once, by any peer, without a leader too. It is called before :meth:`dispatch`.
        """
        del request
        return False

    def dispatch(self, request: ClientDispatch) -> Sequence[bytes] | None:
        """The frames that answer a message for the state machine; None leaves it unanswered, as Node peers do.

        It is called when everything that was acknowledged before the message came has been applied: what it reads is
        not stale, at the leader or at another peer, unless the message :meth:`may_be_stale`. A message that cannot be
        read raises ProtocolError, which the peer counts and drops. Types of two bytes that begin with ``00`` never get
        here. (Ongaro §6.4; ØMQ Raft protocol, "ClientDispatch RPC")
        """
        del request
        return None


@attrs.frozen
class Applied:
    """What one entry really changed; nothing is told of one that changed nothing, as if a comparison failed."""

    index: int
    changes: tuple[Change, ...]


class WatchableStateMachine(StateMachine):
    """A state machine that has keys and values, and tells what entries do to them: its peers serve watches."""

    __slots__ = ()

    @abstractmethod
    def tell_changes(self, to: Callable[[Applied], None]) -> None:
        """From now on call ``to``, beside others, with each entry that changed something, within :meth:`apply`.

        Restoring a snapshot is not told.
        """
