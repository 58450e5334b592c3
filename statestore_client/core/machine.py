"""The client as one pure machine: calls, driver events and time in; actions out.

Connection phases (users see the state in brackets)::

    NEW --open()--> CONNECTING [connecting] --Connected--> SUBSCRIBING --Subscribed--> READY [connected]
                      ^      |                                |                          |
                      |      +-----------Closed---------------+---------Closed-----------+
                      |                                       v
                      +----- back-off is over ------- WAITING [suspended]       fatal, or close() ---> CLOSED [closed]

Both shells drive exactly this machine: they carry out :meth:`ClientMachine.take_actions` after every call, and call
:meth:`ClientMachine.tick` no later than :meth:`ClientMachine.next_deadline`. Not thread-safe; the shell serialises.
"""

from __future__ import annotations

import copy
import math
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from statestore_client.core.actions import (
    Acknowledge,
    Action,
    ConnectionState,
    Disconnect,
    Drop,
    Observer,
    Open,
    Reject,
    Resolve,
    StateChanged,
    Subscribe,
    WatchOptions,
)
from statestore_client.core.backoff import Backoff
from statestore_client.core.exchange import MAX_PACKET_SIZE, Exchange
from statestore_client.core.request import Request
from statestore_client.core.watching import Watching
from statestore_client.errors import (
    CallbackReplacedError,
    ClosedError,
    ConnectionLostError,
    NotAuthorizedError,
    RequestTimeoutError,
    SessionLostError,
    StateStoreError,
    TransportError,
)
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HlcTimestamp, HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import (
    Closed,
    Connected,
    Event,
    IncomingMessage,
    Published,
    Subscribed,
)
from statestore_client.wire.topics import response_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["ClientMachine", "node_id"]

#: A connection that lived this long (seconds) starts the back-off anew; a shorter one is part of the same trouble.
_STABLE_AFTER_S: Final = 5.0
#: If a request times out, and the broker has sent and acknowledged nothing for this long (seconds), it is taken for
#: gone.
_SILENCE_S: Final = 5.0
#: The same, when it says other things and acknowledges nothing. Longer: a large value takes its time to get there.
_OVERDUE_S: Final = 60.0
#: A broker that accepts a connection answers SUBSCRIBE within this time (seconds), or it is taken for gone.
_SUBSCRIBE_TIMEOUT_S: Final = 10.0
#: For this long (seconds) an attempt that was given up may still reach the broker, and take the session over from its
#: successor: a kernel tries for a minute or two to send what was written to a closed socket.
_SHADOW_S: Final = 120.0
_SESSION_TAKEN_OVER: Final = 0x8E
_FIRST_ERROR_REASON: Final = 0x80
#: PACKET_TOO_LARGE, MALFORMED_PACKET, PROTOCOL_ERROR: what we sent broke the connection; sending it again would too.
_OUR_PACKET_WAS_BAD: Final = frozenset({0x81, 0x82, 0x95})


class _Phase(Enum):
    NEW = "new"
    CONNECTING = "connecting"
    SUBSCRIBING = "subscribing"
    READY = "ready"
    WAITING = "waiting"
    CLOSED = "closed"


def node_id(client_id: str) -> str:
    """The clock node of a client: its id, without the colon that separates the parts of a timestamp."""
    return client_id.replace(":", "-")


