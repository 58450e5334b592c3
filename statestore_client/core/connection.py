"""The client as one pure machine: calls, driver events and time in; actions out.

Connection phases (users see the state in brackets)::

    NEW --open()--> CONNECTING [connecting] --Connected--> SUBSCRIBING --Subscribed--> READY [connected]
                      ^      |                                |                          |
                      |      +-----------Closed---------------+---------Closed-----------+
                      |                                       v
                      +----- back-off is over ------- WAITING [suspended]      is final, or close() --> CLOSED [closed]

What is final:

* another connection with the same client id took the session over, unless it may have been an attempt of our own;
* an error that connecting again in the same way will not cure, and that the user wants to give up on;
* before the first success: any error, after all addresses were tried; with ``retry_first_connect`` only an argument
  that the broker cannot take.

Invariant: after the first success nothing else ends a client: user data bases, files and clocks come back.

Both shells drive exactly this machine: they carry out :meth:`ClientMachine.take_actions` after every call, and call
:meth:`ClientMachine.tick` no later than :meth:`ClientMachine.next_deadline`. A request needs no action: its message
goes from the request table to the connection, and its answer to whoever waits. Not thread-safe; the shell serialises.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs

from statestore_client.core.actions import (
    Action,
    ConnectionState,
    Disconnect,
    Drop,
    Observer,
    Open,
    Output,
    Ping,
    Remark,
    StateChanged,
    Subscribe,
    Waiter,
    WatchOptions,
)
from statestore_client.core.request import (
    RequestSpan,
    broke_connection,
    closed,
    ended,
    refused_subscription,
)
from statestore_client.core.request_table import RequestTable
from statestore_client.core.silence import Silence, Verdict, is_connection_dead
from statestore_client.core.watch_protocol import WatchProtocol
from statestore_client.errors import (
    CallbackReplacedError,
    ConnectionLostError,
    ConnectRefusedError,
    RequestTimeoutError,
    SessionLostError,
    StateStoreError,
)
from statestore_client.wire.commands import Command
from statestore_client.wire.hlc import HybridLogicalClock
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import (
    Alternatives,
    BrokerMistakes,
    Closed,
    Connected,
    Event,
    IncomingMessage,
    OneAddress,
    Others,
    Published,
    Subscribed,
)
from statestore_client.wire.protocol import FIRST_ERROR, response_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random


@attrs.frozen
class Backoff:
    """Exponential back-off with jitter: ``first`` · 2^n, capped, minus up to ``jitter`` of itself. Seconds.

    Jitter keeps a thousand clients from returning in the same instant after a broker restarts.
    """

    first: float = 0.1
    cap: float = 30.0
    jitter: float = 0.5

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds before attempt number ``attempt`` (the first retry is 0)."""
        # 2**attempt would grow without bound over a long outage; above 2**32 the cap wins in any case.
        full: float = min(self.cap, self.first * 2 ** min(attempt, 32))
        return full * (1.0 - self.jitter * random.random())


#: A connection that lived this long (seconds) starts the back-off anew; a shorter one is part of the same trouble.
_STABLE_AFTER_S: Final = 5.0
#: For this long (seconds) an attempt that was given up may still reach the broker, and take the session over from its
#: successor: a kernel tries for a minute or two to send what was written to a closed socket.
_SHADOW_S: Final = 120.0


