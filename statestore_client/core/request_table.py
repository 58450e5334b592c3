"""Requests and replies over one MQTT session: many in flight, matched by correlation data, each with a deadline.

Invariant: a waiter is answered exactly once, and only with the reply that carries its own correlation data.
Invariant: on a connection, the client never has more unacknowledged publications than the broker's Receive Maximum
(MQTT 5.0, 3.3.4), even if nobody waits for their answers any longer. Nothing between here and the socket waits for
PUBACKs or sends again by itself; only a paho client of the application does.
Invariant: a request is sent again only inside the session it was sent in, as far as CONNACK tells (the server answers
the repeat from its cache of correlation data), or when repeating it changes nothing (GET, SCAN, KEYNOTIFY), or when
the broker has said that nobody was subscribed to it (:mod:`~statestore_client.core.absence`).
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from itertools import count
from operator import attrgetter
from typing import Final

import attrs

from statestore_client.core.absence import NO_MATCHING_SUBSCRIBERS, Absence
from statestore_client.core.actions import FLUSH_EVERY, Output, Waiter
from statestore_client.core.request import (
    OnAnswer,
    Request,
    RequestProperties,
    RequestSpan,
    Stage,
    ended,
    no_store,
    not_answered,
    refused_publication,
    reply_properties,
    timed_out,
    too_large,
    unreadable,
)
from statestore_client.core.results import interpret, named
from statestore_client.core.silence import Silence
from statestore_client.errors import (
    QuotaExceededError,
    RemoteProtocolError,
    RequestClockSkewError,
    ServerError,
    SessionLostError,
    StateStoreError,
    TimestampError,
)
from statestore_client.wire.commands import Command, Get, KeyNotify, Scan, Set, VDel, encode_payload
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import Connected, IncomingMessage, OutgoingMessage, Published
from statestore_client.wire.protocol import FIRST_ERROR, MAX_PACKET_SIZE, STATUS_MESSAGE
from statestore_client.wire.replies import decode_reply

#: Executing these twice is the same as executing them once.
_READS: Final = (Get, Scan)

#: Of requests and answers together. The reference server sends no more to one client without an acknowledgement.
MOST_BYTES: Final = 16 * 1024 * 1024
#: What the answer to a read is taken to hold before there was one: eight of them fit.
_UNKNOWN_BYTES: Final = 2 * 1024 * 1024
#: A smaller answer than expected lowers what is expected by this part of the difference. Large ones are rare among
#: small ones, mostly, and the next one may be near.
_LOWER: Final = 1 / 16
#: Seconds after which a window that was narrowed is made twice as wide.
_WIDEN_S: Final = 60.0


def request_bytes(command: object) -> int:
    """What a command holds beside its key."""
    return len(command.value) if isinstance(command, (Set, VDel)) else 0


class Window:
    """How many requests may be under way: a number of them, and the bytes that they and their answers hold.

    A broker keeps the answers that a client has not taken yet, and throws out a client for whom it keeps too many
    (reason code 0x97, *quota exceeded*): a client that then asked for the same again would be thrown out again, for
    ever. So

    * what is under way holds no more than :data:`MOST_BYTES`, and one request of any size more. What a request holds
      is known; what the answer to a read will hold is not, so it is taken to be as large as earlier ones were;
    * when the broker throws the client out, half as many requests as were under way then may be under way from now on.
      A minute without such an end doubles that again, up to the setting ``max_in_flight``.

    Invariant: with nothing under way there is always room, so that each size up to the packet limit goes through.

    ``width`` is the number that may be under way now, ``count`` the number that is.
    """

    __slots__ = ("_bytes", "_most", "_read_bytes", "_reads", "_widen_at", "_write_bytes", "count", "width")

    def __init__(self, most: int) -> None:
        """``most``: the setting ``max_in_flight``."""
        self._most: int = most
        self.width: int = most
        self.count: int = 0
        self._bytes = 0  # of the requests
        self._reads = 0
        self._read_bytes: float | None = None  # of one answer
        self._write_bytes: float | None = None  # of one request
        self._widen_at = 0.0  # monotonic seconds

    @property
    def has_room(self) -> bool:
        """Whether one more may leave."""
        count = self.count
        if count >= self.width:
            return False
        expected = _UNKNOWN_BYTES if self._read_bytes is None else self._read_bytes
        return not count or self._bytes + self._reads * expected < MOST_BYTES

    @property
    def request_bytes(self) -> int:
        """What the requests under way hold."""
        return self._bytes

    @property
    def depth(self) -> int:
        """How many requests of the present size may be under way. As many more may wait behind them, at most: their
        time runs.
        """
        read, write = self._read_bytes, self._write_bytes
        if read is None:
            read = _UNKNOWN_BYTES if self._reads or write is None else 0
        return max(1, min(self.width, int(MOST_BYTES / max(read, write or 0, 1))))

    def add(self, command: Command) -> None:
        """A request leaves."""
        self.count += 1
        if isinstance(command, _READS):
            self._reads += 1
            return
        size = len(command.value) if isinstance(command, (Set, VDel)) else 0
        self._bytes += size
        expected = self._write_bytes
        larger = expected is None or size >= expected
        self._write_bytes = size if larger else _learned(expected, size)

    def remove(self, command: Command) -> None:
        """A request that left is over, or has to leave again."""
        self.count -= 1
        if isinstance(command, _READS):
            self._reads -= 1
        else:
            self._bytes -= len(command.value) if isinstance(command, (Set, VDel)) else 0

    def answered(self, command: Command, size: int, now: float) -> None:
        """An answer of so many bytes came."""
        if isinstance(command, _READS):
            self._read_bytes = _learned(self._read_bytes, size)
        if self.width < self._most and now >= self._widen_at:
            self.width = min(self._most, 2 * self.width)
            self._widen_at = now + _WIDEN_S

    def thrown_out(self, now: float) -> None:
        """The broker had no room for what was under way."""
        self.width = max(1, min(self.count, self.width) // 2)
        self._widen_at = now + _WIDEN_S


def _learned(expected: float | None, size: int) -> float:
    return size if expected is None or size >= expected else expected - (expected - size) * _LOWER


#: Answered requests are dropped when there are more of them than this and the live ones.
_STALE: Final = 1024

_deadline = attrgetter("deadline")


class Deadlines:
    """The requests of one client by deadline; a request without one is not kept.

    Answered ones stay until their time comes, because to find them would take longer than that.
    """

    __slots__ = ("_most", "_requests")

    def __init__(self) -> None:
        self._requests: list[Request] = []  # by deadline; also answered ones
        self._most = _STALE  # with more, answered ones are dropped

    def __len__(self) -> int:
        """How many requests are kept, answered ones among them."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Most requests of a client have the same timeout, so that a new deadline nearly always is the last one."""
        if request.deadline == math.inf:
            return
        requests = self._requests
        if requests and request.deadline < requests[-1].deadline:
            insort(requests, request, key=_deadline)
        else:
            requests.append(request)
        if len(requests) > self._most:
            # Answered ones behind one that is not: a client with a long timeout would hold them until then.
            self._requests = [kept for kept in requests if kept.stage is not Stage.DONE]
            self._most = _STALE + 2 * len(self._requests)

    def first(self) -> float | None:
        """The earliest deadline of a request without an answer (monotonic seconds)."""
        requests = self._requests
        if requests and requests[0].stage is Stage.DONE:
            self._drop_stale()
        return requests[0].deadline if requests else None

    def take_due(self, now: float) -> list[Request]:
        """The requests without an answer whose time has come, in order. They are not kept any longer."""
        due = bisect_right(self._requests, now, key=_deadline)
        expired = [request for request in self._requests[:due] if request.stage is not Stage.DONE]
        del self._requests[:due]
        return expired

    def clear(self) -> None:
        """Nobody waits any longer."""
        self._requests.clear()

    def _drop_stale(self) -> None:
        stale = 0
        for request in self._requests:
            if request.stage is not Stage.DONE:
                break
            stale += 1
        del self._requests[:stale]


