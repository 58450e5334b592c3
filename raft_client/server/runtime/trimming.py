"""Up to where nobody needs the log any more, as clients say, and who is told.

A client tells the leader. The leader tells the peers whose connections say that they know Trim; those who connect later
hear it then, and from the next leader, too. A leader that was not reached when it was said hears it from the peers that
follow it, and passes it on. So it is known as long as one peer runs, and a message that is lost costs nothing. What
follows from it is the affair of :mod:`.compaction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raft_client.server.node.roles import Role
from raft_client.wire.client_requests import Outcome, Trim, TrimReply
from raft_client.wire.hello import Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from raft_client.server.machines.state_machine import StateMachine
    from raft_client.server.node.settings import NodeSettings
    from raft_client.server.node.status import NodeStatus

#: Of what the leader tells others, who do not answer it.
_REQUEST_ID: Final = b"\x00trim"


class Trimming:
    """Belongs to the loop's thread."""

    def __init__(
        self, settings: NodeSettings, machine: StateMachine, send: Callable[[str, list[bytes]], object]
    ) -> None:
        """``send`` sends frames to a peer."""
        self._send = send
        self.settings = settings
        #: Whether its log cannot be trimmed: its state machine cannot do without snapshots.
        self.keeps_state: bool = machine.trimmed(0) is None
        self._able: set[str] = set()  # peers whose present connection knows Trim
        #: The entries up to here may go.
        self.index: int = 0

    def asked(self, message: Trim, status: NodeStatus) -> TrimReply | None:
        """A client or a peer says so. None: no answer."""
        if message.sender:
            if message.index > self.index:
                self.index = message.index
                if status.role is Role.LEADER:
                    self.lead()
            return None
        if status.role is not Role.LEADER:
            return TrimReply(Outcome.NOT_LEADER, status.leader_id)
        if self.keeps_state:
            why = "its state machine keeps what entries say: a snapshot of it takes their place (zmqraft snapshot)"
            return TrimReply(Outcome.REFUSED, reason=why)
        if message.index > status.applied_index:
            return TrimReply(Outcome.REFUSED, reason=f"the log ends at {status.applied_index}")
        self.index = max(self.index, message.index)
        self.lead()
        return TrimReply(Outcome.COMMITTED, status.leader_id, self.index)

    def learn(self, peer_id: str, capabilities: Collection[str], leader_id: str | None) -> None:
        """What this peer says of itself, over its present connection."""
        if Capability.TRIM in capabilities:
            self._able.add(peer_id)
            if self.index and leader_id in {peer_id, self.settings.peer_id}:
                self._tell(peer_id)

    def lost(self, peer_id: str) -> None:
        """There may be another program behind the same address."""
        self._able.discard(peer_id)

    def lead(self) -> None:
        """This peer leads now, or has heard something new."""
        for peer_id in sorted(self._able) if self.index else ():
            self._tell(peer_id)

    def follow(self, leader_id: str | None) -> None:
        """Another peer leads now: it may not have heard."""
        if self.index and leader_id in self._able:
            self._tell(leader_id)

    def _tell(self, peer_id: str) -> None:
        message = Trim(self.settings.ident, self.index, self.settings.peer_id)
        self._send(peer_id, [_REQUEST_ID, *message.to_frames()])
