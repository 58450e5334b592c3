"""What a peer does about leases of keys beside its state machine: its clock ends them, and it knows who knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raft_client.codecs import KeyValueCodec
from raft_client.server.machines.key_value import KeyValueStateMachine
from raft_client.server.machines.leases import LeaseClock
from raft_client.server.node.quorum import member_peers
from raft_client.wire.hello import Capability
from raft_client.wire.key_value_messages import LeasesReply

if TYPE_CHECKING:
    from collections.abc import Container

    from raft_client.server.machines.state_machine import StateMachine
    from raft_client.wire.configuration import ConfigChange


class LeaseKeeper:
    """Keeps the leases of a key/value machine, and does nothing for other ones. ``now`` is monotonic seconds."""

    def __init__(self, machine: StateMachine, peer_id: str) -> None:
        self._machine = machine if isinstance(machine, KeyValueStateMachine) else None
        self._clock = None if self._machine is None else LeaseClock(self._machine.leases)
        #: Whether peers that have said what they know, on their last connection, know leases.
        self._aware = {peer_id: True}
        #: Whether there was a lease already: then all members knew them.
        self._is_used = False

    @property
    def has_leases(self) -> bool:
        """Whether the state machine knows leases."""
        return self._clock is not None

    def learn(self, peer_id: str, capabilities: Container[str]) -> None:
        """Note what a peer has said in its hello. It counts while that peer is away, too."""
        self._aware[peer_id] = Capability.LEASES in capabilities

    def support(self, configuration: ConfigChange) -> LeasesReply:
        """Answer whether leases may be granted: an entry about leases means nothing to a member that knows none."""
        members = [] if self._is_used else [peer.id for peer in member_peers(configuration)]
        unaware = tuple(name for name in members if self._aware.get(name) is False)
        return LeasesReply(unaware, tuple(name for name in members if name not in self._aware))

    def lead(self, now: float) -> None:
        """The peer leads now."""
        if self._clock is not None:
            self._clock.lead(now)

    def follow(self) -> None:
        """The peer leads no longer."""
        if self._clock is not None:
            self._clock.follow()

    def applied(self, now: float) -> None:
        """The state machine has applied entries."""
        if self._machine is not None and self._clock is not None:
            self._is_used = self._is_used or bool(self._machine.leases)
            self._clock.applied(now)

    def restored(self, now: float) -> None:
        """The state machine was restored from a snapshot."""
        if self._machine is not None and self._clock is not None:
            self._is_used = self._is_used or bool(self._machine.leases)
            self._clock.restored(self._machine.leases, now)

    def due(self, now: float) -> list[bytes]:
        """Return the data of entries that are to be appended now."""
        return [] if self._clock is None else [KeyValueCodec.encode_lease(end) for end in self._clock.due(now)]

    def next_deadline(self) -> float | None:
        """Return when :meth:`due` has something to say; None if never."""
        return None if self._clock is None else self._clock.next_deadline()
