"""Clients that repeat what is not answered, under the same request id, to any peer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs
from peers_audit import Audit
from peers_network import Connection, Frames, Network
from peers_world import WALL_START_S, World

from raft_client.errors import ProtocolError
from raft_client.wire.client_requests import ConfigUpdate, ConfigUpdateReply, Outcome, RequestUpdate, UpdateReply
from raft_client.wire.configuration import Peers
from raft_client.wire.log_entry import LogEntry
from raft_client.wire.request_id import RequestId

__all__ = ["SimulatedClient", "Update"]

_RETRY_S = 0.12
_MAX_SECONDS = 2**32 - 1


@attrs.define(eq=False)
class Update:
    """One update, until its final answer; it may be repeated after that, too."""

    request_id: RequestId
    message: RequestUpdate | ConfigUpdate
    outcome: Outcome | None = None
    index: int | None = None

    @property
    def is_done(self) -> bool:
        return self.outcome is not None


class SimulatedClient:
    """Sends updates, follows hints now and then, and never gives up. Its wall clock is the true one."""

    def __init__(
        self, world: World, network: Network, audit: Audit, name: str, ident: bytes, peers: list[str], wall_rate: float
    ) -> None:
        self._world = world
        self._network = network
        self._audit = audit
        self.name = name
        self._ident = ident
        self._wall_rate = wall_rate
        self._random: Random = world.stream("client", name)
        self._connections: dict[str, Connection] = {
            peer: network.connect(name, peer, lambda frames, peer=peer: self._receive(peer, frames))  # type: ignore[misc]  # a lambda with a default
            for peer in peers
        }
        self.updates: dict[bytes, Update] = {}
        self.leader: str | None = None
        self.checks_expiry = True
        self._count = 0

    # -- what it does --------------------------------------------------------------------------------------------------

    def append(self, peer: str) -> Update:
        self._count += 1
        data = b"%s/%d" % (self.name.encode(), self._count)
        return self._submit(RequestUpdate(self._ident, data), peer)

    def change(self, peers: Peers, peer: str) -> Update:
        self._count += 1
        return self._submit(ConfigUpdate(self._ident, peers), peer)

    def adopt(self, entry: LogEntry) -> None:
        """An update of an earlier life whose answer never came."""
        update = Update(entry.request_id, RequestUpdate(self._ident, entry.data))
        self.updates[entry.request_id.raw] = update
        self._world.after(_RETRY_S * self._random.random(), self._retry, update)

    def repeat(self, peer: str) -> None:
        """Something that it sent before, answered or not."""
        if self.updates:
            self._send(self._random.choice(list(self.updates.values())), peer)

    def repeat_all(self) -> None:
        """All that it ever sent, to every peer."""
        for update in [*self.updates.values()]:
            for peer in self._connections:
                self._send(update, peer)

    def _submit(self, message: RequestUpdate | ConfigUpdate, peer: str) -> Update:
        seconds = int(WALL_START_S + self._wall_rate * self._world.now)
        update = Update(RequestId.derive(self.name, self._count, seconds=min(seconds, _MAX_SECONDS)), message)
        self.updates[update.request_id.raw] = update
        self._send(update, peer)
        self._world.after(_RETRY_S * (1 + self._random.random()), self._retry, update)
        return update

    def _retry(self, update: Update) -> None:
        if not update.is_done:
            anybody = self._random.choice(list(self._connections))
            self._send(update, self.leader if self.leader is not None and self._random.random() < 0.7 else anybody)
            self.leader = None  # until somebody answers: it may be gone
            self._world.after(_RETRY_S * (1 + self._random.random()), self._retry, update)

    def _send(self, update: Update, peer: str) -> None:
        frames = [update.request_id.raw, *update.message.to_frames()]
        if peer in self._connections:
            self._network.request(self._connections[peer], frames)

    # -- what it hears -------------------------------------------------------------------------------------------------

    def _receive(self, peer: str, frames: Frames) -> None:
        update = self.updates.get(frames[0])
        if update is None:
            self._audit.violated(f"wire: {peer} answers {self.name} what nobody asked")
            return
        read: Callable[[Frames], UpdateReply | ConfigUpdateReply] = (
            UpdateReply.from_frames if isinstance(update.message, RequestUpdate) else ConfigUpdateReply.from_frames
        )
        try:
            reply = read(frames[1:])
        except ProtocolError as error:
            self._audit.violated(f"wire: {peer} answers {self.name} what cannot be read: {error}")
            return
        self._take(update, peer, reply)

    def _take(self, update: Update, peer: str, reply: UpdateReply | ConfigUpdateReply) -> None:
        if reply.outcome is Outcome.NOT_LEADER:
            self.leader = reply.leader_id if reply.leader_id in self._connections else None
            return
        if reply.outcome in (Outcome.ACCEPTED, Outcome.BUSY):
            self.leader = peer
            return
        if reply.outcome is Outcome.COMMITTED:
            self.leader = peer
            assert reply.index is not None
            self._audit.acknowledges(update.request_id.raw, reply.index)
        elif reply.outcome is Outcome.EXPIRED and self.checks_expiry:
            self._audit.expires(update.request_id.raw, is_fresh=True)
        update.outcome, update.index = update.outcome or reply.outcome, update.index or reply.index

    @property
    def waiting(self) -> list[Update]:
        return [update for update in self.updates.values() if not update.is_done]