class ClientMachine:
    """One client of the state store.

    :param client_id: the MQTT client id; it names the topics.
    :param retry_first_connect: False makes a failed first connection fatal.
    :param random: jitter and correlation data come from here.
    """

    def __init__(
        self,
        client_id: str,
        *,
        clock: HybridLogicalClock,
        random: Random,
        max_in_flight: int,
        request_timeout: float,
        clean_start: bool = True,
        retry_first_connect: bool = False,
        backoff: Backoff | None = None,
        complaint: Callable[[], str | None] = lambda: None,
    ) -> None:
        #: What must be done now, in this order; :meth:`take_actions` hands it over.
        self.actions: list[Action] = []
        self._client_id = client_id
        self._random = random
        self._backoff = backoff or Backoff()
        self._clean_start = clean_start
        self._retry_first_connect = retry_first_connect
        self._max_in_flight = max_in_flight
        self._response_topic = response_topic(client_id)
        self._exchange = Exchange(
            client_id,
            clock=clock,
            window=max_in_flight,
            new_correlation=lambda: random.randbytes(16),
            actions=self.actions,
            complaint=complaint,
        )
        self._watching = Watching(
            client_id, exchange=self._exchange, actions=self.actions, request_timeout=request_timeout
        )
        self._receivers: dict[type[Event], Callable[[Any, Instant], None]] = {
            IncomingMessage: self._received,
            Published: self._exchange.published,
            Subscribed: self._receive_subscribed,
            Connected: self._receive_connected,
            Closed: self._receive_closed,
        }
        self._phase = _Phase.NEW
        self._attempt = 0
        self._retry_at: float | None = None
        self._ready_since: float | None = None
        self._subscribed_by = math.inf  # when SUBACK has to be here
        self._drop_reason: str | None = None  # set once we gave a connection up
        self._ever_connected = False
        self._session_is_good = True  # False: the broker must forget it
        self._lost_session: SessionLostError | None = None  # to be told when the connection stands
        self._attempt_failed_at = -math.inf  # when an attempt ended without CONNACK
        self._heard_at = -math.inf  # when the driver last reported anything
        self._subscribe_ids = count(1)
        self._subscribing: dict[int, tuple[str, ...]] = {}
        self._subscribed: set[str] = set()
        self._final_error: StateStoreError | None = None
        self._open_waiters: list[object] = []

    # -- what users see ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        if self._phase is _Phase.READY:
            return ConnectionState.CONNECTED
        if self._phase is _Phase.CLOSED:
            return ConnectionState.CLOSED
        return ConnectionState.SUSPENDED if self._ever_connected else ConnectionState.CONNECTING

    @property
    def situation(self) -> str:
        """The state and what led to it, for the errors of calls that could not wait for a better one."""
        error = self._exchange.last_connection_error
        return str(self.state) if error is None else f"{self.state}: {error}"

    def too_late(self, text: str) -> RequestTimeoutError:
        """The error of a call, other than a request, that waited in vain."""
        complaint = self._exchange.complaint()
        kind = RequestTimeoutError if complaint is None else CallbackReplacedError
        return kind(f"{text} ({complaint or self.situation})")

    @property
    def is_watching(self) -> bool:
        """Whether any key is watched."""
        return bool(self._watching)

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        if self._phase is _Phase.CLOSED:
            raise self._closed_error()

    @property
    def exchange(self) -> Exchange:
        """Read its ``stats``, ``pending`` and ``in_flight``; call nothing."""
        return self._exchange

    def take_actions(self) -> list[Action]:
        """A copy of :attr:`actions`, which is empty then."""
        actions = self.actions.copy()
        self.actions.clear()
        return actions

    # -- calls ---------------------------------------------------------------------------------------------------------

    def open(self, waiter: object) -> None:
        """Start to connect; ``waiter`` is resolved when requests can leave, rejected when that cannot be."""
        if self._phase is _Phase.CLOSED:
            self.actions.append(Reject(waiter, self._closed_error()))
        elif self._phase is _Phase.READY:
            self.actions.append(Resolve(waiter, None))
        else:
            self._open_waiters.append(waiter)
            if self._phase is _Phase.NEW:
                self.actions.append(StateChanged(self.state))
                self._connect()

    def cancel_open(self, waiter: object) -> None:
        """The caller of :meth:`open` no longer waits. Connecting goes on."""
        self._open_waiters = [w for w in self._open_waiters if w is not waiter]

    def submit(
        self,
        command: Command,
        waiter: object,
        now: Instant,
        *,
        timeout: float | None,
        fencing_token: HlcTimestamp | None = None,
    ) -> Request | None:
        """Send a command; returns its handle for :meth:`cancel`, or None when it was rejected at once."""
        if self._phase is _Phase.CLOSED:
            self.actions.append(Reject(waiter, self._closed_error()))
            return None
        return self._exchange.submit(command, waiter, now, timeout=timeout, fencing_token=fencing_token)

    def cancel(self, request: Request, now: Instant) -> None:
        """The caller no longer waits for this request."""
        self._exchange.cancel(request, now)
        self._watching.settle(now)

    def cancel_all(self, is_waiter: Callable[[object], bool], now: Instant) -> None:
        """As :meth:`cancel`, for every request whose waiter is of the given kind."""
        self._exchange.cancel_all(is_waiter, now)
        self._watching.settle(now)

    def watch(self, key: bytes, observer: Observer, waiter: object, now: Instant, options: WatchOptions) -> None:
        """Watch ``key``: ``waiter`` is resolved when no later change can be missed; ``observer`` gets the events."""
        if self._phase is _Phase.CLOSED:
            self.actions.append(Reject(waiter, self._closed_error()))
            return
        self._watching.add(key, observer, waiter, now, options)
        self._subscribe_to_notifications()
        self._watching.settle(now)

    def unwatch(self, key: bytes, observer: Observer, now: Instant) -> None:
        """Stop watching. Events already queued stay with the observer."""
        self._watching.remove(key, observer, now)
        self._watching.settle(now)

    def close(self, now: Instant) -> None:
        """End: reject what waits, send DISCONNECT. Closing twice is harmless."""
        if self._phase is _Phase.CLOSED:
            return
        connected = self._phase in (_Phase.CONNECTING, _Phase.SUBSCRIBING, _Phase.READY)
        self._end(None)
        self._watching.settle(now)
        if connected:
            self.actions.append(Disconnect())

    # -- driver events -------------------------------------------------------------------------------------------------

    def receive(self, event: Event, now: Instant) -> None:
        """Take what the driver reports."""
        if self._phase is _Phase.CLOSED:
            return  # after DISCONNECT nothing may be sent, not even an acknowledgement (MQTT 5.0, 3.14.4)
        self._heard_at = now.monotonic
        self._receivers[type(event)](event, now)
        if self._exchange.internal:
            self._watching.settle(now)

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        requests, polls = self._exchange.next_deadline(), self._watching.next_deadline()
        if self._phase is _Phase.READY and polls is None:
            return requests
        deadlines = [d for d in (self._retry_at, requests, polls) if d is not None]
        if self._phase is _Phase.SUBSCRIBING and self._drop_reason is None:
            deadlines.append(self._subscribed_by)
        return min(deadlines, default=None)

    def tick(self, now: Instant) -> None:
        """Time has passed: expire requests, try to connect again."""
        if self._exchange.expire(now) and self._phase is _Phase.READY and self._is_silent(now):
            # Keep-alive would notice too, but later: after 90 seconds by default.
            self._drop(self._exchange.complaint() or "the broker does not answer any longer")
        if self._phase is _Phase.SUBSCRIBING and now.monotonic >= self._subscribed_by:
            self._drop(self._exchange.complaint() or "the broker did not answer SUBSCRIBE")
        if self._retry_at is not None and self._retry_at <= now.monotonic:
            self._retry_at = None
            self._connect()
        self._watching.tick(now)
        self._watching.settle(now)

    def _is_silent(self, now: Instant) -> bool:
        """Whether nothing, or no PUBACK, came in since the oldest publication without one left, and that was long ago.

        The time is counted from that publication, and not only from the last packet that came in: an idle link is
        silent as well.
        """
        exchange = self._exchange
        oldest = exchange.unacknowledged_since
        if oldest is None:
            return False
        silent_s = now.monotonic - max(oldest, self._heard_at)
        overdue_s = now.monotonic - max(oldest, exchange.acknowledged_at)
        return silent_s >= _SILENCE_S or overdue_s >= _OVERDUE_S

    def _drop(self, reason: str) -> None:
        if self._drop_reason is None:
            self._drop_reason = reason
            self.actions.append(Drop())

    def interrupted(self, now: Instant) -> None:
        """A signal stopped a change half-way: give up the connection, its session and every request.

        The shell has closed the driver already and rejects those who wait. Watches go on after the reconnect.
        """
        self.actions.clear()
        self._exchange.reset()
        self._session_is_good = False
        if self._phase in (_Phase.CONNECTING, _Phase.SUBSCRIBING, _Phase.READY):
            self._receive_closed(Closed(ConnectionLostError("a signal interrupted the client")), now)
            if self._retry_at is not None:  # the broker is not to blame: no back-off
                self._attempt, self._retry_at = 0, now.monotonic

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._phase = _Phase.CONNECTING
        self._drop_reason = None
        # A clean start after the first connection would throw away the session that in-flight requests live in.
        forget = not self._session_is_good or (self._clean_start and not self._ever_connected)
        self.actions.append(Open(clean_start=forget))

    def _receive_connected(self, event: Connected, now: Instant) -> None:
        if self._phase is not _Phase.CONNECTING:
            return
        self._phase = _Phase.SUBSCRIBING
        self._session_is_good = True
        self._subscribed_by = now.monotonic + _SUBSCRIBE_TIMEOUT_S
        self._exchange.receive_maximum = event.receive_maximum
        self._exchange.max_packet_size = event.maximum_packet_size or MAX_PACKET_SIZE
        if not event.session_present or self._may_have_shadow(now):
            # An attempt whose CONNACK was lost may have found the session expired, or asked for a clean start: then the
            # session that is present now is that attempt's, and has no subscriptions.
            self._subscribed.clear()
        if not event.session_present and self._ever_connected:
            self._lost_session = SessionLostError("the broker lost the session while the connection was down")
            self._exchange.session_lost(self._lost_session)
        wanted = [self._response_topic]
        if self._watching:
            wanted.append(self._watching.topic_filter)
        missing = tuple(f for f in wanted if f not in self._subscribed)
        if missing:
            self._subscribe(missing)
        if self._response_topic in self._subscribed:
            self._ready(now)

    def _subscribe(self, filters: tuple[str, ...]) -> None:
        subscribe_id = next(self._subscribe_ids)
        self._subscribing[subscribe_id] = filters
        self.actions.append(Subscribe(subscribe_id, filters))

    def _receive_subscribed(self, event: Subscribed, now: Instant) -> None:
        filters = self._subscribing.pop(event.subscribe_id, ())
        for topic_filter, reason in zip(filters, event.reason_codes, strict=False):
            if reason < _FIRST_ERROR_REASON:
                self._subscribed.add(topic_filter)
            elif topic_filter == self._response_topic:
                self._end(_refused_subscription(topic_filter, reason))
                self.actions.append(Disconnect())
                return
            else:
                self._watching.refused(_refused_subscription(topic_filter, reason))
        if self._phase is _Phase.SUBSCRIBING and self._response_topic in self._subscribed:
            self._ready(now)
        elif self._phase is _Phase.READY and self._watching.topic_filter in self._subscribed.intersection(filters):
            self._watching.start(now)

    def _ready(self, now: Instant) -> None:
        self._phase = _Phase.READY
        self._ever_connected = True
        self._ready_since = now.monotonic
        self.actions.append(StateChanged(ConnectionState.CONNECTED, self._lost_session))
        self._lost_session = None
        for waiter in self._open_waiters:
            self.actions.append(Resolve(waiter, None))
        self._open_waiters.clear()
        self._exchange.resume(now)
        if self._watching.topic_filter in self._subscribed:
            self._watching.start(now)
        else:
            self._subscribe_to_notifications()

    def _subscribe_to_notifications(self) -> None:
        """Once the first watch is there. KEYNOTIFY follows when SUBACK comes."""
        topic_filter = self._watching.topic_filter
        if (
            self._watching
            and self._phase is _Phase.READY
            and topic_filter not in self._subscribed
            and not any(topic_filter in filters for filters in self._subscribing.values())
        ):
            self._subscribe((topic_filter,))

    def _receive_closed(self, event: Closed, now: Instant) -> None:
        if self._phase is _Phase.CLOSED:
            return
        was_stable = self._ready_since is not None and now.monotonic - self._ready_since >= _STABLE_AFTER_S
        self._ready_since = None
        error = event.error if self._drop_reason is None else ConnectionLostError(self._drop_reason)
        is_shadow = event.reason_code == _SESSION_TAKEN_OVER and self._may_have_shadow(now)
        if self._phase is _Phase.CONNECTING:
            self._attempt_failed_at = now.monotonic
        self._exchange.suspend(error)
        self._subscribing.clear()
        self._watching.suspend(now)
        if (event.fatal and not is_shadow) or not (self._ever_connected or self._retry_first_connect):
            self._end(error)
            return
        if event.reason_code in _OUR_PACKET_WAS_BAD:
            self._exchange.reject_unacknowledged(_broke_connection(error))
        self._phase = _Phase.WAITING
        self._attempt = 0 if was_stable else self._attempt
        self._retry_at = now.monotonic + self._backoff.delay(self._attempt, self._random)
        self._attempt += 1
        self.actions.append(StateChanged(self.state, error))

    def _may_have_shadow(self, now: Instant) -> bool:
        """Whether an attempt that was given up without CONNACK may have reached the broker, or may still."""
        return now.monotonic - self._attempt_failed_at < _SHADOW_S

    def _end(self, error: StateStoreError | None) -> None:
        """To CLOSED: by the user (``error`` is None) or because going on is pointless."""
        self._phase = _Phase.CLOSED
        self._retry_at = None
        self._final_error = error
        self._exchange.open = False
        for waiter in self._open_waiters:
            self.actions.append(Reject(waiter, self._closed_error()))
        self._open_waiters.clear()
        self._exchange.reject_all(self._rejection)
        self._watching.close(self._closed_error())
        self.actions.append(StateChanged(ConnectionState.CLOSED, error))

    def _closed_error(self) -> StateStoreError:
        # A copy for each caller: raising one instance again and again would make its traceback longer and longer.
        if self._final_error is None:
            return ClosedError("the client is closed; make a new one")
        return copy.copy(self._final_error)

    def _rejection(self, may_have_been_applied: bool) -> StateStoreError:
        if not may_have_been_applied:
            return self._closed_error()
        why = "the client was closed" if self._final_error is None else str(self._final_error)
        return ConnectionLostError(f"{why} before the answer came", may_have_been_applied=True)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _received(self, message: IncomingMessage, now: Instant) -> None:
        if message.topic == self._response_topic:
            self._exchange.received(message, now)
        else:
            self._watching.receive(message, now)
        if message.ack_id:
            # After it was taken in, so that a crash in between makes the broker send it again.
            self.actions.append(Acknowledge(message.ack_id))


def _refused_subscription(topic_filter: str, reason: int) -> StateStoreError:
    text = f"the broker refused the subscription to {topic_filter} with MQTT reason code 0x{reason:02X}"
    return NotAuthorizedError(text) if reason == 0x87 else TransportError(text)  # 0x87: not authorized


def _broke_connection(error: StateStoreError) -> TransportError:
    return TransportError(
        f"the broker closed the connection because of a packet from this client: {error}", may_have_been_applied=True
    )
