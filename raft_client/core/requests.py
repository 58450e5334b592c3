"""Requests and links: what a request is, what was sent on which link, when a link may go, and what the shell is to do.

A link is known by the URL of its peer. One that the client leaves while somebody still waits on it, and may not be sent
elsewhere, is *set aside*: it gets a name of its own, and lives until nobody waits on it, or it breaks.

Invariant: what is not repeatable is sent at most once, and stays on its link until that breaks.
Invariant: an action never waits for another, and never fails. A link that cannot be made, or breaks, is reported with
``link_lost``; a SUB that cannot be made with its owner's ``cannot_listen``.
"""

from __future__ import annotations

import math
from enum import StrEnum
from itertools import count
from typing import Any, Final, TypeAlias

import attrs

from raft_client.core.calls import Call
from raft_client.errors import RaftError
from raft_client.wire.configuration import Peer
from raft_client.wire.frames import encode_uint32, hot_value
from raft_client.wire.request_id import REQUEST_ID_BYTES, RequestId

# -- the connection, as users see it -----------------------------------------------------------------------------------


class ConnectionState(StrEnum):
    """The life of a client's connection to its cluster."""

    CONNECTING = "connecting"  # no leader was found yet
    CONNECTED = "connected"  # requests go to a leader
    #: The leader was lost. The next one is looked for as soon as something is asked; what was under way waits for it.
    SUSPENDED = "suspended"
    CLOSED = "closed"


@attrs.frozen
class StateChanged:
    """Another state than before. ``leader`` is the new one, when connected; ``error`` is why the last one was lost."""

    state: ConnectionState
    leader: Peer | None = None
    error: RaftError | None = None


# -- what the shell is asked to do -------------------------------------------------------------------------------------
# The shell carries actions out in the order in which they come.


@attrs.frozen
class Connect:
    """A new DEALER for this URL. Later report what it receives and, once, that it is lost."""

    url: str


@attrs.frozen
class SetAside:
    """Keep the DEALER of this URL under ``name``, with all that was sent and is received on it: the URL is free.

    From now on ``name`` stands for it in every action and in every report.
    """

    url: str
    name: str


@attrs.frozen
class Disconnect:
    """Close the DEALER of this URL or name; what it has not sent is dropped, what it received is not reported."""

    url: str


@attrs.frozen
class Subscribe:
    """A new SUB for this URL and topic, where ``peer`` broadcasts. What it receives is for ``owner``."""

    owner: Any  # a core.stream_runners.StreamRunner
    url: str
    topic: bytes
    peer: str | None  # the URL of its ROUTER


@attrs.frozen
class Unsubscribe:
    """Close the SUB that this owner has for this URL."""

    owner: Any
    url: str


@hot_value
class Send:
    """These frames, the request id first, on the DEALER of this URL or name. It is connected or connecting."""

    url: str
    frames: list[bytes]


@hot_value
class Resolve:
    """Hand ``result`` to the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    result: Any


@hot_value
class Reject:
    """Raise ``error`` for the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here
    error: RaftError


@hot_value
class Wake:
    """A call that streams has something new for the caller who waits on ``waiter``."""

    waiter: Any  # the shell's own, opaque here


#: A StateChanged is to be told to those who want to know, in its place among the others.
Action: TypeAlias = (
    Connect | SetAside | Disconnect | Subscribe | Unsubscribe | Send | Resolve | Reject | Wake | StateChanged
)


# -- one request, and the counters of all ------------------------------------------------------------------------------


@attrs.define(eq=False)
class Request:
    """One call on its way. Made by :meth:`RequestMachine.submit`."""

    call: Call
    waiter: Any  # the shell's own, opaque here
    request_id: bytes
    deadline: float  # monotonic seconds; inf for none
    timeout: float | None  # seconds, for messages
    target: str | None  # URL of the one peer to ask; None for the leader
    in_doubt: bool  # whether an earlier send may take effect, or an earlier call with this id
    sent_to: str | None = None  # the link, by its URL or name; None while it waits
    asked: str | None = None  # the link on which it was sent last, as long as there is that link
    heard_at: float = 0.0  # when it was sent or last answered
    silence_factor: float = 1.0  # how many response time-outs it may be silent
    was_missed: bool = False  # half of that time is over, and so the leader was asked whether it lives
    has_slot: bool = False  # counts in max_in_flight
    not_before: float = 0.0  # monotonic seconds; a pause asked for by the cluster
    was_sent: bool = False
    is_done: bool = False
    pause_error: RaftError | None = None

    @property
    def stays(self) -> bool:
        """Whether it is bound to the link on which it was sent: sent once, or to one peer."""
        return not self.call.repeatable or self.target is not None

    def heard(self, now: float) -> None:
        """It was sent, or there is news of it: it may be silent for its time again."""
        self.heard_at = now
        self.was_missed = False


@attrs.define
class RequestStats:
    """Counters since the client was made."""

    requests: int = 0
    repeated: int = 0
    searches: int = 0
    stale_answers: int = 0


