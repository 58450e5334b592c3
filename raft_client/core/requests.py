"""Requests to a cluster that changes under them: who leads, what was sent to whom, what has to be sent again.

Life of a request to the leader (ØMQ Raft protocol, "broken known leader state" and its two recoveries)::

    QUEUED --leader known, room--> SENT --accepted--> SENT --final answer--> DONE
      ^                              |
      +------------------------------+  "not the leader", the link broke, or silence: search the leader, send again

A request keeps its 12-byte id however often it is sent; the log takes it once.

Invariant: a waiter is answered exactly once.
Invariant: requests go to a leader in the order of their submission, and after a change of the leader all that have no
final answer go to the new one in that order. Nothing goes to a peer that did not say itself that it leads.
Invariant: what is not repeatable is sent at most once.
Invariant: without requests nothing is asked and no time passes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from raft_client.core.actions import Action, Connect, Disconnect, Reject, Resolve, Send, Wake
from raft_client.core.calls import (
    ACCEPTED,
    Again,
    Append,
    Call,
    Failed,
    Finished,
    FollowUps,
    NotLeader,
    Retry,
    UpdatePeers,
)
from raft_client.core.leader import LeaderSearch
from raft_client.core.request import Request, RequestStats, about
from raft_client.core.results import ClusterConfig
from raft_client.errors import (
    ClientClosedError,
    ConnectionLostError,
    NoLeaderError,
    NotLeaderError,
    ProtocolError,
    RaftError,
    RequestTimeoutError,
)
from raft_client.wire.frames import encode_uint32
from raft_client.wire.messages import ConfigReply, RequestConfig

if TYPE_CHECKING:
    from random import Random

    from raft_client.wire.entries import Peers

__all__ = ["RequestMachine"]

_MAX_UINT32: Final = 2**32 - 1
_ID_BYTES: Final = 12
#: While requests pass, the leader is asked for the peers this often (seconds), so that the list never outlives them.
_REFRESH_S: Final = 30.0
#: A busy peer's silence is borne twice as long each time, up to so many response time-outs.
_MAX_PATIENCE: Final = 8.0
#: Before a lost link to one peer that was asked by name is made again (seconds).
_RECONNECT_S: Final = 0.1


class RequestMachine:
    """Everything that a client decides about requests. No clock, no sockets: ``now`` is in monotonic seconds.

    Drive it with :meth:`received`, :meth:`link_lost` and :meth:`tick` at :meth:`next_deadline`; after each, carry out
    :meth:`take_actions`.
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
        self._searching = False
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
        self._check_at = math.inf  # the earliest moment at which a request may need attention
        self._refresh_at = 0.0
        self._closed = False
        self.stats = RequestStats()

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def leader_url(self) -> str | None:
        """The peer to which requests go now; None while there is none."""
        return self._leader

    @property
    def leader_id(self) -> str | None:
        """The id of that peer, once it is known."""
        return self._leader_id if self._leader is not None else None

    @property
    def peers(self) -> Mapping[str, str]:
        """Id -> URL of the members, as the cluster last reported them."""
        return self._peers

    @property
    def pending(self) -> int:
        """Requests without a final answer."""
        return len(self._requests) + sum(map(len, self._behind.values()))

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(
        self, call: Call, waiter: Any, now: float, *, timeout: float | None, target: str | None = None
    ) -> Request:
        """Take a call to the leader, or to the peer at the URL ``target``. Without ``timeout`` it never gives up."""
        if self._closed:
            raise ClientClosedError
        deadline = math.inf if timeout is None else now + timeout
        request_id = call.request_id or self._new_id()
        request = Request(call, waiter, request_id, deadline, timeout, target)
        self.stats.requests += 1
        if deadline < self._check_at:
            self._check_at = deadline
        if request_id in self._requests:
            self._behind.setdefault(request_id, deque()).append(request)
            return request
        self._requests[request_id] = request
        if target is None and not self._queue and self._leader is not None and self._in_flight < self._window:
            self._send_to_leader(request, self._leader, now)
        else:
            self._start(request, now)
        return request

    def follow_up(self, request: Request, frames: list[bytes], now: float) -> None:
        """More of the same conversation, when its reader has made room. Dropped when the link is another one by now."""
        if request.sent_to is not None and not request.is_done:
            request.heard_at = now
            self.actions.append(Send(request.sent_to, [request.request_id, *frames]))
            self._check_at = min(self._check_at, now + self._response_timeout * request.patience)

    def again(self, request: Request, last: list[bytes] | None, now: float) -> None:
        """The reader wants it anew, on the same link: ``last`` under the old id, the call's frames under a new one."""
        if request.sent_to is not None and not request.is_done:
            self._tell(request, last)
            self._send(request, request.sent_to, now)

    def set_timeout(self, request: Request, timeout: float | None, now: float) -> None:
        """A new deadline, ``timeout`` seconds from now: the reader of a stream waits, or (None) has something to do."""
        request.timeout = timeout
        request.deadline = math.inf if timeout is None else now + timeout
        if request.deadline < self._check_at:
            self._check_at = request.deadline

    def cancel(self, request: Request, now: float, *, last: list[bytes] | None = None) -> None:
        """Forget a request; ``last`` tells the peer so, if it was sent there."""
        if request.is_done:
            return
        self._tell(request, last)
        self._finish(request, now)

    def cancel_all(self, is_waiter: Callable[[Any], bool], now: float) -> None:
        """As :meth:`cancel`, for every request whose waiter is of the given kind."""
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*behind, *self._requests.values()]:
            if is_waiter(request.waiter):
                self.cancel(request, now)

    def check_open(self) -> None:
        """Raises ClientClosedError after :meth:`close`."""
        if self._closed:
            raise ClientClosedError

    def close(self) -> None:
        """The end: every waiter gets an error."""
        if self._closed:
            return
        self._closed = True
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            unknown = request.was_sent and request.call.changes
            error = ClientClosedError("the client was closed before the answer came", may_have_been_applied=unknown)
            self.actions.append(Reject(request.waiter, about(request, error)))
            request.is_done = True
        self._requests.clear()
        self._behind.clear()
        self._queue.clear()
        for url in list(self._links):
            self._disconnect(url)
        self._leader = None
        self._searching = False
        self._check_at = math.inf

    # -- what the shell reports ----------------------------------------------------------------------------------------

    def received(self, url: str, frames: list[bytes], now: float) -> None:
        """A message on the link to ``url``."""
        if url == self._leader:
            self._leader_heard_at = now
        request = self._requests.get(frames[0])
        if request is None:
            asked = self._asked.pop(frames[0], None)
            if asked is not None:
                self._config_answered(asked, frames[1:], now)
            else:
                self.stats.stale_answers += 1
        elif request.sent_to == url:
            self._answered(request, frames[1:], now)
        else:
            self._answered_late(request, frames[1:], now)

    def link_lost(self, url: str, now: float) -> None:
        """The link to ``url`` failed or broke."""
        if url not in self._links:
            return
        self._disconnect(url)
        self._search.lost(url)
        if url == self._leader:
            self._lose_leader(now)
        for request in [r for r in self._requests.values() if r.target == url and r.sent_to == url]:
            request.sent_to = None
            request.not_before = now + _RECONNECT_S
            if request.call.repeatable:
                self._check_at = min(self._check_at, request.not_before)
            else:
                self._reject(request, ConnectionLostError("the link broke before the answer came"), now)

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        if not self._requests:
            return None
        deadline = min(self._check_at, self._search.next_deadline()) if self._searching else self._check_at
        return None if deadline == math.inf else deadline

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self._check_at:
            self._check(now)
        if self._searching:
            self._go_on_searching(now)

    def emit(self, action: Action) -> None:
        """An action of somebody else, in its place among ours."""
        self.actions.append(action)

    def take_actions(self) -> list[Action]:
        """What to do now, in this order."""
        actions, self.actions = self.actions, []
        return actions

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
        if silent_at < self._check_at:
            self._check_at = silent_at

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

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answered(self, request: Request, frames: list[bytes], now: float) -> None:
        try:
            verdict = request.call.receive(frames)
        except RaftError as error:
            self._unreadable(request, error, now)
            return
        if self._suspects and (verdict is ACCEPTED or type(verdict) in (Finished, FollowUps)) and not request.target:
            self._suspects.clear()
        if verdict is ACCEPTED:
            request.heard_at = now
            request.patience = 1.0
        elif type(verdict) is Finished:
            if verdict.last is not None:
                self._tell(request, verdict.last)
            self._finish(request, now)
            if type(request.call) is not Append:
                self._learn_from(request.call, verdict.result)
            self.actions.append(Resolve(request.waiter, verdict.result))
        elif type(verdict) is FollowUps:
            request.heard_at = now
            request.patience = 1.0
            self._carry_on(request, verdict)
        elif type(verdict) is NotLeader:
            self._not_leader(request, verdict.leader_id, now)
        elif type(verdict) is Failed:
            self._tell(request, verdict.last)
            self._reject(request, verdict.error, now)
        elif type(verdict) is Again:
            self.again(request, verdict.last, now)
        elif type(verdict) is Retry:
            self._pause(request, verdict, now)

    def _answered_late(self, request: Request, frames: list[bytes], now: float) -> None:
        """From a peer that was given up since. A committed entry is committed, whoever says so; the rest is stale."""
        if len(request.request_id) == _ID_BYTES:
            try:
                verdict = request.call.receive(frames)
            except RaftError as error:
                self._unreadable(request, error, now)
                return
            if type(verdict) is Finished:
                self._finish(request, now)
                self.actions.append(Resolve(request.waiter, verdict.result))
                return
        self.stats.stale_answers += 1

    def _unreadable(self, request: Request, error: RaftError, now: float) -> None:
        """Nobody can tell what became of a change."""
        error.may_have_been_applied = request.call.changes
        self._reject(request, error, now)

    def _carry_on(self, request: Request, verdict: FollowUps) -> None:
        if request.sent_to is not None:
            for frames in verdict.frames:
                self.actions.append(Send(request.sent_to, [request.request_id, *frames]))
        if verdict.wake:
            self.actions.append(Wake(request.waiter))

    def _learn_from(self, call: Call, result: object) -> None:
        if isinstance(result, ClusterConfig):
            self._leader_id = result.leader_id
            self._learn(result.peers)
        elif isinstance(call, UpdatePeers):
            self._refresh_at = 0.0

    def _pause(self, request: Request, verdict: Retry, now: float) -> None:
        if request.target is None:
            self._in_flight -= 1
        request.sent_to = None
        request.not_before = now + verdict.after_s
        request.pause_error = verdict.error
        self._check_at = min(self._check_at, request.not_before)
        self._flush(now)

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
        if (self._searching or len(self._links) > 1) and (request.target is not None or not self._requests):
            self._drop_idle_links()

    def _reject(self, request: Request, error: RaftError, now: float) -> None:
        if isinstance(error, ConnectionLostError):
            error.may_have_been_applied = request.call.changes
        self._finish(request, now)
        self.actions.append(Reject(request.waiter, about(request, error)))

    def _drop_idle_links(self) -> None:
        """Keep the leader's link, those of requests to one peer, and those of a search that somebody waits for."""
        if self._searching and any(r.target is None for r in self._requests.values()):
            return
        self._searching = False
        in_use = {r.target for r in self._requests.values()}
        for url in [u for u in self._links if u != self._leader and u not in in_use]:
            self._disconnect(url)

    # -- the leader ----------------------------------------------------------------------------------------------------

    def _need_leader(self, now: float, *, first: str | None = None) -> None:
        if self._leader is None and not self._searching:
            self._searching = True
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
        elif self._searching:
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
        self._searching = False
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

    # -- time ----------------------------------------------------------------------------------------------------------

    def _check(self, now: float) -> None:
        """Look at every request: deadlines, silence, pauses. As rare as the shortest of these times."""
        self._check_at = math.inf
        silent = []
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            if request.is_done:
                continue
            if request.deadline <= now:
                self._expire(request, now)
            elif request.sent_to is not None:
                if self._is_silent(request, now):
                    silent.append(request)
            elif request.not_before > 0.0 and now >= request.not_before:
                self._resume(request, now)
        if silent:
            self._bear_or_search(silent, now)
        behind = [r for queue in self._behind.values() for r in queue]
        for request in [*self._requests.values(), *behind]:
            self._check_at = min(self._check_at, request.deadline, self._attention_at(request))

    def _attention_at(self, request: Request) -> float:
        if request.sent_to is not None:
            if request.call.paused or not request.call.repeatable:
                return math.inf
            return request.heard_at + self._response_timeout * request.patience
        return request.not_before or math.inf

    def _is_silent(self, request: Request, now: float) -> bool:
        return now >= self._attention_at(request)

    def _resume(self, request: Request, now: float) -> None:
        """Its pause is over."""
        request.not_before = 0.0
        if request.target is not None:
            self._send(request, request.target, now)
        else:
            self._queue.append(request)
            self._need_leader(now)
            self._flush(now)

    def _bear_or_search(self, silent: list[Request], now: float) -> None:
        """A leader that answered others since is alive, and only the one answer was lost; else it is not to be trusted.

        The link to a silent leader stays: if it was merely slow, its answers to what it was asked still count.
        """
        for request in silent:
            request.patience = min(_MAX_PATIENCE, 2.0 * request.patience)
        to_leader = [r for r in silent if r.target is None]
        for request in silent:
            if request.target is not None:
                self._send(request, request.target, now)
        if not to_leader or self._leader is None:
            return
        if self._leader_heard_at > min(r.heard_at for r in to_leader):
            for request in to_leader:
                self._send(request, self._leader, now)
            return
        self._suspects.add(self._leader)
        self._leader = None
        self._take_back(now)
        self._need_leader(now)

    def _expire(self, request: Request, now: float) -> None:
        self._finish(request, now)
        self.actions.append(Reject(request.waiter, about(request, self._timed_out(request))))

    def _timed_out(self, request: Request) -> RaftError:
        within = f"within {request.timeout:g} s"
        if request.pause_error is not None:
            return request.pause_error
        unknown = request.was_sent and request.call.changes
        if request.target is not None:
            return RequestTimeoutError(f"no answer from {request.target} {within}", may_have_been_applied=unknown)
        if self._leader is None:
            return NoLeaderError(f"no leader {within}: {self._search}", may_have_been_applied=unknown)
        return RequestTimeoutError(
            f"no final answer from the leader at {self._leader} {within}", may_have_been_applied=unknown
        )