#: 68 years. MQTT allows twice as much, but some brokers use a signed number.
_MAX_EXPIRY_S: Final = 0x7FFFFFFF
#: At a time, whatever the broker takes: some of 65,535 packet identifiers stay free for SUBSCRIBE (MQTT 5.0, 2.2.1).
_MOST_PUBLICATIONS: Final = 65_520
_REPEATABLE: Final = (*_READS, KeyNotify)

_ANSWERED: Final = Get(b"-")


@attrs.define
class ExchangeStats:
    """Counters since the client was made."""

    requests: int = 0
    replies: int = 0
    timeouts: int = 0
    resent: int = 0
    late_or_unknown_replies: int = 0
    clock_drift: int = 0
    broker_mistakes: int = 0  # breaches of MQTT 5 that the client let pass


class RequestTable:
    """The request half of a client. It publishes on the ``output`` that it was given."""

    __slots__ = (
        "_by_correlation",
        "_by_delivery",
        "_clock",
        "_delivery_ids",
        "_most",
        "_new_correlation",
        "_output",
        "_properties",
        "_queue",
        "_to_resend",
        "_trace",
        "absence",
        "acknowledged_at",
        "complaint",
        "deadlines",
        "end_reason",
        "has_store_returned",
        "is_closed",
        "last_connection_error",
        "max_packet_size",
        "open",
        "receive_maximum",
        "silence",
        "stats",
        "store_id",
        "window",
    )

    def __init__(
        self,
        client_id: str,
        *,
        clock: HybridLogicalClock,
        window: int,
        new_correlation: Callable[[], bytes],
        output: Output,
        silence: Silence,
        complaint: Callable[[], str | None] = lambda: None,
        trace: Callable[[Command], RequestSpan] | None = None,
        response_topic: str | None = None,
    ) -> None:
        self._trace = trace
        self._clock = clock
        self._new_correlation = new_correlation
        self._output = output
        self._properties = RequestProperties(client_id, clock.node_id, response_topic)
        self._queue: deque[Request] = deque()
        #: Published on an earlier connection and not acknowledged there; or lost, and then the first of them may be
        #: under way again. Nothing else leaves before these.
        self._to_resend: deque[Request] = deque()
        self._by_correlation: dict[bytes, Request] = {}
        #: What was published on this connection and not acknowledged, in order; also requests that are done.
        self._by_delivery: dict[int, Request] = {}
        self._delivery_ids = count(1)
        self.deadlines: Deadlines = Deadlines()  # when :meth:`expire` has something to do
        self.window: Window = Window(window)
        self._most = window
        #: Whether a store takes requests; :meth:`ClientMachine.tick` calls :meth:`look_for_store`.
        self.absence: Absence = Absence()
        #: Whether the store was away, or is another one, and takes requests now: it may have forgotten the watches.
        self.has_store_returned: bool = False
        #: Whether the broker still answers; :meth:`ClientMachine.tick` asks.
        self.silence: Silence = silence
        self.receive_maximum: int = window
        self.max_packet_size: int = MAX_PACKET_SIZE
        #: The store that answered last; None if it does not say which it is.
        self.store_id: str | None = None
        #: True while requests may leave: connected and subscribed to the response topic.
        self.open: bool = False
        self.acknowledged_at: float = -math.inf  # when the broker last acknowledged a publication (monotonic seconds)
        self.last_connection_error: StateStoreError | None = None
        self.complaint: Callable[[], str | None] = complaint  # about the connection, by its driver
        self.stats: ExchangeStats = ExchangeStats()
        #: True once the client is closed: every request is refused then; ``end_reason`` says why it ended by itself.
        self.is_closed: bool = False
        self.end_reason: StateStoreError | None = None

    @property
    def pending(self) -> int:
        """Requests without an answer, sent or not."""
        return len(self._queue) + len(self._by_correlation)

    @property
    def in_flight(self) -> int:
        """Requests that left and have no answer yet."""
        return len(self._by_correlation)

    @property
    def unacknowledged_since(self) -> float | None:
        """When the oldest publication without PUBACK left on this connection (monotonic seconds)."""
        return next(iter(self._by_delivery.values())).sent_at if self._by_delivery else None

    @property
    def owed_since(self) -> float | None:
        """When the oldest publication without PUBACK, or request without an answer, left (monotonic seconds)."""
        oldest = (next(iter(owed.values())).sent_at for owed in (self._by_delivery, self._by_correlation) if owed)
        return min(oldest, default=None)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(
        self,
        command: Command,
        waiter: Waiter | None,
        now: Instant,
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
        on_answer: OnAnswer | None = None,
    ) -> Request:
        """Take a command; its waiter is resolved or rejected by ``timeout`` seconds from now (None: never gives up).

        ``on_answer`` is called instead where there is no waiter. Returns the handle for :meth:`cancel`; it may have its
        answer already, once the client is closed for example.
        """
        deadline = math.inf if timeout is None else now.monotonic + timeout
        span = None if self._trace is None or self.is_closed else self._trace(command)
        request = Request(command, waiter, deadline, timeout, fencing_token, span=span, on_answer=on_answer)
        if self.is_closed:
            self._reject(request, ended(self.end_reason), now)
            return request
        self.deadlines.add(request)
        self.stats.requests += 1
        # :meth:`_has_room`, in line: with nothing under way there is always room in the window.
        if (
            self.open
            and not self._queue
            and len(self._by_correlation) < self._most
            and len(self._by_delivery) < self.receive_maximum
            and (not self.window.count or self.window.has_room)
            and not self._to_resend
        ):
            self._send(request, now)
        else:
            self._queue.append(request)
        return request

    def cancel(self, request: Request, now: Instant) -> None:
        """Forget a request whose caller no longer waits. A reply that still comes is counted as late."""
        if request.stage is Stage.DONE:
            return
        if request.stage is Stage.QUEUED:
            self._queue.remove(request)
        self._finish(request)
        self.transmit(now)

    def cancel_all(self, is_waiter: Callable[[Waiter | None], bool], now: Instant) -> None:
        """As :meth:`cancel`, for every request whose waiter is of the given kind."""
        waiting = [r for r in (*self._by_correlation.values(), *self._queue) if is_waiter(r.waiter)]
        for request in waiting:
            self._finish(request)
        self._queue = deque(r for r in self._queue if r.stage is Stage.QUEUED)
        self.transmit(now)

    def transmit(self, now: Instant) -> None:
        """Send what waits, as far as the window allows."""
        if self.absence.is_on and not self._repeat(now):
            return
        while self._to_resend and self.open and self._may_publish():
            self._publish_again(self._to_resend.popleft(), now)
        while self._queue and self._has_room():
            self._send(self._queue.popleft(), now)

    def _has_room(self) -> bool:
        return len(self._by_correlation) < self._most and self._may_publish() and self.open and not self._to_resend

    def _may_publish(self) -> bool:
        return self.window.has_room and len(self._by_delivery) < self.receive_maximum

    # -- what the connection reports -----------------------------------------------------------------------------------

    def connected(self, event: Connected) -> None:
        """What the broker takes on this connection. :meth:`resume` is to follow when requests can leave."""
        self.receive_maximum = min(event.receive_maximum, _MOST_PUBLICATIONS)
        self.max_packet_size = event.maximum_packet_size or MAX_PACKET_SIZE
        self.absence.connected()

    def published(self, event: Published, now: Instant) -> None:
        """PUBACK: the broker has the request, or refuses it."""
        self.acknowledged_at = now.monotonic
        request = self._by_delivery.pop(event.delivery_id, None)
        if request is None:
            return
        if not request.resent:
            self.silence.round_trip.measured(now.monotonic - request.sent_at)
        is_lost = event.reason_code == NO_MATCHING_SUBSCRIBERS and not self.absence.is_meaningless
        if request.stage is Stage.SENT:
            if event.reason_code >= FIRST_ERROR:
                error = refused_publication(event.reason_code, request.resent, request.command)
                self._reject(request, error, now)
            elif is_lost:
                self._lost(request, now)
            else:
                request.stage, request.has_subscribers = Stage.ACCEPTED, True
        elif is_lost and request.resent:  # it has ended: cancelled, or late
            self.absence.lost(now.monotonic, again=True)
        elif is_lost:  # its answer was here before
            self._found(is_inside=True)
        if self.absence.is_on and not is_lost:
            self._found()
        if self._to_resend or (self._queue and self._has_room()):
            self.transmit(now)

    def received(self, message: IncomingMessage, now: Instant) -> None:
        """A message on the response topic. Late, repeated and foreign ones are dropped and counted."""
        request = self._by_correlation.get(message.correlation_data or b"")
        if request is None:
            self.stats.late_or_unknown_replies += 1
            return
        self.stats.replies += 1
        if self.absence.wants_answers:
            self.absence.has_answered = True
            self._found(is_inside=request.stage is Stage.ACCEPTED and not request.has_subscribers)
        if isinstance(request.command, _READS) or self.window.width < self._most:
            self.window.answered(request.command, len(message.payload), now.monotonic)
        try:
            reply, (version, store) = decode_reply(message.payload), reply_properties(message)
            if store != self.store_id:
                is_another = store is not None and self.store_id is not None
                self.has_store_returned = self.has_store_returned or is_another
                self.store_id = store
            if version is not None:
                try:
                    self._clock.merge(version, now.wall_ms)
                except TimestampError:
                    # Too far ahead, or its counter is full. The command was executed and its answer is good. One of the
                    # clocks is wrong; ours must not follow. If the server objects, the answer to the next SET says so.
                    self.stats.clock_drift += 1
            result = interpret(request.command, reply, version, store)
        except RemoteProtocolError as error:
            self._reject(request, unreadable(error), now)
        except StateStoreError as error:
            if isinstance(error, RequestClockSkewError):
                self._clock.forget()
            if isinstance(error, QuotaExceededError):
                error.quota = message.user_property(STATUS_MESSAGE)
            if isinstance(error, ServerError) and error.command is None:  # it was told by __stat
                error = named(error, request.command)
            self._reject(request, error, now)
        else:
            self._finish(request)
            if request.waiter is not None:
                request.waiter.resolve(result)
            elif request.on_answer is not None:
                request.on_answer(result, None, now)
        if self._to_resend or (self._queue and self._has_room()):
            self.transmit(now)

    def suspend(self, error: StateStoreError) -> None:
        """The connection is gone, and with it every PUBACK that was still to come."""
        for request in self._by_correlation.values():
            self._no_longer_under_way(request)
        self.open = False
        self.silence.forget()
        self.absence.connected()
        self.last_connection_error = error
        self._by_delivery.clear()
        self._to_resend.clear()

    def resume(self, now: Instant) -> None:
        """Connected: publish again what the broker of the old session did not acknowledge, in the original order; and
        then what was lost, and what reads, whose answers a broker that was restarted has forgotten. These are new
        publications, which must not come between the others ([MQTT-4.4.0-1], [MQTT-4.6.0-1]).
        """
        self.open = True
        self.last_connection_error = None
        requests = self._by_correlation.values()
        self._to_resend = deque(r for r in requests if r.stage is Stage.SENT)
        self._to_resend.extend(
            r
            for r in requests
            if r.stage is not Stage.SENT and (isinstance(r.command, _READS) or not r.has_subscribers)
        )
        self.transmit(now)

    def _publish_again(self, request: Request, now: Instant) -> None:
        if request.message is None:  # answered, or nobody waits any longer
            return
        self.stats.resent += 1
        request.resent = True
        expiry_s = _expiry_s(request.deadline - now.monotonic)
        request.message = attrs.evolve(request.message, message_expiry_s=expiry_s)
        self._send(request, now, again=request.stage is Stage.SENT)

    def session_lost(self, error: SessionLostError, now: Instant) -> None:
        """The broker forgot the session: replies will not come. Repeat what is harmless, fail the rest.

        It may have lost the store as well, and begin anew on a machine (this one?) whose clock was set back: so does
        this client's clock.
        """
        self._clock.forget()
        lost = list(self._by_correlation.values())
        for request in lost:
            if not isinstance(request.command, _REPEATABLE):
                self._reject(request, SessionLostError(str(error), may_have_been_applied=True), now)
        for request in reversed(lost):
            if request.stage is not Stage.DONE and request.message is not None:
                self._no_longer_under_way(request)
                del self._by_correlation[request.message.correlation_data]
                request.stage, request.message, request.has_subscribers = Stage.QUEUED, None, True
                self._queue.appendleft(request)

    def reset(self) -> None:
        """Forget every request without an answer: the caller rejects them."""
        self.open = False
        self.silence.forget()
        self.absence.end()
        for request in (*self._by_correlation.values(), *self._queue):
            self._no_longer_under_way(request)
            request.stage = Stage.DONE
        for container in (self._queue, self._to_resend, self._by_correlation, self._by_delivery, self.deadlines):
            container.clear()

    def begin_anew(self) -> None:
        """The client is opened again."""
        self.reset()
        self.absence.begin_anew()
        self.is_closed, self.end_reason, self.last_connection_error = False, None, None

    def reject_unacknowledged(self, error: StateStoreError, now: Instant) -> None:
        """Give up on what was sent and not acknowledged: sending it again would break the connection again."""
        for request in list(self._by_correlation.values()):
            if request.stage is Stage.SENT:
                self._reject(request, error, now)

    def close(self, reason: StateStoreError | None, now: Instant) -> None:
        """Answer every request that has no answer, and all that come later: the client ends, by its user (None) or for
        this reason.
        """
        self.open = False
        self.is_closed, self.end_reason = True, reason
        self.silence.forget()
        self.absence.end()
        for request in [*self._by_correlation.values(), *self._queue]:
            self._reject(request, not_answered(reason, request.stage is not Stage.QUEUED), now)
        self._queue.clear()

    # -- a store that does not take requests ---------------------------------------------------------------------------

    def _lost(self, request: Request, now: Instant) -> None:
        """Nobody was subscribed to this request: it is to leave again, in its turn."""
        self._no_longer_under_way(request)
        request.stage, request.has_subscribers = Stage.ACCEPTED, False
        is_repetition = self.absence.is_repeating and self._to_resend[0] is request
        if not is_repetition:
            self._to_resend.append(request)
        self.absence.lost(now.monotonic, again=is_repetition)

    def _repeat(self, now: Instant) -> bool:
        """Publish the oldest lost request again when its time has come; True if none is left."""
        absence, lost = self.absence, self._to_resend
        if absence.is_repeating:
            return False
        while lost and lost[0].message is None:  # it has ended: cancelled, or late
            lost.popleft()
        if not lost:
            absence.end()
        elif absence.is_time_to_repeat(now.monotonic):
            # Its place in the window it had before; the Receive Maximum counts for all.
            is_full = len(self._by_delivery) >= self.receive_maximum
            absence.repeat(now.monotonic, later=is_full)
            if not is_full:
                self._publish_again(lost[0], now)
        return not lost

    def _found(self, *, is_inside: bool = False) -> None:
        """Somebody takes requests: what waits may leave, but for the one that is under way. Nothing has to leave again
        if the store ``is_inside`` the broker.
        """
        if self.absence.is_repeating:
            self._to_resend.popleft()
        self.has_store_returned = self.has_store_returned or (self.absence.is_on and not is_inside)
        self.absence.end()
        if is_inside:
            self.absence.is_meaningless = True
            lost = [request for request in self._to_resend if not request.has_subscribers]
            self._to_resend = deque(request for request in self._to_resend if request.has_subscribers)
            for request in lost:
                request.has_subscribers = True

    def look_for_store(self, now: Instant) -> None:
        """Publish the oldest lost request again, or give up, when its time has come.

        What waited behind it was not sent, and fails as well: it would only have to wait as long again.
        """
        if self.absence.is_declared(now.monotonic):
            url = None if self._output.connection is None else self._output.connection.url
            waiting = [r for r in (*self._to_resend, *self._queue) if r.stage is not Stage.DONE]
            self.absence.end()
            self._to_resend.clear()
            self._queue.clear()
            for request in waiting:
                self._reject(request, no_store(url, request), now)
        self.transmit(now)

    # -- time ----------------------------------------------------------------------------------------------------------

    def expire(self, now: Instant, seen: Callable[[Instant], str]) -> bool:
        """Reject requests that have reached their deadline; returns whether any of them waited for a missing PUBACK.
        ``seen``: what is known of the connection, for their errors.

        The PUBACK is that of the request itself, or of earlier requests: they fill the broker's Receive Maximum, so
        that the request could not be sent.
        """
        is_blocked = self.open and len(self._by_delivery) >= self.receive_maximum
        unacknowledged = False
        expired = self.deadlines.take_due(now.monotonic)
        for request in expired:
            self.stats.timeouts += 1
            if request.stage is Stage.QUEUED:
                self._queue.remove(request)
            unacknowledged = unacknowledged or request.stage is Stage.SENT or is_blocked
            owed = len(self._by_delivery) if is_blocked else 0
            last_error = self.last_connection_error or (seen(now) if self.open else "still connecting")
            why = self.complaint()
            error = timed_out(
                request,
                connected=self.open,
                last_error=last_error,
                owed=owed,
                complaint=why,
                is_away=self.absence.is_on,
                has_answered=self.absence.has_answered,
            )
            self._reject(request, error, now)
        if expired:
            self.transmit(now)
        return unacknowledged

    # -- inside --------------------------------------------------------------------------------------------------------

    def _send(self, request: Request, now: Instant, *, again: bool = False) -> None:
        """Publish a request. ``again``: as the publication that it was on an earlier connection."""
        message = request.message
        if message is None:
            try:
                timestamp = self._clock.tick(now.wall_ms)
            except TimestampError as error:
                self._reject(request, error, now)
                return
            payload = encode_payload(request.command)
            properties, size = self._properties.of(request.command, timestamp, request.fencing_token, request.span)
            size += len(payload) if isinstance(payload, bytes) else sum(map(len, payload))
            if size > self.max_packet_size:
                self._reject(request, too_large(size, self.max_packet_size), now)
                return
            correlation, remaining = self._new_correlation(), request.deadline - now.monotonic
            expiry_s = math.ceil(remaining) if 0 < remaining < _MAX_EXPIRY_S else _expiry_s(remaining)
            message = OutgoingMessage(self._properties.envelope, payload, correlation, expiry_s, properties)
            request.message = message
            self._by_correlation[correlation] = request
        if not again:
            request.delivery_id = next(self._delivery_ids)
        request.stage = Stage.SENT
        request.sent_at = now.monotonic
        request.is_under_way = True
        self.window.add(request.command)
        self._by_delivery[request.delivery_id] = request
        if self.silence.deadline == math.inf:
            self.silence.expect(now.monotonic)
        output = self._output
        if output.connection is not None:
            output.connection.publish(request.delivery_id, message, again)
            output.unflushed += 1
            if output.unflushed >= FLUSH_EVERY:
                output.flush()

    def _no_longer_under_way(self, request: Request) -> None:
        if request.is_under_way:
            request.is_under_way = False
            self.window.remove(request.command)

    def _reject(self, request: Request, error: StateStoreError, now: Instant) -> None:
        self._finish(request, error)
        if request.waiter is not None:
            request.waiter.reject(error)
        elif request.on_answer is not None:
            request.on_answer(None, error, now)

    def _finish(self, request: Request, error: StateStoreError | None = None) -> None:
        if request.is_under_way:
            request.is_under_way = False
            self.window.remove(request.command)
        if request.span is not None:
            request.span.end(error)
        if request.message is not None:
            self._by_correlation.pop(request.message.correlation_data, None)
            request.message = None
        request.stage = Stage.DONE
        request.command = _ANSWERED  # the value may be large, and the list of deadlines holds the request a while


def _expiry_s(remaining: float) -> int:
    """The MQTT message expiry for what is left of a time limit: whole seconds, rounded up, at least 1."""
    if remaining >= _MAX_EXPIRY_S:
        return _MAX_EXPIRY_S
    return math.ceil(remaining) if remaining > 0 else 1