def about(request: Request, error: RaftError, *, refused: bool = False) -> RaftError:
    """Say which append the error is about, and whether it may have been applied all the same.

    ``refused``: the last send was answered, and not done. Only the first send of an id that was made for this call can
    then, or while it was not sent at all, be the whole truth: a peer that accepted an entry may lose the lead and still
    have it, and what an earlier send or an earlier call did nobody says.
    """
    if request.call.changes:
        error.may_have_been_applied = request.in_doubt or (request.was_sent and not refused)
        raw = request.call.request_id
        if raw is not None and len(raw) == REQUEST_ID_BYTES:
            error.request_id = RequestId(raw)
    return error


# -- all requests and links --------------------------------------------------------------------------------------------

_MAX_UINT32: Final = 2**32 - 1


class RequestTable:
    """All requests and links. ``now`` is in monotonic seconds.

    Shared by the parts of a :class:`~raft_client.core.request_machine.RequestMachine`; nobody else uses it.
    """

    def __init__(self, response_timeout: float) -> None:
        self.response_timeout = response_timeout
        #: What is to be done and was not taken yet.
        self.actions: list[Action] = []
        self._numbers = count(1)
        self.requests: dict[bytes, Request] = {}  # in the order of submission
        self.questions: dict[bytes, str] = {}  # our own, unanswered -> URL
        self.links: set[str] = set()  # by URL
        self.aside: set[str] = set()  # by name
        self._names = count(1)
        #: Links that were set aside in actions that are still to be carried out: what has come in on them meanwhile is
        #: reported under the old name.
        self.renamed: dict[str, str] = {}
        self.in_flight: int = 0  # requests that have a slot
        #: The earliest moment at which a request may need attention, in monotonic seconds.
        self.check_at: float = math.inf
        self.stats: RequestStats = RequestStats()

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, request: Request, url: str, now: float) -> None:
        if request.was_sent:
            self._send_again(request, url)
        request.was_sent = True
        request.sent_to = request.asked = url
        request.heard_at, request.was_missed = now, False  # heard(), inlined: hot path
        if url not in self.links:
            self._connect(url)
        self.actions.append(Send(url, [request.request_id, *request.call.frames()]))
        missed_at = now + self.response_timeout * request.silence_factor / 2.0
        if missed_at < self.check_at:
            self.check_at = missed_at

    def _send_again(self, request: Request, url: str) -> None:
        self.stats.repeated += 1
        request.pause_error = None
        request.in_doubt = True
        if request.asked != url:
            request.call.moved()
        if request.sent_to != url:
            self.detach(request)
        if request.call.request_id is None:
            self._renumber(request)

    def send_last(self, request: Request, last: list[bytes] | None) -> None:
        """The last frames of a conversation, which get no answer."""
        if last is not None and request.sent_to is not None:
            self.actions.append(Send(request.sent_to, [request.request_id, *last]))

    def _renumber(self, request: Request) -> None:
        """An answer to the first question must not be taken for one to the second."""
        del self.requests[request.request_id]
        request.request_id = self.new_id()
        self.requests[request.request_id] = request

    def new_id(self) -> bytes:
        number = next(self._numbers)
        if number == _MAX_UINT32:
            self._numbers = count(1)
        frame = encode_uint32(number)
        return self.new_id() if frame in self.requests or frame in self.questions else frame

    def ask(self, url: str, frames: list[bytes]) -> bytes:
        """A question of our own; returns its id."""
        self._connect(url)
        request_id = self.new_id()
        self.questions[request_id] = url
        self.actions.append(Send(url, [request_id, *frames]))
        return request_id

    # -- waiting on a link ---------------------------------------------------------------------------------------------

    def detach(self, request: Request) -> None:
        """It no longer waits on its link, nor for an answer that should come soon."""
        self.free_slot(request)
        link, request.sent_to = request.sent_to, None
        if link in self.aside and not any(r.sent_to == link for r in self.requests.values()):
            self.aside.remove(link)
            self.actions.append(Disconnect(link))

    def free_slot(self, request: Request) -> None:
        if request.has_slot:
            request.has_slot = False
            self.in_flight -= 1

    # -- links ---------------------------------------------------------------------------------------------------------

    def _connect(self, url: str) -> None:
        if url not in self.links:
            self.links.add(url)
            self.actions.append(Connect(url))

    def leave(self, url: str) -> None:
        """Away from the link to this URL. Requests that wait there and have to stay keep it, under another name."""
        if url not in self.links:
            return
        staying = [r for r in self.requests.values() if r.sent_to == url and r.stays]
        if staying:
            name = self.renamed[url] = f"{url} (left, {next(self._names)})"  # no URL has a space in it
            self.aside.add(name)
            self.actions.append(SetAside(url, name))
            for request in staying:
                request.sent_to = request.asked = name
        else:
            self.actions.append(Disconnect(url))
        self.forget_link(url)

    def forget_all(self) -> None:
        """Of requests and links, when all of the links are closed."""
        self.requests.clear()
        self.questions.clear()
        self.links.clear()
        self.aside.clear()
        self.renamed.clear()
        self.in_flight = 0

    def forget_link(self, url: str) -> None:
        """It is gone; the next one to the same URL may lead to another process."""
        for request in self.requests.values():
            if request.asked == url:
                request.asked = None
        self.links.discard(url)
        self.aside.discard(url)
        self.questions = {i: u for i, u in self.questions.items() if u != url}
