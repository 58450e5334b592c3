"""Requests and links: what was sent on which, and when a link may go.

A link is known by the URL of its peer. One that the client leaves while somebody still waits on it, and may not be sent
elsewhere, is *set aside*: it gets a name of its own, and lives until nobody waits on it, or it breaks.

Invariant: what is not repeatable is sent at most once, and stays on its link until that breaks.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Final

from raft_client.core.request import Request, RequestStats
from raft_client.core.request_actions import Action, Connect, Disconnect, Send, SetAside
from raft_client.wire.frames import encode_uint32

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
        request.heard_at, request.was_missed = now, False  # heard(), at hand
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
            self.take_off(request)
        if request.call.request_id is None:
            self._renumber(request)

    def tell(self, request: Request, last: list[bytes] | None) -> None:
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

    def take_off(self, request: Request) -> None:
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
