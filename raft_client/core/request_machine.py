"""Requests to a cluster that changes under them: calls come in, messages come in, every caller gets one answer.

Life of a request to the leader (ØMQ Raft protocol, "broken known leader state" and its two recoveries)::

    QUEUED --leader known, room--> SENT --accepted--> SENT --final answer--> DONE
      ^                              |
      +------------------------------+  the leader is lost, says "not me", or says nothing: search it, send again

A request keeps its 12-byte id however often it is sent; the log takes it once. What was sent on which link is in
:mod:`raft_client.core.requests`, the way to the leader and back into the queue in
:mod:`raft_client.core.leader_routing`; silence and deadlines stand here.

Invariant: a waiter is answered exactly once; after an exception of a signal handler, at least once.
Invariant: a request is in ``owed`` from its submission until its answer was handed over, or it was cancelled. All else
can be made anew from that: :meth:`RequestMachine.interrupted` does so when an exception has cut a change.
Invariant: no call fails, waits or gets a wrong answer because of another. What one request says of the leader is
not believed for all, unless the leader said it itself, or says nothing to anybody.
Invariant: without requests nothing is asked and no time passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from raft_client.core.arguments import within
from raft_client.core.calls import (
    ACCEPTED,
    Accepted,
    Again,
    AnsweredOnce,
    Append,
    Call,
    ClusterConfig,
    Failed,
    Finished,
    FollowUps,
    NotLeader,
    Retry,
    UpdatePeers,
)
from raft_client.core.leader_routing import LeaderRouting
from raft_client.core.requests import (
    Action,
    ConnectionState,
    Disconnect,
    Reject,
    Request,
    RequestStats,
    RequestTable,
    Resolve,
    Send,
    StateChanged,
    Wake,
    about,
)
from raft_client.errors import ClientClosedError, ConnectionLostError, NoLeaderError, RaftError, RequestTimeoutError

if TYPE_CHECKING:
    from random import Random

# -- what time does to requests ----------------------------------------------------------------------------------------


#: A busy peer's silence is tolerated twice as long each time, up to this many response time-outs.
_MAX_SILENCE_FACTOR: Final = 8.0


class Deadlines:
    """What happens to requests as time passes: call :meth:`check_timeouts` when ``check_at`` of the table has come."""

    def __init__(self, table: RequestTable, routing: LeaderRouting) -> None:
        self._table = table
        self._routing = routing

    def check_timeouts(self, now: float) -> None:
        """Look at every request: deadlines, silence, pauses. As rare as the shortest of these times."""
        self._table.check_at = math.inf
        silent = []
        held_back = self._routing.held_back()
        for request in [*self._table.requests.values(), *held_back]:
            if request.is_done:
                continue
            if request.deadline <= now:
                self._expire(request, now)
            elif self._look_at(request, now):
                silent.append(request)
        if silent:
            self._resend_or_search(silent, now)
        held_back = self._routing.held_back()
        for request in [*self._table.requests.values(), *held_back]:
            self._table.check_at = min(self._table.check_at, request.deadline, self.attention_at(request))

    def attention_at(self, request: Request) -> float:
        """When something is to be done about it, its deadline apart."""
        if request.sent_to is None:
            return request.not_before or math.inf
        time_out = self._table.response_timeout
        if not request.call.repeatable:
            return request.heard_at + time_out if request.has_slot else math.inf
        if request.call.paused:
            return math.inf
        silent_at = request.heard_at + time_out * request.silence_factor
        if request.target is not None:
            return silent_at
        if not request.was_missed:
            return request.heard_at + time_out * request.silence_factor / 2.0
        # The leader has as much time to show that it lives.
        return (
            silent_at if self._routing.doubted_at is None else max(silent_at, self._routing.doubted_at + time_out / 2.0)
        )

    def _look_at(self, request: Request, now: float) -> bool:
        """See whether its time has come; True when no answer came to it."""
        if now < self.attention_at(request):
            return False
        if request.sent_to is None:
            self._resume(request, now)
        elif not request.call.repeatable:
            self._table.free_slot(request)  # its answer may take long, without keeping others from a slot
            self._routing.flush(now)
        elif request.target is None and not request.was_missed:
            request.was_missed = True
            if not request.call.keeps_slot:
                self._table.free_slot(request)
                self._routing.flush(now)
            self._routing.doubt_leader(now)
            return now >= self.attention_at(request)
        else:
            return True
        return False

    def _resume(self, request: Request, now: float) -> None:
        """Its pause is over."""
        request.not_before = 0.0
        self._routing.start(request, now)

    def _resend_or_search(self, silent: list[Request], now: float) -> None:
        """A leader that says anything is alive: only the one answer is missing. One that says nothing is given up.

        The link to a silent leader stays: if it was merely slow, its answers to what it was asked still count.
        """
        for request in silent:
            request.silence_factor = min(_MAX_SILENCE_FACTOR, 2.0 * request.silence_factor)
        for request in silent:
            if request.target is not None:
                self._table.send(request, request.target, now)
        to_leader = [r for r in silent if r.target is None]
        if not to_leader or self._routing.leader is None:
            return
        if self._routing.doubted_at is None:
            for request in to_leader:
                self._table.send(request, self._routing.leader, now)
            self._routing.check_leader(now)
            return
        self._routing.suspects.add(self._routing.leader)
        self._routing.suspend(
            RequestTimeoutError(
                f"the leader at {self._routing.leader} said nothing {within(self._table.response_timeout)}"
            )
        )
        self._routing.take_back()
        self._routing.need_leader(now)

    def _expire(self, request: Request, now: float) -> None:
        refused = request.sent_to is None and request.pause_error is not None
        error = self._timed_out(request)
        self._routing.reject(request, error, now, refused=refused)

    def _timed_out(self, request: Request) -> RaftError:
        limit = within(request.timeout or 0.0)
        if request.pause_error is not None:
            return request.pause_error
        if request.target is not None:
            return RequestTimeoutError(f"no answer from {request.target} {limit}")
        if self._routing.leader is None and request.sent_to is None:
            return NoLeaderError(f"no leader {limit}: {self._routing.describe_search()}")
        return RequestTimeoutError(
            f"no final answer from the leader at {request.sent_to or self._routing.leader} {limit}"
        )


# -- the machine -------------------------------------------------------------------------------------------------------

_ID_BYTES: Final = 12
#: What only a leader answers.
_AS_LEADERS_DO: Final = (Accepted, Finished, FollowUps, Failed)
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
        self._table = RequestTable(response_timeout)
        self._routing = LeaderRouting(
            self._table, seeds, ident=ident, random=random, election_grace=election_grace, max_in_flight=max_in_flight
        )
        self._deadlines = Deadlines(self._table, self._routing)
        self._closed = False
        #: By the identity of the waiter, in the order of submission. Whoever hands an answer over takes it out.
        self.owed: dict[int, Request] = {}
        self._receiving: Request | None = None  # an answer to it is being read
        #: When the last message came in, in monotonic seconds.
        self.now: float = 0.0
        #: What :meth:`take_actions` has. To be looked at, not to be changed.
        self.actions: list[Action] = self._table.actions

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def leader_url(self) -> str | None:
        """The peer to which requests go now; None while there is none."""
        return self._routing.leader

    @property
    def leader_id(self) -> str | None:
        """The id of that peer, once it is known."""
        return self._routing.leader_id if self._routing.leader is not None else None

    @property
    def state(self) -> ConnectionState:
        """Whether there is a leader to talk to."""
        return self._routing.state

    @property
    def stats(self) -> RequestStats:
        """Counters since the client was made."""
        return self._table.stats

    @property
    def peers(self) -> Mapping[str, str]:
        """Id -> URL of the members, as the cluster last reported them."""
        return self._routing.peers

    @property
    def pending(self) -> int:
        """Requests without a final answer."""
        return len(self._table.requests) + len(self._routing.held_back())

    # -- what a shell waits for ----------------------------------------------------------------------------------------

    @property
    def check_at(self) -> float:
        """The earliest moment at which a request may need attention, in monotonic seconds.

        A shell that has a timer for then, and sees no search, need not ask for :meth:`next_deadline`.
        """
        return self._table.check_at

    @property
    def is_searching(self) -> bool:
        """Whether the leader is being looked for."""
        return self._routing.is_searching

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        if not self._table.requests:
            return None
        deadline = self._table.check_at
        if self._routing.is_searching:
            deadline = min(deadline, self._routing.search.next_deadline())
        return None if deadline == math.inf else deadline

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now >= self._table.check_at:
            self._deadlines.check_timeouts(now)
        if self._routing.is_searching:
            self._routing.go_on_searching(now)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(
        self, call: Call, waiter: Any, now: float, *, timeout: float | None, target: str | None = None
    ) -> Request:
        """Take a call to the leader, or to the peer at the URL ``target``. Without ``timeout`` it never gives up."""
        if self._closed:
            raise ClientClosedError
        deadline = math.inf if timeout is None else now + timeout
        table = self._table
        request_id = call.request_id or table.new_id()
        request = Request(call, waiter, request_id, deadline, timeout, target, in_doubt=not call.has_new_id)
        table.stats.requests += 1
        if deadline < table.check_at:
            table.check_at = deadline
        self._routing.add(request, now)
        self.owed[id(waiter)] = request
        return request

    def follow_up(self, request: Request, frames: list[bytes], now: float) -> None:
        """More of the same conversation, when its reader has made room. Dropped when the link is another one by now."""
        if request.sent_to is not None and not request.is_done:
            request.heard(now)
            self.actions.append(Send(request.sent_to, [request.request_id, *frames]))
            self._table.check_at = min(self._table.check_at, self._deadlines.attention_at(request))

    def again(self, request: Request, last: list[bytes] | None, now: float) -> None:
        """The reader wants it anew, on the same link: ``last`` under the old id, the call's frames under a new one."""
        if request.sent_to is not None and not request.is_done:
            self._table.send_last(request, last)
            self._table.send(request, request.sent_to, now)

    def set_timeout(self, request: Request, timeout: float | None, now: float) -> None:
        """A new deadline, ``timeout`` seconds from now: the reader of a stream waits, or (None) has something to do."""
        request.timeout = timeout
        request.deadline = math.inf if timeout is None else now + timeout
        if request.deadline < self._table.check_at:
            self._table.check_at = request.deadline

    def cancel(self, request: Request, now: float, *, last: list[bytes] | None = None) -> None:
        """Forget a request; ``last`` tells the peer so, if it was sent there."""
        if request.is_done:
            return
        self._table.send_last(request, last)
        self._routing.finish(request, now)
        self.owed.pop(id(request.waiter), None)

    def cancel_all(self, is_waiter: Callable[[Any], bool], now: float) -> None:
        """As :meth:`cancel`, for every request whose waiter is of the given kind; those held back first."""
        held_back = self._routing.held_back()
        for request in [*held_back, *self._table.requests.values()]:
            if is_waiter(request.waiter):
                self.cancel(request, now)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raises ClientClosedError after :meth:`close`."""
        if self._closed:
            raise ClientClosedError

    def close(self) -> None:
        """The end: every waiter gets an error."""
        if self._closed:
            return
        self._closed = True
        held_back = self._routing.held_back()
        for request in [*self._table.requests.values(), *held_back]:
            error = ClientClosedError("the client was closed before the answer came")
            refused = request.sent_to is None and request.pause_error is not None
            self.actions.append(Reject(request.waiter, about(request, error, refused=refused)))
            request.is_done = True
        self._routing.close()
        for link in [*self._table.links, *self._table.aside]:
            self.actions.append(Disconnect(link))
            self._table.forget_link(link)
        self.actions.append(StateChanged(self._routing.state))
        self._table.check_at = math.inf

    # -- what the shell reports, and what it has to do -----------------------------------------------------------------

    def received(self, url: str, frames: list[bytes], now: float) -> None:
        """A message on the link to ``url``, or with that name."""
        self.now = now
        url = self._table.renamed.get(url, url)
        routing = self._routing
        if url == routing.leader:
            routing.doubted_at = None
        request = self._table.requests.get(frames[0])
        if request is None:
            if frames[0] in self._table.questions:
                routing.question_answered(frames[0], frames[1:], now)
            else:
                self._table.stats.stale_answers += 1
        elif request.sent_to == url:
            self._answered(request, frames[1:], now)
        else:
            self._answered_late(request, frames[1:], now)

    def link_lost(self, url: str, now: float, why: str | None = None) -> None:
        """The link to ``url``, or with that name, broke, or could not be made: then ``why`` says so."""
        url = self._table.renamed.get(url, url)
        if url not in self._table.links and url not in self._table.aside:
            return
        self._table.forget_link(url)
        self.actions.append(Disconnect(url))
        self._routing.search.lost(url, refusal=why)
        staying = [r for r in self._table.requests.values() if r.sent_to == url and r.stays]
        if url == self._routing.leader:
            broke = why or "broke the connection"
            self._routing.lose_leader(now, ConnectionLostError(f"the leader at {url} {broke}"))
        for request in staying:
            self._table.detach(request)
            if request.call.repeatable:
                request.not_before = now + _RECONNECT_S
                self._table.check_at = min(self._table.check_at, request.not_before)
            else:
                self._routing.reject(request, ConnectionLostError("the link broke before the answer came"), now)

    def disown(self, is_waiter: Callable[[Any], bool]) -> None:
        """Owe those of the given kind nothing more; :meth:`interrupted` is to follow."""
        for key, request in list(self.owed.items()):
            if is_waiter(request.waiter):
                request.is_done = True
                del self.owed[key]

    def interrupted(self, now: float) -> None:
        """An exception has cut a change anywhere, and the shell has closed all links: begin anew with what is owed.

        What may not be sent twice fails, and so does a stream if it was cut in the middle of an answer.
        """
        self.actions.clear()
        self._table.forget_all()
        self._routing.forget_all()
        error: RaftError
        for request in list(self.owed.values()):
            request.is_done = request.has_slot = False
            request.sent_to = request.asked = request.pause_error = None
            request.not_before = 0.0
            is_stream = not isinstance(request.call, AnsweredOnce)
            is_half_read = is_stream and request is self._receiving
            if self._closed:
                error = ClientClosedError("the client was closed before the answer came")
            elif is_half_read or (request.was_sent and not request.call.repeatable):
                error = ConnectionLostError("a signal interrupted the client while it was at work")
            else:
                self._routing.add(request, now)
                if is_stream:
                    self.actions.append(Wake(request.waiter))
                continue
            request.is_done = True
            self.actions.append(Reject(request.waiter, about(request, error)))
        self._receiving = None
        self._table.check_at = now
        if self._closed:
            self._routing.close()
            self.actions.append(StateChanged(self._routing.state))

    def emit(self, action: Action) -> None:
        """An action of somebody else, in its place among ours."""
        self.actions.append(action)

    def take_actions(self) -> list[Action]:
        """What to do now, in this order."""
        actions = self.actions[:]
        self.actions.clear()
        self._table.renamed.clear()
        return actions

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answered(self, request: Request, frames: list[bytes], now: float) -> None:
        self._receiving = request
        try:
            verdict = request.call.receive(frames)
        except RaftError as error:
            self._unreadable(request, error, now)
            return
        self._receiving = None
        routing = self._routing
        if routing.suspects and request.sent_to == routing.leader and type(verdict) in _AS_LEADERS_DO:
            routing.suspects.clear()
        if verdict is ACCEPTED:
            request.heard_at, request.was_missed = now, False  # heard(), at hand
            request.silence_factor = 1.0
            request.in_doubt = True
        elif type(verdict) is Finished:
            if verdict.last is not None:
                self._table.send_last(request, verdict.last)
            routing.finish(request, now)
            if type(request.call) is not Append:
                self._learn_from(request.call, verdict.result)
            self.actions.append(Resolve(request.waiter, verdict.result))
        elif type(verdict) is FollowUps:
            request.heard(now)
            request.silence_factor = 1.0
            if request.sent_to is not None:
                for answer in verdict.frames:
                    self.actions.append(Send(request.sent_to, [request.request_id, *answer]))
            if verdict.wake:
                self.actions.append(Wake(request.waiter))
        elif type(verdict) is NotLeader:
            self._routing.not_leader(request, verdict.leader_id, now)
        elif type(verdict) is Failed:
            self._table.send_last(request, verdict.last)
            self._routing.reject(request, verdict.error, now, refused=True)
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
                self._routing.finish(request, now)
                self.actions.append(Resolve(request.waiter, verdict.result))
                return
        self._table.stats.stale_answers += 1

    def _unreadable(self, request: Request, error: RaftError, now: float) -> None:
        """Nobody can tell what became of a change."""
        self._routing.reject(request, error, now)

    def _learn_from(self, call: Call, result: object) -> None:
        if isinstance(result, ClusterConfig):
            self._routing.leader_id = result.leader_id
            self._routing.learn(result.peers)
        elif isinstance(call, UpdatePeers):
            self._routing.refresh_at = 0.0

    def _pause(self, request: Request, verdict: Retry, now: float) -> None:
        self._table.detach(request)
        request.not_before = now + verdict.after_s
        request.pause_error = verdict.error
        self._table.check_at = min(self._table.check_at, request.not_before)
        if verdict.doubts_leader:
            self._routing.check_leader(now)
        self._routing.flush(now)