class Reconnection:
    """Decides when to connect again, and what attempts that were given up may still do. Times are monotonic seconds.

    The broker's addresses take turns, in rounds. After a connection that was stable a new round begins at once, and
    within a round the next attempt is made at once: a hand-over between two servers takes no longer than it must. The
    pauses of the back-off are between rounds.
    """

    __slots__ = (
        "_attempt_failed_at",
        "_backoff",
        "_failures",
        "_random",
        "_ready_since",
        "begins_round",
        "retry_at",
    )

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failures = 0  # rounds without a stable connection, one after the other
        self._attempt_failed_at = -math.inf  # when an attempt ended without CONNACK
        self._ready_since: float | None = None
        #: When the next attempt is due; None while none is planned.
        self.retry_at: float | None = None
        #: Whether each address may be tried again then.
        self.begins_round: bool = True

    def begin_anew(self) -> None:
        """The client is opened again. What its last attempts may still do they may do now."""
        self._failures, self._ready_since, self.retry_at, self.begins_round = 0, None, None, True

    def succeeded(self, now: Instant) -> None:
        """Requests can leave."""
        self._ready_since = now.monotonic

    def failed(self, now: Instant) -> None:
        """An attempt ended without CONNACK."""
        self._attempt_failed_at = now.monotonic

    def plan(self, now: Instant, *, is_round_over: bool) -> None:
        """The connection, or the attempt, is over, and another one is to follow."""
        was_stable = self._ready_since is not None and now.monotonic - self._ready_since >= _STABLE_AFTER_S
        pause = 0.0
        if was_stable:
            self._failures = 0
        elif is_round_over:
            pause = self._backoff.delay(self._failures, self._random)
            self._failures += 1
        self._ready_since = None
        self.begins_round = was_stable or is_round_over
        self.retry_at = now.monotonic + pause

    def retry_now(self, now: Instant) -> None:
        """The broker is not to blame: no back-off."""
        self._failures, self.retry_at, self.begins_round = 0, now.monotonic, True

    def is_due(self, now: Instant) -> bool:
        """Whether it is time for the next attempt, which the caller makes then."""
        if self.retry_at is None or self.retry_at > now.monotonic:
            return False
        self.retry_at = None
        return True

    def may_have_stale_attempt(self, now: Instant) -> bool:
        """Whether an attempt that was given up without CONNACK may have reached the broker, or may still."""
        return now.monotonic - self._attempt_failed_at < _SHADOW_S


class Subscriptions:
    """Knows which topic filters the session has, and which ones are asked for on this connection.

    Appends ``Subscribe`` to the ``actions`` it was given.
    """

    __slots__ = ("_actions", "_asked", "_granted", "_ids")

    def __init__(self, actions: list[Action]) -> None:
        self._actions = actions
        self._ids = count(1)
        self._asked: dict[int, tuple[str, ...]] = {}  # by subscribe id; on this connection, without an answer
        self._granted: set[str] = set()  # in this session

    def __contains__(self, topic_filter: str) -> bool:
        """Whether the session has it."""
        return topic_filter in self._granted

    def ask(self, *topic_filters: str) -> None:
        """Subscribe to those that the session does not have and that are not asked for already."""
        missing = tuple(f for f in topic_filters if f not in self._granted and not self._is_asked(f))
        if missing:
            subscribe_id = next(self._ids)
            self._asked[subscribe_id] = missing
            self._actions.append(Subscribe(subscribe_id, missing))

    def answered(self, event: Subscribed) -> tuple[set[str], dict[str, StateStoreError]]:
        """The filters that a SUBACK grants, and those that it refuses."""
        granted, refused = set[str](), dict[str, StateStoreError]()
        for topic_filter, reason in zip(self._asked.pop(event.subscribe_id, ()), event.reason_codes, strict=False):
            if reason < FIRST_ERROR:
                granted.add(topic_filter)
            else:
                refused[topic_filter] = refused_subscription(topic_filter, reason)
        self._granted |= granted
        return granted, refused

    def disconnected(self) -> None:
        """No answer comes any longer. What the session has it may have on the next connection, too."""
        self._asked.clear()

    def session_lost(self) -> None:
        """The session is a new one, or may be: nothing counts as granted."""
        self._granted.clear()

    def _is_asked(self, topic_filter: str) -> bool:
        return any(topic_filter in filters for filters in self._asked.values())


