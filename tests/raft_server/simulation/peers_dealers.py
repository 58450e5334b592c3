"""The DEALER sockets of a peer, as its shell drives them: connections, the hello on each, reading what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from peers_audit import Audit
from peers_network import Connection, Frames, Network
from peers_world import World

from raft_client.errors import ProtocolError
from raft_client.server.node.ready import Ask, Reply
from raft_client.wire.client_requests import ConfigReply, LogInfoReply, RequestConfig, RequestLogInfo
from raft_client.wire.hello import Hello, hello_in_reply, is_hello
from raft_client.wire.peer_messages import (
    AppendEntries,
    AppendReply,
    InstallSnapshot,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from raft_client.wire.streams import EntriesReply, RequestEntries

__all__ = ["Dealers"]

_REPLIES: Final[dict[type[Any], type[Any]]] = {
    AppendEntries: AppendReply,
    InstallSnapshot: SnapshotReply,
    PreVote: PreVoteReply,
    ReadIndex: ReadIndexReply,
    RequestConfig: ConfigReply,
    RequestEntries: EntriesReply,
    RequestLogInfo: LogInfoReply,
    RequestVote: VoteReply,
    TimeoutNow: TimeoutNowReply,
}
_MAX_REMEMBERED = 64
#: A hello without an answer is said again.
_HELLO_S = 0.05


class Dealers:
    """``hear`` takes a reply, ``learn`` what a peer said that it knows."""

    def __init__(
        self,
        world: World,
        network: Network,
        audit: Audit,
        hello: Hello,
        ident: bytes,
        hear: Callable[[Reply], None],
        learn: Callable[[str, frozenset[str]], None],
    ) -> None:
        assert hello.peer_id is not None
        self._world = world
        self._network = network
        self._audit = audit
        self.hello = hello
        self.name: str = hello.peer_id
        self._ident = ident
        self._hear = hear
        self._learn = learn
        self._connections: dict[str, Connection] = {}
        self._kinds: dict[tuple[str, bytes], type[Any]] = {}  # how what comes back is read
        self._greeted: set[str] = set()

    def connect(self, peer: str) -> None:
        """Anew if there is a connection."""
        self.disconnect(peer)
        connection: Connection = self._network.connect(
            self.name, peer, lambda frames: self._receive(peer, connection, frames)
        )
        self._connections[peer] = connection
        self._greeted.discard(peer)
        self._say_hello(peer, connection)

    def disconnect(self, peer: str) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            self._network.close(connection)

    def close(self) -> None:
        for peer in list(self._connections):
            self.disconnect(peer)

    def is_connected(self, peer: str) -> bool:
        return peer in self._connections

    def ask(self, ask: Ask) -> None:
        connection = self._connections.get(ask.peer_id)
        if connection is None:
            self._audit.violated(f"wire: {self.name} asks {ask.peer_id} without a connection")
            return
        if len(self._kinds) > _MAX_REMEMBERED:
            self._kinds.clear()
        self._kinds[ask.peer_id, ask.request_id] = _REPLIES[type(ask.message)]
        self._network.request(connection, [ask.request_id, *ask.message.to_frames()])

    def _say_hello(self, peer: str, connection: Connection) -> None:
        """Until it is answered, or the connection is another one."""
        if connection is self._connections.get(peer) and peer not in self._greeted:
            frames = RequestLogInfo(self._ident).to_frames()
            self._network.request(connection, [self.hello.to_request_id(), *frames])
            self._world.after(_HELLO_S, self._say_hello, peer, connection)

    def _receive(self, peer: str, connection: Connection, frames: Frames) -> None:
        if connection is not self._connections.get(peer):
            return
        if is_hello(frames[0]):
            hello = hello_in_reply(frames[1:])
            self._greeted.add(peer)
            self._learn(peer, frozenset() if hello is None else frozenset(hello.capabilities))
            return
        kind = self._kinds.get((peer, frames[0]))
        if kind is None:
            return
        try:
            message = kind.from_frames(frames[1:])
        except ProtocolError as error:
            self._audit.violated(f"wire: {self.name} gets an answer of {peer} that cannot be read: {error}")
            return
        if self._world.is_traced:
            self._world.note(self.name, "<=", peer, frames[0].hex(), message)
        self._hear(Reply(peer, frames[0], message))
