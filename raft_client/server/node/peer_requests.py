"""The RPCs to the other peers: ids, one at a time, repeated until they are answered.

A question keeps its id when it is repeated, so that its receiver answers a repetition as it did the first one. A reply
with another id is late, and dropped: it says nothing of now. A question is repeated after its time-out
(``NodeSettings.rpc_timeout_s``), because ØMQ says nothing of a message that was lost. (facts §1.1)

Beside a question that is not answered in time, because the disk of its receiver is slow, a leader asks for a *sign of
life*: RequestLogInfo, which every peer answers at once, a Node peer, too.

A connection on which nothing at all comes back is opened anew: TCP repeats what was lost for minutes, and ever more
rarely. So is one to a Node peer whose question is given up (facts §1.1).

Invariant: at most one question to a peer is unanswered, as each AppendEntries, even an empty one, may cut the log of a
Node peer behind ``prev_index`` (facts §1.4).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs

from raft_client.server.node.ready import Ask, Connect, Disconnect, Reconnect
from raft_client.server.node.timing import QUIET_S
from raft_client.wire.client_requests import RequestLogInfo
from raft_client.wire.frames import encode_uint
from raft_client.wire.hello import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_client.server.node.ready import Reply
    from raft_client.server.node.state import NodeState
    from raft_client.wire.configuration import Peer, Peers
    from raft_client.wire.frames import Message

_ID_MASK: Final = 2**24 - 1
#: A connection that owes answers, and is silent for so long, is opened anew.
_SILENT_S: Final = 1.0


@attrs.define(eq=False)
class Question:
    """An RPC that is not answered yet. ``sent_at`` and ``number`` are those of its first sending."""

    request_id: bytes
    message: Message
    timeout_s: float
    sent_at: float
    number: int  # over all peers, ascending
    repeat_at: float
    epoch: int
    job: int = 0  # it leaves when this job of the disk is done
    repeated: bool = False


@attrs.define(eq=False)
class PeerLink:
    """What is known of the connection to one peer."""

    peer: Peer
    last_id: int = 0
    question: Question | None = None
    #: What the other side said that it knows; empty for a Node peer, None as long as it has said nothing.
    capabilities: frozenset[str] | None = None
    #: For how long it gives no vote away when it has heard a leader.
    quiet_s: float = QUIET_S
    #: The id of a RequestLogInfo that is not answered yet.
    life_id: bytes | None = None
    #: When something was sent on it and nothing has come since; None if nothing is owed.
    silent_since: float | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is not a Node peer. One that has said nothing may be."""
        return bool(self.capabilities)


