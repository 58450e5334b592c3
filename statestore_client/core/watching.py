"""What keeps the watches of a client going: KEYNOTIFY and GET of its own, and the notifications that come in.

Steps for one key, on each connection anew (state store protocol, "KEYNOTIFY")::

    subscribed to notifications --> KEYNOTIFY --OK--> GET, if something may have been missed or is owed --> active

Requests of these steps wait with a ``_Step`` instead of a shell's waiter; :meth:`Watching.settle` takes their answers.
"""

from __future__ import annotations

import math
from itertools import count

import attrs

from statestore_client.core.actions import Action, Observer, Reject, Resolve, WatchOptions
from statestore_client.core.exchange import Exchange
from statestore_client.core.request import InternalWaiter, Request
from statestore_client.core.results import Item
from statestore_client.core.watches import WatchTable
from statestore_client.errors import (
    RemoteProtocolError,
    RequestTimeoutError,
    StateStoreError,
    TimestampError,
    TransportError,
)
from statestore_client.wire.commands import Command, Get, KeyNotify
from statestore_client.wire.hlc import MAX_DRIFT_MS, HlcTimestamp
from statestore_client.wire.instant import Instant
from statestore_client.wire.messages import TIMESTAMP, IncomingMessage
from statestore_client.wire.notifications import decode_notification
from statestore_client.wire.topics import notification_filter, parse_notification_topic

__all__ = ["Watching"]


@attrs.frozen
class _Step(InternalWaiter):
    """The waiter of a request that is sent for a watch.

    ``attempt`` tells the answer that the watch waits for from those to what it asked for on an earlier connection, or
    before somebody stopped to watch the key and began again.
    """

    key: bytes
    command: Command
    attempt: int