#: A broker that accepts a connection answers SUBSCRIBE within this time (seconds), or it is taken for gone.
_SUBSCRIBE_TIMEOUT_S: Final = 10.0
_SESSION_TAKEN_OVER: Final = 0x8E
_QUOTA_EXCEEDED: Final = 0x97
#: USE_ANOTHER_SERVER, SERVER_MOVED, and what TLS says of a certificate: another address may be better.
_OF_ONE_SERVER: Final = frozenset({None, 0x9C, 0x9D})
_OF_CONNECTIONS: Final = (ConnectionLostError, ConnectRefusedError)
#: UNSUPPORTED_PROTOCOL_VERSION, CLIENT_IDENTIFIER_NOT_VALID: no broker takes back what it says of an argument.
_WRONG_ARGUMENT: Final = frozenset({0x84, 0x85})
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
    :param retry_first_connect: False makes a failed first connection final, once all addresses were tried.
    :param give_up_on: errors that end the client if connecting again in the same way will not cure them.
    :param alternatives: the addresses that take turns, as the driver sees them.
    :param silence_timeout: seconds, see :mod:`~statestore_client.core.silence`.
    :param watch_lifetime: seconds, see :mod:`~statestore_client.core.watch_protocol`.
    :param answer_topic: where answers go, ``{client_id}`` in it stands for the client's own; None for the usual one.
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
        give_up_on: tuple[type[StateStoreError], ...] = (),
        alternatives: Callable[[], Alternatives] = OneAddress,
        backoff: Backoff | None = None,
        silence_timeout: float = 2.0,
        watch_lifetime: float = 3600.0,
        complaint: Callable[[], str | None] = lambda: None,
        trace: Callable[[Command], RequestSpan] | None = None,
        answer_topic: str | None = None,
    ) -> None:
        #: What must be done now, in this order; :meth:`take_actions` hands it over.
        self.actions: list[Action] = []
        #: The shell names the present connection here, and flushes what it holds.
        self.output: Output = Output()
        self._clean_start = clean_start
        self._retry_first_connect = retry_first_connect
        self._give_up_on = give_up_on
        self._response_topic = response_topic(client_id, answer_topic)
        #: Requests are submitted and cancelled here.
        self.request_table: RequestTable = RequestTable(
            client_id,
            clock=clock,
            window=max_in_flight,
            new_correlation=partial(random.randbytes, 16),
            output=self.output,
            silence=Silence(silence_timeout),
            complaint=complaint,
            trace=trace,
            response_topic=answer_topic,
        )
        #: True while anything is watched; call nothing.
        self.watching: WatchProtocol = WatchProtocol(
            client_id,
            request_table=self.request_table,
            output=self.output,
            request_timeout=request_timeout,
            lifetime=watch_lifetime,
        )
        self._alternatives = alternatives
        self._subscriptions = Subscriptions(self.actions)
        self._reconnection = Reconnection(backoff or Backoff(), random)
        self._receivers: dict[type[Event], Callable[[Any, Instant], None]] = {
            Subscribed: self._receive_subscribed,
            Connected: self._receive_connected,
            BrokerMistakes: self._receive_mistakes,
            Closed: self._receive_closed,
        }
        self._phase = _Phase.NEW
        self._subscribed_by = math.inf  # when SUBACK has to be here
        self._drop_reason: StateStoreError | None = None  # set once we gave a connection up
        self._ever_connected = False
        self._session_is_good = True  # False: the broker must forget it
        self._lost_session: SessionLostError | None = None  # to be told when the connection stands
        self._has_remarked = False  # on this connection, that the broker makes mistakes
        self._heard_at = -math.inf  # when the driver last reported anything
        self._final_error: StateStoreError | None = None
        self._open_waiters: list[Waiter] = []

    # -- what users see ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        if self._phase is _Phase.READY:
            return ConnectionState.CONNECTED
        if self._phase is _Phase.CLOSED:
            return ConnectionState.CLOSED
        return ConnectionState.SUSPENDED if self._ever_connected else ConnectionState.CONNECTING

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, and not by its user: then it may be opened again."""
        return self._phase is _Phase.CLOSED and self._final_error is not None

    @property
    def situation(self) -> str:
        """The state and what led to it, for the errors of calls that could not wait for a better one."""
        error = self._final_error or self.request_table.last_connection_error
        return str(self.state) if error is None else f"{self.state}: {error}"

    @property
    def is_watching(self) -> bool:
        """Whether anything is watched."""
        watching = self.watching
        return bool(watching.table.keys or watching.prefixes.watches)

    def too_late(self, text: str) -> RequestTimeoutError:
        """The error of a call, other than a request, that waited in vain."""
        complaint = self.request_table.complaint()
        kind = RequestTimeoutError if complaint is None else CallbackReplacedError
        return kind(f"{text} ({complaint or self.situation})")

    def check_open(self) -> None:
        """Raise what every call gets once the client is closed."""
        if self._phase is _Phase.CLOSED:
            raise ended(self._final_error)

    def take_actions(self) -> list[Action]:
        """A copy of :attr:`actions`, which is empty then."""
        actions = self.actions.copy()
        self.actions.clear()
        return actions

    # -- calls ---------------------------------------------------------------------------------------------------------

    def open(self, waiter: Waiter | None) -> None:
        """Start to connect; ``waiter`` is resolved when requests can leave, rejected when that cannot be.

        With None nobody waits, and a first connection that fails is retried: nobody would hear of the failure. A client
        that has ended otherwise than by :meth:`close` begins anew.
        """
        if self.has_ended:
            self._begin_anew()
        if waiter is None:
            self._retry_first_connect = True
        elif self._phase is _Phase.CLOSED:
            waiter.reject(ended(None))
        elif self._phase is _Phase.READY:
            waiter.resolve(None)
        else:
            self._open_waiters.append(waiter)
        if self._phase is _Phase.NEW:
            self.actions.append(StateChanged(self.state))
            self._connect()

    def _begin_anew(self) -> None:
        """From CLOSED to NEW. Requests and watches have ended, and nothing of the session is relied upon."""
        self._phase = _Phase.NEW
        self._final_error = self._lost_session = None
        self._session_is_good = self._session_is_good and not self._ever_connected
        self._ever_connected = False
        self._subscriptions.session_lost()
        self._reconnection.begin_anew()
        self.request_table.begin_anew()
        self.watching.begin_anew()

    def cancel_open(self, waiter: Waiter) -> None:
        """The caller of :meth:`open` no longer waits. Connecting goes on."""
        self._open_waiters = [w for w in self._open_waiters if w is not waiter]

    def watch(self, key: bytes, observer: Observer, waiter: Waiter, now: Instant, options: WatchOptions) -> None:
        """Watch ``key``: ``waiter`` is resolved when no later change can be missed; ``observer`` gets the events."""
        if self._phase is _Phase.CLOSED:
            waiter.reject(ended(self._final_error))
            return
        self.watching.add(key, observer, waiter, now, options)
        self._subscribe_to_notifications()

    def unwatch(self, key: bytes, observer: Observer, now: Instant) -> None:
        """Stop watching. Events already queued stay with the observer."""
        self.watching.remove(key, observer, now)

    def close(self, now: Instant, why: StateStoreError | None = None) -> None:
        """End: reject what waits, send DISCONNECT. Closing twice is harmless.

        For good, unless ``why`` says that it is not the end of the client but of an attempt to open it.
        """
        if self._phase is _Phase.CLOSED:
            if why is None:
                self._final_error = self.request_table.end_reason = None
            return
        connected = self._phase in (_Phase.CONNECTING, _Phase.SUBSCRIBING, _Phase.READY)
        self._end(why, now)
        if connected:
            self.actions.append(Disconnect())

    # -- driver events -------------------------------------------------------------------------------------------------

    def receive(self, events: Sequence[Event], now: Instant) -> None:
        """Take what the driver reports, in its order. After DISCONNECT nothing may be sent, not even an acknowledgement
        (MQTT 5.0, 3.14.4).
        """
        request_table, output = self.request_table, self.output
        for event in events:
            if self._phase is _Phase.CLOSED:
                return
            self._heard_at = now.monotonic
            if isinstance(event, Published):
                request_table.published(event, now)
            elif isinstance(event, IncomingMessage):
                if event.topic == self._response_topic:
                    request_table.received(event, now)
                else:
                    self.watching.receive(event, now)
                if event.ack_id:
                    # After it was taken in, so that a crash in between makes the broker send it again.
                    output.acknowledge(event.ack_id)
            else:
                self._receivers[type(event)](event, now)
        if request_table.has_store_returned:
            request_table.has_store_returned = False
            self.watching.renew(now)

    def next_deadline(self) -> float | None:
        """The next moment (monotonic seconds) at which :meth:`tick` has something to do."""
        request_table = self.request_table
        requests, polls, silence = (
            request_table.deadlines.first(),
            self.watching.next_deadline(),
            request_table.silence.deadline,
        )
        absence = request_table.absence.deadline
        if self._phase is _Phase.READY and polls is None and silence == absence == math.inf:
            return requests
        deadlines = [d for d in (self._reconnection.retry_at, requests, polls) if d is not None]
        if absence < math.inf:
            deadlines.append(absence)
        if silence < math.inf:
            deadlines.append(silence)
        if self._phase is _Phase.SUBSCRIBING and self._drop_reason is None:
            deadlines.append(self._subscribed_by)
        return min(deadlines, default=None)

    def tick(self, now: Instant) -> None:
        """Time has passed: expire requests, try to connect again."""
        request_table = self.request_table
        if now.monotonic >= request_table.silence.deadline:
            self._check_silence(now)
        if now.monotonic >= request_table.absence.deadline:
            request_table.look_for_store(now)
        if request_table.expire(now, self._seen) and self._phase is _Phase.READY:
            unacknowledged_since, acknowledged_at = request_table.unacknowledged_since, request_table.acknowledged_at
            heard_at = self._heard_at if self._line_heard_at is None else now.monotonic
            if is_connection_dead(now.monotonic, heard_at, unacknowledged_since, acknowledged_at):
                self._drop(request_table.complaint() or "the broker does not answer any longer")
        if self._phase is _Phase.SUBSCRIBING and now.monotonic >= self._subscribed_by:
            self._drop(request_table.complaint() or "the broker did not answer SUBSCRIBE")
        if self._reconnection.is_due(now):
            self._connect()
        self.watching.tick(now)

    @property
    def _line_heard_at(self) -> float | None:
        connection = self.output.connection
        return None if connection is None else connection.heard_at

    def _check_silence(self, now: Instant) -> None:
        request_table, heard_at = self.request_table, self._line_heard_at
        owed_since = request_table.owed_since
        if self._phase is _Phase.SUBSCRIBING:
            owed_since = self._subscribed_by - _SUBSCRIBE_TIMEOUT_S
        verdict = request_table.silence.check(
            now.monotonic,
            heard_at,
            owed_since,
            request_table.window.request_bytes,
            has_others=self._alternatives().several,
        )
        if verdict is Verdict.PING:
            self.actions.append(Ping())
        elif verdict is Verdict.GONE:
            self._drop(request_table.complaint() or f"{self._seen(now)}, not even for a ping")

    def _seen(self, now: Instant) -> str:
        """What is known of a connection on which an answer is missing."""
        connection, heard_at = self.output.connection, self._line_heard_at
        silent_since = max(self._heard_at if heard_at is None else heard_at, self.request_table.owed_since or -math.inf)
        broker = "the broker" if connection is None else connection.url
        return f"no byte from {broker} for {now.monotonic - silent_since:.1f} s"

    def _drop(self, reason: StateStoreError | str) -> None:
        if self._drop_reason is None:
            self._drop_reason = ConnectionLostError(reason) if isinstance(reason, str) else reason
            self.actions.append(Drop())

    def interrupted(self, now: Instant) -> None:
        """A signal stopped a change half-way: give up the connection, its session and every request.

        The shell has closed the driver already and rejects those who wait. Watches go on after the reconnect.
        """
        self.actions.clear()
        self.request_table.reset()
        self._session_is_good = False
        if self._phase in (_Phase.CONNECTING, _Phase.SUBSCRIBING, _Phase.READY):
            self._receive_closed(Closed(ConnectionLostError("a signal interrupted the client")), now)
            if self._reconnection.retry_at is not None:
                self._reconnection.retry_now(now)

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._phase = _Phase.CONNECTING
        self._drop_reason, self._has_remarked = None, False
        # A clean start after the first connection would throw away the session that in-flight requests live in.
        forget = not self._session_is_good or (self._clean_start and not self._ever_connected)
        self.actions.append(Open(clean_start=forget, new_round=self._reconnection.begins_round))

    def _receive_connected(self, event: Connected, now: Instant) -> None:
        if self._phase is not _Phase.CONNECTING:
            return
        self._phase = _Phase.SUBSCRIBING
        self._session_is_good = True
        self._subscribed_by = now.monotonic + _SUBSCRIBE_TIMEOUT_S
        self.request_table.connected(event)
        self.request_table.silence.expect(now.monotonic)  # SUBACK
        if not event.session_present or self._reconnection.may_have_stale_attempt(now):
            # An attempt whose CONNACK was lost may have found the session expired, or asked for a clean start: then the
            # session that is present now is that attempt's, and has no subscriptions.
            self._subscriptions.session_lost()
        if not event.session_present and self._ever_connected:
            self._lost_session = SessionLostError("the broker lost the session while the connection was down")
            self.request_table.session_lost(self._lost_session, now)
        wanted = [self.watching.topic_filter] if self.watching else []
        self._subscriptions.ask(self._response_topic, *wanted)
        if self._response_topic in self._subscriptions:
            self._ready(now)

    def _receive_subscribed(self, event: Subscribed, now: Instant) -> None:
        granted, refused = self._subscriptions.answered(event)
        if (why := refused.get(self._response_topic)) is not None:
            if self._is_final(Closed(why, fatal=True), why, now):
                self._end(why, now)
                self.actions.append(Disconnect())
            else:
                self._drop(why)
            return
        for error in refused.values():
            self.watching.refused(error)
        if self._phase is _Phase.SUBSCRIBING and self._response_topic in self._subscriptions:
            self._ready(now)
        elif self._phase is _Phase.READY and self.watching.topic_filter in granted:
            self.watching.start(now)

    def _ready(self, now: Instant) -> None:
        self._phase = _Phase.READY
        self._ever_connected = True
        self._reconnection.succeeded(now)
        self.actions.append(StateChanged(ConnectionState.CONNECTED, self._lost_session))
        self._lost_session = None
        for waiter in self._open_waiters:
            waiter.resolve(None)
        self._open_waiters.clear()
        self.request_table.resume(now)
        if self.watching.topic_filter in self._subscriptions:
            self.watching.start(now)
        else:
            self._subscribe_to_notifications()

    def _subscribe_to_notifications(self) -> None:
        """Once the first watch is there. KEYNOTIFY follows when SUBACK comes."""
        if self.watching and self._phase is _Phase.READY:
            self._subscriptions.ask(self.watching.topic_filter)

    def _receive_closed(self, event: Closed, now: Instant) -> None:
        error = self._drop_reason or event.error
        is_round_over = self._is_round_over
        is_final = self._is_final(event, error, now)
        said = error if self._phase is _Phase.READY else self._alternatives().what_all_said(error)
        if self._phase is _Phase.CONNECTING:
            self._reconnection.failed(now)
        elif event.reason_code == _QUOTA_EXCEEDED:
            self.request_table.window.thrown_out(now.monotonic)
        self.request_table.suspend(said)
        self._subscriptions.disconnected()
        self.watching.suspend(now)
        if is_final:
            self._end(said, now)
            return
        if event.reason_code in _OUR_PACKET_WAS_BAD:
            self.request_table.reject_unacknowledged(broke_connection(error), now)
        self._phase = _Phase.WAITING
        self._reconnection.plan(now, is_round_over=is_round_over)
        self.actions.append(StateChanged(self.state, said if is_round_over else error))

    def _receive_mistakes(self, event: BrokerMistakes, _now: Instant) -> None:
        if not self._has_remarked:
            self._has_remarked = True
            text = f"the broker does not keep to MQTT 5, which does no harm here: {event.first}"
            self.actions.append(Remark(self.state, text))
        self.request_table.stats.broker_mistakes += event.count

    def _is_final(self, event: Closed, error: StateStoreError, now: Instant) -> bool:
        """Whether the end of a connection, or of an attempt, ends the client; the module says why."""
        is_of_server = event.reason_code in _OF_ONE_SERVER and isinstance(event.error, _OF_CONNECTIONS)
        is_fatal = event.fatal and (self._is_round_over or not is_of_server)
        if is_fatal and isinstance(error, self._give_up_on):
            return True
        if event.reason_code == _SESSION_TAKEN_OVER:
            return event.fatal and not self._reconnection.may_have_stale_attempt(now)
        if self._ever_connected:
            return False
        if self._retry_first_connect:
            return event.reason_code in _WRONG_ARGUMENT
        return is_fatal or self._is_round_over

    @property
    def _is_round_over(self) -> bool:
        """Whether nothing is left to try before a pause. A failure that is final waits for those that are late."""
        others = self._alternatives().others
        is_first = not (self._ever_connected or self._retry_first_connect)
        return others is Others.NONE or (others is Others.PENDING and not is_first)

    def _end(self, error: StateStoreError | None, now: Instant) -> None:
        """To CLOSED: by the user (``error`` is None) or because it is final."""
        self._phase = _Phase.CLOSED
        self._reconnection.retry_at = None
        self._final_error = error
        for waiter in self._open_waiters:
            waiter.reject(closed(error))
        self._open_waiters.clear()
        self.watching.close(closed(error))
        self.request_table.close(error, now)
        self.actions.append(StateChanged(ConnectionState.CLOSED, error))