class PeerRequests:
    """The requests to all other peers of the configuration."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._links: dict[str, PeerLink] = {}
        self._number = 0

    def __iter__(self) -> Iterator[PeerLink]:
        return iter(self._links.values())

    def get(self, peer_id: str) -> PeerLink | None:
        """None if it is no peer of the configuration."""
        return self._links.get(peer_id)

    def knows(self, peer_id: str, capability: str) -> bool:
        """Whether a message of this kind may be sent to it."""
        link = self._links.get(peer_id)
        return link is not None and link.capabilities is not None and capability in link.capabilities

    def quiet_s(self, peer_id: str) -> float:
        """Look up how many seconds the peer keeps its vote after it heard a leader; 0.0 if it has not said so."""
        link = self._links.get(peer_id)
        return link.quiet_s if link is not None and self.knows(peer_id, Capability.PRE_VOTE) else 0.0

    @property
    def last_number(self) -> int:
        """Of the question that was asked last."""
        return self._number

    def settle(self, peers: Peers) -> None:
        """Open and close what a new configuration needs."""
        wanted = {peer.id: peer for peer in peers}
        for peer_id in [each for each in self._links if each not in wanted]:
            del self._links[peer_id]
            self._state.outbox.forget_asks(peer_id)
            self._state.send(Disconnect(peer_id))
        for peer in peers:
            link = self._links.get(peer.id)
            if link is None or link.peer != peer:
                self._links[peer.id] = PeerLink(peer)
                self._state.send(Connect(peer))

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, link: PeerLink, message: Message, timeout_s: float, *, durable: bool = False) -> Question:
        """Ask the peer, instead of what was asked before. ``durable``: when all changes up to now are on the disk."""
        self._forget(link)
        self._number += 1
        now = self._state.now
        request_id = self.new_id(link)
        question = Question(request_id, message, timeout_s, now, self._number, now + timeout_s, self._state.epoch)
        link.question = question
        if durable:
            question.job = self._state.send_durable(Ask(link.peer.id, question.request_id, message), up_to=0)
        else:
            self._send(link, request_id, message)
        return question

    def _send(self, link: PeerLink, request_id: bytes, message: Message) -> None:
        if link.silent_since is None:
            link.silent_since = self._state.now
        self._state.send(Ask(link.peer.id, request_id, message))

    def new_id(self, link: PeerLink) -> bytes:
        """1 to 16777215, then 0, and on (ØMQ Raft protocol)."""
        link.last_id = (link.last_id + 1) & _ID_MASK
        return encode_uint(link.last_id)

    def answered(self, reply: Reply) -> tuple[PeerLink, Question] | None:
        """The question that this is the reply to; None if it is late."""
        link = self._links.get(reply.peer_id)
        if link is None:
            return None
        link.silent_since = None
        if link.question is None or link.question.request_id != reply.request_id:
            return None
        question, link.question = link.question, None
        return link, question

    def lives(self, reply: Reply) -> PeerLink | None:
        """The peer that gave a sign of life; None if it was not asked for this one."""
        link = self._links.get(reply.peer_id)
        if link is None or link.life_id != reply.request_id:
            return None
        link.life_id = link.silent_since = None
        return link

    def withdraw(self, link: PeerLink, question: Question) -> None:
        """What this was asked for is over: it is not repeated, and a late answer is none to what is asked next."""
        if self._links.get(link.peer.id) is link and link.question is question:
            self._forget(link)

    def settle_questions(self) -> None:
        """Nobody waits any more for answers to what was asked in another role or term."""
        for link in self._links.values():
            if link.question is not None and link.question.epoch != self._state.epoch:
                self._forget(link)

    def _forget(self, link: PeerLink) -> None:
        if link.question is not None:
            self._state.outbox.forget_asks(link.peer.id)
        if link.question is not None and link.question.repeated and not link.is_ours:
            self._reconnect(link)
        link.question = None

    def _reconnect(self, link: PeerLink) -> None:
        self._state.send(Reconnect(link.peer.id))
        link.capabilities = link.silent_since = link.life_id = None

    def repeat(self) -> None:
        """Send again what is due."""
        for link in self._links.values():
            question = link.question
            if question is None or self._state.now < question.repeat_at:
                continue
            now = self._state.now
            question.repeat_at = now + question.timeout_s
            if not self._state.outbox.is_durable(question.job):
                continue
            if link.silent_since is not None and now >= link.silent_since + _SILENT_S:
                self._reconnect(link)
            question.repeated = True
            self._send(link, question.request_id, question.message)
            if self._state.is_leader:
                link.life_id = link.life_id or self.new_id(link)
                self._send(link, link.life_id, RequestLogInfo(self._state.settings.ident))

    def next_deadline(self) -> float:
        """When :meth:`repeat` has something to do."""
        return min([link.question.repeat_at for link in self._links.values() if link.question], default=math.inf)

    # -- what the shell tells ------------------------------------------------------------------------------------------

    def set_capabilities(self, peer_id: str, capabilities: frozenset[str], quiet_s: float) -> None:
        """The peer has said what it knows; it holds until the connection is lost."""
        link = self._links.get(peer_id)
        if link is not None:
            link.capabilities, link.quiet_s, link.silent_since = capabilities, min(quiet_s, QUIET_S), None

    def lost(self, peer_id: str) -> None:
        """Its connection is gone. A question stays: the next connection repeats it."""
        link = self._links.get(peer_id)
        if link is not None:
            link.capabilities = link.silent_since = link.life_id = None
