"""Requests and the leader they go to: who leads, what was sent to whom, what waits.

``Dispatch`` keeps the books. A request that is started goes to the one peer that it names, or into the queue to the
leader; a leader is found when one is needed, and when it is lost, what it was sent goes back into the queue.

Invariant: requests go to a leader in the order of their submission, and after a change of the leader all that have no
final answer go to the new one in that order. Nothing goes to a peer that did not say itself that it leads.
Invariant: what is not repeatable is sent at most once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Final

from raft_client.core.actions import Action, Connect, Disconnect, Reject, Send
from raft_client.core.leader import LeaderSearch
from raft_client.core.request import Request, RequestStats, about
from raft_client.errors import ConnectionLostError, NotLeaderError, ProtocolError, RaftError
from raft_client.wire.calls import ConfigReply, RequestConfig
from raft_client.wire.frames import encode_uint32

if TYPE_CHECKING:
    from random import Random

    from raft_client.wire.entries import Peers

__all__ = ["Dispatch"]

_MAX_UINT32: Final = 2**32 - 1
#: While requests pass, the leader is asked for the peers this often (seconds), so that the list never outlives them.
_REFRESH_S: Final = 30.0


class Dispatch:
    """The books of all requests, and the way to the leader. ``now`` is in monotonic seconds.

    :class:`~raft_client.core.patience.Patience` adds what time does to requests, and
    :class:`~raft_client.core.requests.RequestMachine` the calls and their answers. They use :meth:`_start`,
    :meth:`_send`, :meth:`_flush`, :meth:`_finish` and :meth:`_reject` for a request, and :meth:`_need_leader`,
    :meth:`_lose_leader` and :meth:`_take_back` for the leader.
    """

    def __init__(
        self,
        seeds: Iterable[str],
        *,
        ident: bytes,
        random: Random,
        response_timeout: float = 0.5,
        election_grace: float = 0.3,
        max_in_flight: int = 256,
    ) -> None:
        self._seeds = tuple(seeds)
        self._response_timeout = response_timeout
        self._window = max_in_flight
        self._ask_frames = RequestConfig(ident).to_frames()
        self._search = LeaderSearch(random=random, response_timeout=response_timeout, grace=election_grace)
        self.is_searching = False
        #: What is to be done and was not taken by :meth:`take_actions`. To be looked at, not to be changed.
        self.actions: list[Action] = []
        self._numbers = count(1)
        self._links: set[str] = set()
        self._requests: dict[bytes, Request] = {}  # in the order of submission
        self._behind: dict[bytes, deque[Request]] = {}  # the same 12-byte id again: waits for the first to finish
        self._queue: deque[Request] = deque()  # to the leader, not sent
        self._in_flight = 0  # to the leader, sent
        self._asked: dict[bytes, str] = {}  # our own RequestConfig -> URL
        self._leader: str | None = None
        self._leader_id: str | None = None
        self._leader_heard_at = -math.inf
        self._suspects: set[str] = set()  # leaders that were silent or took nothing, since one last took a request
        self._peers: dict[str, str] = {}
        #: The earliest moment at which a request may need attention, in monotonic seconds; a shell that has a timer for
        #: then, and is told of no search, need not ask for :meth:`next_deadline`. To be looked at, not to be changed.
        self.check_at = math.inf
        self._refresh_at = 0.0
        self._closed = False
        self.stats = RequestStats()

    # -- sending -------------------------------------------------------------------------------------------------------

    def _start(self, request: Request, now: float) -> None:
        if request.target is not None:
            self._send(request, request.target, now)
        else:
            self._queue.append(request)
            self._need_leader(now)
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Send what waits, as far as the window allows."""
        queue = self._queue
        while queue and queue[0].is_done:
            queue.popleft()
        while queue and self._leader is not None and self._in_flight < self._window:
            request = queue.popleft()
            if not request.is_done:
                self._send_to_leader(request, self._leader, now)

    def _send_to_leader(self, request: Request, url: str, now: float) -> None:
        self._in_flight += 1
        self._send(request, url, now)
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_S
            self._ask(url)

    def _send(self, request: Request, url: str, now: float) -> None:
        if request.was_sent:
            self._send_again(request)
        request.was_sent = True
        request.sent_to = url
        request.heard_at = now
        if url not in self._links:
            self._connect(url)
        self.actions.append(Send(url, [request.request_id, *request.call.frames()]))
        silent_at = now + self._response_timeout * request.patience
        if silent_at < self.check_at:
            self.check_at = silent_at

    def _send_again(self, request: Request) -> None:
        self.stats.repeated += 1
        request.pause_error = None
        if request.call.request_id is None:
            self._renumber(request)

    def _tell(self, request: Request, last: list[bytes] | None) -> None:
        """The last word of a conversation. No answer is due to it."""
        if last is not None and request.sent_to is not None:
            self.actions.append(Send(request.sent_to, [request.request_id, *last]))

    def _renumber(self, request: Request) -> None:
        """An answer to the first question must not be taken for one to the second."""
        del self._requests[request.request_id]
        request.request_id = self._new_id()
        self._requests[request.request_id] = request

    def _new_id(self) -> bytes:
        number = next(self._numbers)
        if number == _MAX_UINT32:
            self._numbers = count(1)
        frame = encode_uint32(number)
        return self._new_id() if frame in self._requests or frame in self._asked else frame

    def _connect(self, url: str) -> None:
        if url not in self._links:
            self._links.add(url)
            self.actions.append(Connect(url))

    def _disconnect(self, url: str) -> None:
        if url in self._links:
            self._links.remove(url)
            self.actions.append(Disconnect(url))
            self._asked = {i: u for i, u in self._asked.items() if u != url}

    # -- the end of a request ------------------------------------------------------------------------------------------

    def _finish(self, request: Request, now: float) -> None:
        """Take it out of all books, and let what waited for its room or its id go."""
        request.is_done = True
        behind = self._behind.get(request.request_id) if self._behind else None
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]
            if request.sent_to is not None and request.target is None:
                self._in_flight -= 1
            request.sent_to = None
        elif behind is not None:
            behind.remove(request)
            return
        if behind:
            following = behind.popleft()
            if not behind:
                del self._behind[request.request_id]
            self._requests[request.request_id] = following
            self._start(following, now)
        if self._queue:
            self._flush(now)
        if (self.is_searching or len(self._links) > 1) and (request.target is not None or not self._requests):
            self._drop_idle_links()

    def _reject(self, request: Request, error: RaftError, now: float) -> None:
        if isinstance(error, ConnectionLostError):
            error.may_have_been_applied = request.call.changes
        self._finish(request, now)
        self.actions.append(Reject(request.waiter, about(request, error)))

    def _drop_idle_links(self) -> None:
        """Keep the leader's link, those of requests to one peer, and those of a search that somebody waits for."""
        if self.is_searching and any(r.target is None for r in self._requests.values()):
            return
        self.is_searching = False
        in_use = {r.target for r in self._requests.values()}
        for url in [u for u in self._links if u != self._leader and u not in in_use]:
            self._disconnect(url)

    # -- the leader ----------------------------------------------------------------------------------------------------

    def _need_leader(self, now: float, *, first: str | None = None) -> None:
        if self._leader is None and not self.is_searching:
            self.is_searching = True
            self.stats.searches += 1
            urls = dict.fromkeys((*self._peers.values(), *self._seeds))
            self._search.start(urls, now, first=first, suspects=self._suspects)
            self._go_on_searching(now)

    def _go_on_searching(self, now: float) -> None:
        settled = self._search.fallback(now)
        if settled is not None:
            self._adopt(settled, now)
            return
        for url in self._search.hanging(now):
            self._disconnect(url)
            self._search.lost(url)
        for url in self._search.due(now):
            self._search.asked(url, now)
            self._ask(url)

    def _ask(self, url: str) -> None:
        self._connect(url)
        request_id = self._new_id()
        self._asked[request_id] = url
        self.actions.append(Send(url, [request_id, *self._ask_frames]))

    def _config_answered(self, url: str, frames: list[bytes], now: float) -> None:
        try:
            reply = ConfigReply.from_frames(frames)
        except ProtocolError:
            self._search.unreadable(url)
            return
        if reply.peers:
            self._learn(reply.peers)
        if url == self._leader:
            self._leader_confirmed(reply, now)
        elif self.is_searching:
            settled = self._search.answered(url, reply)
            if settled is not None:
                self._leader_id = reply.leader_id
                self._adopt(settled, now)
            else:
                self._search.also(self._peers.values(), now)
                self._go_on_searching(now)

    def _leader_confirmed(self, reply: ConfigReply, now: float) -> None:
        if not reply.is_leader:
            self._lose_leader(now, hint=reply.leader_id)
        else:
            self._leader_id = reply.leader_id

    def _learn(self, peers: Peers) -> None:
        self._peers = {peer.id: peer.url for peer in peers}

    def _adopt(self, url: str, now: float) -> None:
        """It says itself that it leads."""
        self.is_searching = False
        self._leader = url
        self._refresh_at = now + _REFRESH_S
        self._leader_heard_at = now
        self._drop_idle_links()
        self._flush(now)

    def _not_leader(self, request: Request, hint: str | None, now: float) -> None:
        if request.target is not None:
            who = f"; it names {hint}" if hint is not None else ""
            self._reject(request, NotLeaderError(f"{request.target} is not the leader{who}", leader_id=hint), now)
        else:
            # It said that it leads, or it would not have been asked. Two such peers must not play us like a ball.
            self._suspects.add(request.sent_to or "")
            self._lose_leader(now, hint=hint)

    def _lose_leader(self, now: float, *, hint: str | None = None) -> None:
        """It is gone, or says that it leads no longer. ``hint`` is whom it takes for the leader."""
        old = self._leader
        assert old is not None  # noqa: S101 - only ever called while there is one
        self._leader = None
        self._disconnect(old)
        self._take_back(now)
        if self._queue:
            # The first recovery of the document, and its second: with and without the name of another leader.
            self._need_leader(now, first=self._peers.get(hint) if hint is not None else None)

    def _take_back(self, now: float) -> None:
        """What was sent to the leader goes back into the queue, in the order of submission."""
        self._in_flight = 0
        mine = [r for r in self._requests.values() if r.target is None]
        for request in mine:
            if request.sent_to is not None and not request.call.repeatable:
                request.sent_to = None
                self._reject(request, ConnectionLostError("the leader was lost before the answer came"), now)
            else:
                request.sent_to = None
        self._queue = deque(r for r in mine if not r.is_done and not r.not_before)