class Watching:
    """The watches of one client. True while there are any."""

    def __init__(self, client_id: str, *, exchange: Exchange, actions: list[Action], request_timeout: float) -> None:
        self._client_id = client_id
        self._exchange = exchange
        self._request_timeout = request_timeout
        self._table = WatchTable(actions=actions)
        self._polls: dict[bytes, float] = {}  # when to read a key again, monotonic seconds
        self._next_poll = math.inf  # no later than the first of them
        self._steps: dict[int, Request] = {}  # requests without an answer, by attempt
        self._attempts = count(1)
        self._started = False  # on this connection: subscribed, and KEYNOTIFYs may leave
        self._closed = False
        #: The filter that all notifications of this client match.
        self.topic_filter = notification_filter(client_id)

    def __bool__(self) -> bool:
        return bool(self._table)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def add(self, key: bytes, observer: Observer, waiter: object, now: Instant, options: WatchOptions) -> None:
        """Watch ``key``, at once if notifications are subscribed to, otherwise with :meth:`start`."""
        must_notify, must_read = self._table.add(key, observer, waiter, options)
        self._plan_poll(key, now)
        if must_read:
            self._submit(Get(key), key, now)
        elif must_notify and self._started:
            self._submit(KeyNotify(key), key, now)

    def remove(self, key: bytes, observer: Observer, now: Instant) -> None:
        """Forget a watcher; the server is told when it was the last one of its key."""
        was_last = self._table.remove(key, observer)
        self._plan_poll(key, now)
        if was_last and self._started:
            self._submit(KeyNotify(key, stop=True), key, now)

    # -- the connection ------------------------------------------------------------------------------------------------

    def start(self, now: Instant) -> None:
        """Notifications are subscribed to: KEYNOTIFY for every key."""
        self._started = True
        for key in self._table:
            self._submit(KeyNotify(key), key, now)

    def suspend(self, now: Instant) -> None:
        """The link broke. After a reconnect every watch starts anew.

        A KEYNOTIFY of before that were sent again would take effect unnoticed, ahead of the one that is waited for, and
        what it lets through could not be told from what the old connection left over.
        """
        self._started = False
        self._table.suspended()
        for request in self._steps.values():
            self._exchange.cancel(request, now)
        self._steps.clear()

    def refused(self, error: StateStoreError) -> None:
        """The broker refused the subscription: every watch ends."""
        for key in self._table:
            self._table.failed(key, error)

    def close(self, error: StateStoreError) -> None:
        """The client ends."""
        self._started = False
        self._closed = True
        self._table.close(error)

    # -- reading now and then, for brokers that lose notifications -----------------------------------------------------

    def _plan_poll(self, key: bytes, now: Instant) -> None:
        interval = self._table.poll_interval(key)
        if interval is None:
            self._polls.pop(key, None)
        else:
            self._polls[key] = due = now.monotonic + interval
            self._next_poll = min(self._next_poll, due)

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do, in monotonic seconds."""
        return self._next_poll if self._polls else None

    def tick(self, now: Instant) -> None:
        """Read the keys whose time has come."""
        if not self._polls or now.monotonic < self._next_poll:
            return
        for key in [key for key, due in self._polls.items() if due <= now.monotonic]:
            self._plan_poll(key, now)
            if self._started and self._table.polling(key):
                self._submit(Get(key), key, now)
        self._next_poll = min(self._polls.values(), default=math.inf)

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, message: IncomingMessage, now: Instant) -> None:
        """A message that is no reply: a notification, or something foreign, which is dropped and counted.

        A version from the far future would make every later change look outdated. Whoever sent it, the key is read.
        """
        target = parse_notification_topic(message.topic)
        if target is None or target[0] != self._client_id:
            self._exchange.stats.late_or_unknown_replies += 1
            return
        text = message.user_property(TIMESTAMP)
        try:
            notification = decode_notification(bytes(message.payload))
            version = None if text is None else HlcTimestamp.parse(text)
        except (RemoteProtocolError, TimestampError):
            self._exchange.stats.late_or_unknown_replies += 1
            return
        key = target[1]
        if version is None or version.wall_ms - now.wall_ms <= MAX_DRIFT_MS:
            self._table.notified(key, notification, version)
        elif self._started and self._table.polling(key):
            self._submit(Get(key), key, now)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _submit(self, command: Command, key: bytes, now: Instant) -> None:
        attempt = next(self._attempts)
        self._table.expect(key, attempt)
        step = _Step(key, command, attempt)
        self._steps[attempt] = self._exchange.submit(command, step, now, timeout=self._request_timeout)

    def settle(self, now: Instant) -> None:
        """Take the answers to these steps and go on with the next ones."""
        internal = self._exchange.internal
        while internal:
            answers = internal.copy()
            internal.clear()
            for answer in answers:
                self._steps.pop(answer.waiter.attempt, None)
                self._step_done(answer, now)

    def _step_done(self, answer: Resolve | Reject, now: Instant) -> None:
        step = answer.waiter
        assert isinstance(step, _Step)  # noqa: S101 - selected so by the only caller
        if not self._table.expects(step.key, step.attempt):
            return
        match answer, step.command:
            case Resolve(), KeyNotify(stop=False):
                if self._table.notifying(step.key):
                    self._submit(Get(step.key), step.key, now)
            case Resolve(result=result), Get():
                if self._table.read(step.key, result if isinstance(result, Item) else None):
                    self._submit(step.command, step.key, now)
            case Reject(error=error), KeyNotify(stop=False) | Get():
                self._step_failed(step, error, now)

    def _step_failed(self, step: _Step, error: StateStoreError, now: Instant) -> None:
        """A time-out is repeated while connected; after a reconnect every watch starts anew; anything else is final.

        Final as well: a publication that the broker refuses. Repeating it at once would keep both of us busy for ever.
        """
        if self._started and isinstance(error, RequestTimeoutError):
            self._submit(step.command, step.key, now)
        elif self._started or self._closed or not isinstance(error, TransportError):
            self._table.failed(step.key, error)
