"""What clients must find whatever happens to the servers, and what may be in the log."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
from replicas_snapshot_audit import SnapshotAudit

from statestore_client.server.cluster.entries import Assembly, BatchPiece, Claim, Part, Snapshot, unpack_batch
from statestore_client.server.cluster.fence import Fence, Verdict

if TYPE_CHECKING:
    from replicas_world import SimulatedLog, World

    from statestore_client.server.cluster.entries import LogEntry

#: A client that is back by then has not been given up. The constant is five seconds; clients need a moment.
_GRACE_S = 4.8


@attrs.define(eq=False)
class LostWill:
    """Of one connection that a client has had. ``ended_by``: "server" means that a server ended it by being gone."""

    connected_at: float
    ended_at: float | None = None
    ended_by: str = ""
    back_at: float | None = None
    #: The client has tried to come back.
    is_followed: bool = False


class MachineAudit:
    """Knows all, and tells nobody but the test."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.log: SimulatedLog
        self.fence = Fence()
        self._snapshots = SnapshotAudit(world)
        self._assembly = Assembly()
        self._promotions: list[float] = []
        self._spoken_epoch = 0
        # messages of QoS 2
        self.sent = 0
        self._delivered: list[int] = []
        # wills
        self.wills: dict[str, LostWill] = {}
        self._wills_seen: Counter[str] = Counter()
        # keys
        self._versions: dict[bytes, str] = {}
        self.greatest_version = ""

    def complain(self, text: str) -> None:
        """Something that must hold does not."""
        self._world.complain(text)

    # -- the log -------------------------------------------------------------------------------------------------------

    def appended(self, index: int, entry: LogEntry) -> None:
        """An entry is in the log, for good."""
        is_valid = self.fence.receive(index, entry) is Verdict.VALID
        body = entry.body
        if not is_valid:
            return
        if isinstance(body, Claim):
            self._assembly.clear()
        elif isinstance(body, BatchPiece):
            data = self._assembly.add(body.data, is_last=body.is_last)
            if data is not None:
                self._snapshots.changed(index, unpack_batch(data))
        elif isinstance(body, Snapshot | Part):
            self._snapshots.receive(index, body)

    def promoted(self, name: str, epoch: int) -> None:
        """A server is active."""
        self._world.note(f"{name} {epoch}".encode())
        self._promotions.append(self._world.now)

    def speaks(self, name: str, epoch: int, *, is_confirmed: bool) -> None:
        """A server says something to a client, other than goodbye; without a lease only what the log has confirmed."""
        if epoch < self._spoken_epoch and not is_confirmed:
            self.complain(f"{name} speaks in epoch {epoch}, when the owner of {self._spoken_epoch} has spoken")
        self._spoken_epoch = max(epoch, self._spoken_epoch)

    @property
    def epochs(self) -> int:
        """How many servers were active, one after the other."""
        return len(self._promotions)

    # -- messages ------------------------------------------------------------------------------------------------------

    def delivered(self, number: int) -> None:
        """The subscriber has a message that it did not have in this exchange."""
        self._world.note(b"%d" % number)
        if self._delivered and number <= self._delivered[-1]:
            self.complain(f"message {number} of QoS 2 comes after {self._delivered[-1]}")
        elif number != len(self._delivered) + 1:
            self.complain(f"message {number} of QoS 2 comes, and {len(self._delivered) + 1} was lost")
        self._delivered.append(number)

    # -- wills ---------------------------------------------------------------------------------------------------------

    def will(self, name: str) -> None:
        """Somebody was told that this connection is lost."""
        self._world.note(name.encode())
        self._wills_seen[name] += 1
        if self._wills_seen[name] > 1:
            self.complain(f"the will {name} is sent twice")
        will = self.wills[name]
        if will.ended_at is None:
            self.complain(f"the will {name} is sent, and its client is there")

    def came_back(self, will: LostWill) -> bool:
        """Whether servers were gone, and the client was back in the time that it is given after each."""
        if will.ended_by != "server" or will.ended_at is None or will.back_at is None:
            return False
        after = [at for at in self._promotions if will.connected_at < at < will.back_at]
        moments = [*after, will.back_at]
        return bool(after) and all(b - a < _GRACE_S for a, b in pairwise(moments))

    # -- keys ----------------------------------------------------------------------------------------------------------

    def written(self, request: bytes, version: str, greatest_before: str) -> None:
        """A client is told the version of its write."""
        self._world.note(version.encode())
        if self._versions.setdefault(request, version) != version:
            self.complain(f"the request {request!r} is answered in two ways")
        if version <= greatest_before:
            self.complain(f"the version {version} is not greater than {greatest_before}, which was told before")
        self.greatest_version = max(self.greatest_version, version)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All is calm, and has been for long."""
        if len(self._delivered) != self.sent:
            self.complain(f"{self.sent} messages of QoS 2 were sent, {len(self._delivered)} have come")
        for name, will in self.wills.items():
            seen = self._wills_seen[name]
            if seen and self.came_back(will):
                self.complain(f"the will {name} is sent, though its client was back in time")
            if will.ended_by == "client" and not will.is_followed and not seen:
                self.complain(f"the will {name} is not sent, and its client is gone for good")
