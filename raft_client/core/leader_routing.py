"""Requests and the leader they go to: who leads, what was sent to it, what waits.

A request that is started goes to the one peer that it names, or to the leader: into the queue, and from there into one
of ``max_in_flight`` slots. Streams need no slot, for they are open as long as their readers like.

A leader is found when one is needed. What was sent to one that is lost goes back into the queue. It is lost when its
link breaks, when it says so, and when it says nothing at all. That one request is not answered, or one stream is told
less than it knows, is no reason to leave: the others have no part in it. Then all peers are asked for their term, and
only one that leads in a later term takes the leader's place (§5.2 of the Raft paper: the former one can commit nothing
any more).

Invariant: what needs a slot goes to a leader in the order of its submission, and after a change of the leader all of it
that has no final answer goes to the new one in that order. Nothing goes to a peer that did not say itself that it
leads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from raft_client.core.connection_state import ConnectionState, StateChanged
from raft_client.core.leader_search import LeaderCheck, LeaderSearch
from raft_client.core.request import Request, about
from raft_client.core.request_actions import Reject
from raft_client.core.request_table import RequestTable
from raft_client.errors import NotLeaderError, ProtocolError, RaftError
from raft_client.wire.cluster_queries import ConfigReply, LogInfoReply, RequestConfig, RequestLogInfo
from raft_client.wire.configuration import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raft_client.wire.configuration import Peers

__all__ = ["LeaderRouting"]

#: While requests pass, the leader is asked for the peers this often (seconds), so that the list never outlives them.
_REFRESH_S: Final = 30.0
#: All peers are asked for their terms no more often than this (seconds), however many requests give reason to.
_CHECK_S: Final = 2.0


class LeaderRouting(RequestTable):
    """The way of requests to the leader and back into the queue. ``now`` is in monotonic seconds.

    :class:`~raft_client.core.deadlines.Deadlines` adds what time does to requests, and
    :class:`~raft_client.core.request_machine.RequestMachine` the calls and their answers. They use :meth:`_start`,
    :meth:`_send`, :meth:`_flush`, :meth:`_finish` and :meth:`_reject` for a request, and :meth:`_need_leader`,
    :meth:`_doubt_leader`, :meth:`_check_leader` and :meth:`_lose_leader` for the leader.
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
        super().__init__(response_timeout)
        self._seeds = tuple(seeds)
        self._window = max_in_flight
        self._who_leads = RequestConfig(ident).to_frames()
        self._which_term = RequestLogInfo(ident).to_frames()
        self._search = LeaderSearch(random=random, response_timeout=response_timeout, grace=election_grace)
        self.is_searching = False
        self._check = LeaderCheck()
        self._checking: set[bytes] = set()  # which of our questions are the check's
        self._check_from = -math.inf  # when the next check may begin
        self._behind: dict[bytes, deque[Request]] = {}  # the same 12-byte id again: waits for the first to finish
        self._queue: deque[Request] = deque()  # to the leader, not sent: what needs a slot
        self._streams: deque[Request] = deque()  # and what needs none
        self._leader: str | None = None
        self._leader_id: str | None = None
        self._doubted_at: float | None = None  # the leader was asked whether it lives; None once it said anything
        self._suspects: set[str] = set()  # leaders that were silent or took nothing, since one last took a request
        self._peers: dict[str, str] = {}
        self._refresh_at = 0.0
        self._closed = False
        self.state = ConnectionState.CONNECTING

    # -- to the leader -------------------------------------------------------------------------------------------------

    def _start(self, request: Request, now: float) -> None:
        if request.target is not None:
            self._send(request, request.target, now)
        else:
            (self._queue if request.call.needs_slot else self._streams).append(request)
            self._need_leader(now)
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Send what waits, as far as there are slots."""
        streams, queue = self._streams, self._queue
        while streams and self._leader is not None:
            request = streams.popleft()
            if not request.is_done:
                self._send_to_leader(request, self._leader, now)
        while queue and queue[0].is_done:
            queue.popleft()
        while queue and self._leader is not None and self._in_flight < self._window:
            request = queue.popleft()
            if not request.is_done:
                self._send_to_leader(request, self._leader, now)

    def _send_to_leader(self, request: Request, url: str, now: float) -> None:
        if request.call.needs_slot:
            request.has_slot = True
            self._in_flight += 1
        self._send(request, url, now)
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESH_S
            self._ask(url, self._who_leads)

    # -- the end of a request ------------------------------------------------------------------------------------------

    def _finish(self, request: Request, now: float) -> None:
        """Take it out of all books, and let what waited for its slot or its id go."""
        request.is_done = True
        behind = self._behind.get(request.request_id) if self._behind else None
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]
            if self._aside:
                self._take_off(request)
            elif request.has_slot:  # the same for every append, at hand
                request.has_slot = False
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

    def _reject(self, request: Request, error: RaftError, now: float, *, refused: bool = False) -> None:
        self._finish(request, now)
        self.actions.append(Reject(request.waiter, about(request, error, refused=refused)))

    def _drop_idle_links(self) -> None:
        """Keep the leader's link, those of requests to one peer, and those of a search or check that is wanted."""
        if self.is_searching and any(r.target is None for r in self._requests.values()):
            return
        self.is_searching = False
        if not self._requests:
            self._checking.clear()
        checked = [url for question, url in self._questions.items() if question in self._checking]
        in_use = {self._leader, *checked, *(r.target for r in self._requests.values())}
        for url in [u for u in self._links if u not in in_use]:
            self._leave(url)

    # -- finding it ----------------------------------------------------------------------------------------------------

    def _need_leader(self, now: float, *, first: str | None = None) -> None:
        if self._leader is None and not self.is_searching:
            self.is_searching = True
            self.stats.searches += 1
            self._search.start(self._known_urls(), now, first=first, suspects=self._suspects)
            self._go_on_searching(now)

    def _known_urls(self) -> list[str]:
        return list(dict.fromkeys((*self._peers.values(), *self._seeds)))

    def _go_on_searching(self, now: float) -> None:
        settled = self._search.fallback(now)
        if settled is not None:
            self._adopt(settled, None, now)
            return
        for url in self._search.hanging(now):
            self._leave(url)
            self._search.lost(url)
        for url in self._search.due(now):
            self._search.asked(url, now)
            self._ask(url, self._who_leads)

    def _question_answered(self, question: bytes, frames: Sequence[bytes], now: float) -> None:
        url = self._questions.pop(question)
        if question in self._checking:
            self._checking.remove(question)
            self._term_answered(url, frames, now)
        else:
            self._config_answered(url, frames, now)

    def _config_answered(self, url: str, frames: Sequence[bytes], now: float) -> None:
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
                self._adopt(settled, reply.leader_id, now)
            else:
                self._search.also(self._peers.values(), now)
                self._go_on_searching(now)

    def _leader_confirmed(self, reply: ConfigReply, now: float) -> None:
        if not reply.is_leader:
            self._lose_leader(now, _deposed(self._leader or "", reply.leader_id), hint=reply.leader_id)
        else:
            self._leader_id = reply.leader_id

    def _learn(self, peers: Peers) -> None:
        self._peers = {peer.id: peer.url for peer in peers}

    def _adopt(self, url: str, leader_id: str | None, now: float) -> None:
        """It says itself that it leads."""
        self.is_searching = False
        self._leader = url
        self._leader_id = leader_id or next((peer for peer, at in self._peers.items() if at == url), None)
        self._doubted_at = None
        self.state = ConnectionState.CONNECTED
        self.actions.append(StateChanged(self.state, leader=Peer(self._leader_id or url, url)))
        self._refresh_at = now + _REFRESH_S
        self._drop_idle_links()
        self._flush(now)

    # -- doubts about it -----------------------------------------------------------------------------------------------

    def _doubt_leader(self, now: float) -> None:
        """A request misses its answer: does the leader say anything at all?"""
        if self._leader is not None and self._doubted_at is None:
            self._doubted_at = now
            self._ask(self._leader, self._who_leads)

    def _check_leader(self, now: float) -> None:
        """It lives, but does not act like the leader: does another one lead, in a later term?"""
        if self._leader is None or now < self._check_from:
            return
        self._check_from = now + _CHECK_S
        self._check.start(self._leader)
        for question in self._checking:  # of the last check: a frozen peer never answers
            self._questions.pop(question, None)
        urls = dict.fromkeys((self._leader, *self._known_urls()))
        self._checking = {self._ask(url, self._which_term) for url in urls}

    def _term_answered(self, url: str, frames: Sequence[bytes], now: float) -> None:
        try:
            better = self._check.answered(url, LogInfoReply.from_frames(frames))
        except ProtocolError:
            return
        if better is not None and self._leader is not None:
            self._suspects.add(self._leader)
            self._give_up_leader(self._leader, _deposed(self._leader, None))
            self._adopt(better, None, now)
            self._ask(better, self._who_leads)  # for its id, and who its peers are
        elif not self._checking:
            self._drop_idle_links()

    # -- losing it -----------------------------------------------------------------------------------------------------

    def _not_leader(self, request: Request, hint: str | None, now: float) -> None:
        if request.target is not None:
            who = f"; it names {hint}" if hint is not None else ""
            error = NotLeaderError(f"{request.target} is not the leader{who}", leader_id=hint)
            self._reject(request, error, now, refused=True)
        else:
            # It said that it leads, or it would not have been asked. Two such peers must not play us like a ball.
            self._suspects.add(request.sent_to or "")
            self._lose_leader(now, _deposed(request.sent_to or "", hint), hint=hint)

    def _lose_leader(self, now: float, why: RaftError, *, hint: str | None = None) -> None:
        """It is gone, or says that it leads no longer. ``hint`` is whom it takes for the leader."""
        assert self._leader is not None  # noqa: S101 - only ever called while there is one
        self._give_up_leader(self._leader, why)
        if self._queue or self._streams:
            # The first recovery of the document, and its second: with and without the name of another leader.
            self._need_leader(now, first=self._peers.get(hint) if hint is not None else None)

    def _give_up_leader(self, url: str, why: RaftError) -> None:
        self._suspend(why)
        self._take_back()
        self._leave(url)

    def _suspend(self, why: RaftError) -> None:
        self._leader = None
        self.state = ConnectionState.SUSPENDED
        self.actions.append(StateChanged(self.state, error=why))

    def _take_back(self) -> None:
        """What was sent to the leader goes back into the queues, in the order of submission; but what stays, stays."""
        mine = [r for r in self._requests.values() if r.target is None and not (r.stays and r.sent_to is not None)]
        for request in mine:
            self._take_off(request)
        for request in self._requests.values():
            self._free_slot(request)
        waiting = [r for r in mine if not r.not_before]
        self._queue = deque(r for r in waiting if r.call.needs_slot)
        self._streams = deque(r for r in waiting if not r.call.needs_slot)


def _deposed(url: str, successor: str | None) -> RaftError:
    who = f"; it names {successor}" if successor is not None else ""
    return NotLeaderError(f"{url} is not the leader any more{who}", leader_id=successor)
