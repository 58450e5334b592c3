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

from raft_client.core.leader_search import LeaderCheck, LeaderSearch
from raft_client.core.requests import ConnectionState, Reject, Request, RequestTable, StateChanged, about
from raft_client.errors import ConnectionLostError, NotLeaderError, ProtocolError, RaftError
from raft_client.wire.client_requests import ConfigReply, LogInfoReply, RequestConfig, RequestLogInfo
from raft_client.wire.configuration import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from raft_client.wire.configuration import Peers

#: While requests pass, the leader is asked for the peers this often (seconds), so that the list never outlives them.
_REFRESH_S: Final = 30.0
#: All peers are asked for their terms no more often than this (seconds), however many requests give reason to.
_CHECK_S: Final = 2.0


class LeaderRouting:
    """The way of requests to the leader and back into the queue. ``now`` is in monotonic seconds.

    :class:`~raft_client.core.request_machine.Deadlines` tells it what time does to requests, and
    :class:`~raft_client.core.request_machine.RequestMachine` of calls and their answers: with :meth:`start`,
    :meth:`flush`, :meth:`finish` and :meth:`reject` of a request, and with :meth:`need_leader`, :meth:`doubt_leader`,
    :meth:`check_leader` and :meth:`lose_leader` of the leader.
    """

    def __init__(
        self,
        table: RequestTable,
        seeds: Iterable[str],
        *,
        ident: bytes,
        random: Random,
        election_grace: float,
        max_in_flight: int,
    ) -> None:
        self._table = table
        self._seeds = tuple(seeds)
        self._window = max_in_flight
        self._ident = ident
        self._who_leads = RequestConfig(ident).to_frames()
        self._which_term = RequestLogInfo(ident).to_frames()
        self.search: LeaderSearch = LeaderSearch(
            random=random, response_timeout=table.response_timeout, grace=election_grace
        )
        self.is_searching: bool = False
        self._check = LeaderCheck()
        self._checking: set[bytes] = set()  # which of our questions are the check's
        self._check_from = -math.inf  # when the next check may begin
        self._same_id: dict[bytes, deque[Request]] = {}  # the same 12-byte id again: waits for the first to finish
        self._queue: deque[Request] = deque()  # to the leader, not sent: what needs a slot
        self._streams: deque[Request] = deque()  # and what needs none
        self.leader: str | None = None
        self.leader_id: str | None = None
        self.doubted_at: float | None = None  # the leader was asked whether it lives; None once it said anything
        self.suspects: set[str] = set()  # leaders that were silent or took nothing, since one last took a request
        self.peers: dict[str, str] = {}
        self.refresh_at: float = 0.0
        self.state: ConnectionState = ConnectionState.CONNECTING

    # -- requests that come in -----------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """A new request. It is held back while another one with the same id is under way."""
        table = self._table
        if request.request_id in table.requests:
            self._same_id.setdefault(request.request_id, deque()).append(request)
            return
        table.requests[request.request_id] = request
        if (
            request.target is None
            and self.leader is not None
            and ((not self._queue and table.in_flight < self._window) or not request.call.needs_slot)
        ):
            self._send_to_leader(request, self.leader, now)
        else:
            self.start(request, now)

    def held_back(self) -> list[Request]:
        """Requests that wait for another one with the same id."""
        return [request for queue in self._same_id.values() for request in queue] if self._same_id else []

    def close(self) -> None:
        """The end: nobody leads, and nothing waits."""
        self._table.requests.clear()
        self._same_id.clear()
        self._queue.clear()
        self._streams.clear()
        self.leader = None
        self.state = ConnectionState.CLOSED
        self.is_searching = False

    def forget_all(self) -> None:
        """Begin anew: forget the leader, the search and what waits, until a request is added."""
        self._same_id.clear()
        self._queue.clear()
        self._streams.clear()
        self._checking.clear()
        self.is_searching = False
        self.doubted_at = None
        self.leader = None
        if self.state is ConnectionState.CONNECTED:
            self.suspend(ConnectionLostError("a signal interrupted the client while it was at work"))

    # -- to the leader -------------------------------------------------------------------------------------------------

    def start(self, request: Request, now: float) -> None:
        if request.target is not None:
            self._table.send(request, request.target, now)
        else:
            (self._queue if request.call.needs_slot else self._streams).append(request)
            self.need_leader(now)
            self.flush(now)

    def flush(self, now: float) -> None:
        """Send what waits, as far as there are slots."""
        streams, queue = self._streams, self._queue
        while streams and self.leader is not None:
            request = streams.popleft()
            if not request.is_done:
                self._send_to_leader(request, self.leader, now)
        while queue and queue[0].is_done:
            queue.popleft()
        while queue and self.leader is not None and self._table.in_flight < self._window:
            request = queue.popleft()
            if not request.is_done:
                self._send_to_leader(request, self.leader, now)

    def _send_to_leader(self, request: Request, url: str, now: float) -> None:
        self._table.send(request, url, now)
        if request.call.needs_slot:  # counted last: one that is sent again gives the slot of its former link back first
            request.has_slot = True
            self._table.in_flight += 1
        if now >= self.refresh_at:
            self.refresh_at = now + _REFRESH_S
            self._table.ask(url, self._who_leads)

    # -- the end of a request ------------------------------------------------------------------------------------------

    def finish(self, request: Request, now: float) -> None:
        """Take it out of all books, and let what waited for its slot or its id go."""
        request.is_done = True
        table = self._table
        held_back = self._same_id.get(request.request_id) if self._same_id else None
        if table.requests.get(request.request_id) is request:
            del table.requests[request.request_id]
            if table.aside:
                table.detach(request)
            elif request.has_slot:  # the same for every append, at hand
                request.has_slot = False
                table.in_flight -= 1
            request.sent_to = None
        elif held_back is not None:
            held_back.remove(request)
            return
        if held_back:
            following = held_back.popleft()
            if not held_back:
                del self._same_id[request.request_id]
            table.requests[request.request_id] = following
            self.start(following, now)
        if self._queue:
            self.flush(now)
        if (self.is_searching or len(table.links) > 1) and (request.target is not None or not table.requests):
            self._drop_idle_links()

    def reject(self, request: Request, error: RaftError, now: float, *, refused: bool = False) -> None:
        self.finish(request, now)
        self._table.actions.append(Reject(request.waiter, about(request, error, refused=refused)))

    def _drop_idle_links(self) -> None:
        """Keep the leader's link, those of requests to one peer, and those of a search or check that is wanted."""
        if self.is_searching and any(r.target is None for r in self._table.requests.values()):
            return
        self.is_searching = False
        if not self._table.requests:
            self._checking.clear()
        checked = [url for question, url in self._table.questions.items() if question in self._checking]
        in_use = {self.leader, *checked, *(r.target for r in self._table.requests.values())}
        for url in [u for u in self._table.links if u not in in_use]:
            self._table.leave(url)

    # -- finding it ----------------------------------------------------------------------------------------------------

    def need_leader(self, now: float, *, first: str | None = None) -> None:
        if self.leader is None and not self.is_searching:
            self.is_searching = True
            self._table.stats.searches += 1
            self.search.start(self._known_urls(), now, first=first, suspects=self.suspects)
            self.go_on_searching(now)

    def _known_urls(self) -> list[str]:
        return list(dict.fromkeys((*self.peers.values(), *self._seeds)))

    def go_on_searching(self, now: float) -> None:
        settled = self.search.fallback(now)
        if settled is not None:
            self._adopt(settled, None, now)
            return
        for url in self.search.hanging(now):
            self._table.leave(url)
            self.search.gave_up(url)
        for url in self.search.due(now):
            self.search.asked(url, now)
            self._table.ask(url, self._who_leads)

    def describe_search(self) -> str:
        """What the peers said to the search, and what their silence may mean (ØMQ Raft facts, 1.1)."""
        if not self.search.nobody_answered:
            return str(self.search)
        question = f"{self.search}; is this a ØMQ Raft peer, and is the port the right one?"
        if not self.search.all_are_silent:
            return question
        return (
            f"{question} Peers do not answer a client of another cluster either: check the setting cluster, which is "
            f"{self._ident.decode()!r}"
        )

    def question_answered(self, question: bytes, frames: Sequence[bytes], now: float) -> None:
        url = self._table.questions.pop(question)
        if question in self._checking:
            self._checking.remove(question)
            self._term_answered(url, frames, now)
        else:
            self._config_answered(url, frames, now)

    def _config_answered(self, url: str, frames: Sequence[bytes], now: float) -> None:
        try:
            reply = ConfigReply.from_frames(frames)
        except ProtocolError:
            self.search.unreadable(url)
            return
        if reply.peers:
            self.learn(reply.peers)
        if url == self.leader:
            self._leader_confirmed(reply, now)
        elif self.is_searching:
            settled = self.search.answered(url, reply)
            if settled is not None:
                self._adopt(settled, reply.leader_id, now)
            else:
                self.search.also(self.peers.values(), now)
                self.go_on_searching(now)

    def _leader_confirmed(self, reply: ConfigReply, now: float) -> None:
        if not reply.is_leader:
            self.lose_leader(now, _deposed(self.leader or "", reply.leader_id), hint=reply.leader_id)
        else:
            self.leader_id = reply.leader_id

    def learn(self, peers: Peers) -> None:
        self.peers = {peer.id: peer.url for peer in peers}

    def _adopt(self, url: str, leader_id: str | None, now: float) -> None:
        """It says itself that it leads."""
        self.is_searching = False
        self.leader = url
        self.leader_id = leader_id or next((peer for peer, at in self.peers.items() if at == url), None)
        self.doubted_at = None
        self.state = ConnectionState.CONNECTED
        self._table.actions.append(StateChanged(self.state, leader=Peer(self.leader_id or url, url)))
        self.refresh_at = now + _REFRESH_S
        self._drop_idle_links()
        self.flush(now)

    # -- doubts about it -----------------------------------------------------------------------------------------------

    def doubt_leader(self, now: float) -> None:
        """A request misses its answer: does the leader say anything at all?"""
        if self.leader is not None and self.doubted_at is None:
            self.doubted_at = now
            self._table.ask(self.leader, self._who_leads)

    def check_leader(self, now: float) -> None:
        """It lives, but does not act like the leader: does another one lead, in a later term?"""
        if self.leader is None or now < self._check_from:
            return
        self._check_from = now + _CHECK_S
        self._check.start(self.leader)
        for question in self._checking:  # of the last check: a frozen peer never answers
            self._table.questions.pop(question, None)
        urls = dict.fromkeys((self.leader, *self._known_urls()))
        self._checking = {self._table.ask(url, self._which_term) for url in urls}

    def _term_answered(self, url: str, frames: Sequence[bytes], now: float) -> None:
        try:
            better = self._check.answered(url, LogInfoReply.from_frames(frames))
        except ProtocolError:
            return
        if better is not None and self.leader is not None:
            self.suspects.add(self.leader)
            self._give_up_leader(self.leader, _deposed(self.leader, None))
            self._adopt(better, None, now)
            self._table.ask(better, self._who_leads)  # for its id, and who its peers are
        elif not self._checking:
            self._drop_idle_links()

    # -- losing it -----------------------------------------------------------------------------------------------------

    def not_leader(self, request: Request, hint: str | None, now: float) -> None:
        if request.target is not None:
            who = f"; it names {hint}" if hint is not None else ""
            error = NotLeaderError(f"{request.target} is not the leader{who}", leader_id=hint)
            self.reject(request, error, now, refused=True)
        else:
            # It said that it leads, or it would not have been asked. Two such peers must not send us back and forth.
            self.suspects.add(request.sent_to or "")
            self.lose_leader(now, _deposed(request.sent_to or "", hint), hint=hint)

    def lose_leader(self, now: float, why: RaftError, *, hint: str | None = None) -> None:
        """It is gone, or says that it leads no longer. ``hint`` is whom it takes for the leader."""
        assert self.leader is not None  # noqa: S101 - only ever called while there is one
        self._give_up_leader(self.leader, why)
        if self._queue or self._streams:
            # The first recovery of the document, and its second: with and without the name of another leader.
            self.need_leader(now, first=self.peers.get(hint) if hint is not None else None)

    def _give_up_leader(self, url: str, why: RaftError) -> None:
        self.suspend(why)
        self.take_back()
        self._table.leave(url)

    def suspend(self, why: RaftError) -> None:
        self.leader = None
        self.state = ConnectionState.SUSPENDED
        self._table.actions.append(StateChanged(self.state, error=why))

    def take_back(self) -> None:
        """Put what was sent to the leader back into the queues, in order; what is bound to its link stays there."""
        requests = self._table.requests.values()
        mine = [r for r in requests if r.target is None and not (r.stays and r.sent_to is not None)]
        for request in mine:
            self._table.detach(request)
        for request in requests:
            self._table.free_slot(request)
        waiting = [r for r in mine if not r.not_before]
        self._queue = deque(r for r in waiting if r.call.needs_slot)
        self._streams = deque(r for r in waiting if not r.call.needs_slot)


def _deposed(url: str, successor: str | None) -> RaftError:
    who = f"; it names {successor}" if successor is not None else ""
    return NotLeaderError(f"{url} is not the leader any more{who}", leader_id=successor)
